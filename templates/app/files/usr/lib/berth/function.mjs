// Runs the handler of a function.
//
// The front, this program, speaks HTTP on $PORT. The handler runs in a worker, a process
// of its own, so that one that never returns, or ends the process, is replaced, and those
// who wait hear of it. The two exchange messages.
//
// Of a request without X-Forwarded-Prefix, which Berth adds to each invocation, the handler
// hears nothing: somebody looks whether the function is up.

import { fork } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const MAX_BODY = 10 << 20; // bytes of a request, and of an answer that is not streamed
const MAX_DRAIN = 64 << 20; // bytes of a request that is too large, before it is cut off
const MAX_PART = 256 << 10; // bytes of a streamed answer between the two processes
const MAX_AT_ONCE = 100; // invocations
const MAX_HEADERS = 32 << 10; // bytes
const MAX_LOADING = 60_000; // milliseconds
const CANNOT_LOAD = 78; // exit code: trying again would end the same way. The control plane knows it
const HANDLERS = ['handler.mjs', 'handler.js', 'handler.cjs'];

const FAILED = 'berth-function-failed'; // has Berth add the log, which it masks, up to the line of the invocation
const HOP = new Set(['connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'content-length', FAILED]);
const NO_MODULE = ['ERR_MODULE_NOT_FOUND', 'MODULE_NOT_FOUND'];

// The worker.

// Nonsense is an answer that is none.
class Nonsense extends Error {}

async function load() {
  const file = HANDLERS.find((name) => existsSync(name));
  if (!file) throw new Nonsense(`there is no ${HANDLERS.join(' or ')}`);
  const module = await import(pathToFileURL(resolve(file)).href);
  const d = module.default;
  const found = [d, d?.fetch?.bind?.(d), d?.handler, d?.default, module.handler].find((f) => typeof f === 'function');
  if (!found) throw new Nonsense(`${file} exports no function, as its default or as handler`);
  return found;
}

// requestOf is what a handler is called with: a Request of the web's.
function requestOf(m) {
  const headers = new Headers();
  for (let i = 0; i < m.headers.length; i += 2) {
    try {
      headers.append(m.headers[i], m.headers[i + 1]);
    } catch {
      // a header that the web does not know
    }
  }
  const body = m.method === 'GET' || m.method === 'HEAD' || m.body.length === 0 ? undefined : m.body;
  return new Request(new URL('http://function' + (m.target.startsWith('/') ? m.target : '/')), { method: m.method, headers, body });
}

// answerOf is a handler's result as a Response of the web's.
function answerOf(result) {
  if (result instanceof Response) return result;
  if (result === undefined || result === null) return new Response(null, { status: 204 });
  if ((result.byteLength ?? result.length) > MAX_BODY) throw new Nonsense(`the answer has more than ${MAX_BODY} bytes: stream it, by a Response`);
  if (typeof result === 'string') return new Response(result, { headers: { 'content-type': 'text/plain; charset=utf-8' } });
  if (result instanceof ArrayBuffer || ArrayBuffer.isView(result)) {
    return new Response(result, { headers: { 'content-type': 'application/octet-stream' } });
  }
  let text;
  try {
    text = JSON.stringify(result);
  } catch (e) {
    throw new Nonsense(`the answer is no JSON: ${e.message}`);
  }
  if (text === undefined) throw new Nonsense(`the answer, of type ${typeof result}, is no JSON`);
  if (text.length > MAX_BODY) throw new Nonsense(`the answer has more than ${MAX_BODY} bytes: stream it, by a Response`);
  return new Response(text, { headers: { 'content-type': 'application/json' } });
}

function headersOf(response) {
  const out = [...response.headers].filter(([name]) => !HOP.has(name));
  for (const [name, value] of out) {
    if (/[^\t\x20-\x7e\x80-\xff]/.test(value)) throw new Nonsense(`the header ${name} has a character that none may have`); // the web's Headers take it
  }
  const size = out.reduce((n, [name, value]) => n + name.length + value.length, 0);
  if (size > MAX_HEADERS || out.length > 200) throw new Nonsense('the headers are too large');
  return out;
}

async function work() {
  const acks = new Map(); // by the number of an invocation: who waits until a part was sent
  process.on('unhandledRejection', (e) => console.error('unhandled rejection:', e));
  process.on('disconnect', () => process.exit(0)); // the front is gone
  let handler;
  const loaded = load().then(
    (f) => {
      handler = f;
      process.send({ kind: 'ready' });
    },
    (e) => {
      console.error(e instanceof Nonsense ? e.message : e);
      process.exit(e instanceof Nonsense || e instanceof SyntaxError || NO_MODULE.includes(e?.code) ? CANNOT_LOAD : 1);
    },
  );
  process.on('message', async (m) => {
    if (m.kind === 'more') return acks.get(m.id)?.(m.go);
    await loaded;
    const say = (kind, more) => process.send({ id: m.id, kind, ...more });
    try {
      const response = answerOf(await handler(requestOf(m), { requestId: m.requestId }));
      if (response.status < 200 || response.status > 599) throw new Nonsense(`the status is ${response.status}`);
      const headers = headersOf(response);
      say('head', { status: response.status, headers, empty: !response.body });
      parts: for await (const part of response.body ?? []) {
        if (!ArrayBuffer.isView(part)) throw new Nonsense('a part of the answer is no Uint8Array');
        const raw = Buffer.from(part.buffer, part.byteOffset, part.byteLength);
        for (let at = 0; at < raw.length; at += MAX_PART) {
          const sent = new Promise((done) => acks.set(m.id, done));
          say('part', { body: raw.subarray(at, at + MAX_PART) });
          if (!(await sent)) break parts;
        }
      }
      say('end');
    } catch (e) {
      const nonsense = e instanceof Nonsense;
      console.error(`${m.requestId} failed\n${nonsense ? `the function's answer is none: ${e.message}` : (e?.stack ?? e)}`);
      say('error', { why: nonsense ? 'its answer is none' : e instanceof Error ? e.constructor.name : typeof e });
    } finally {
      acks.delete(m.id);
    }
  });
}

// The front.

// Worker is a worker, as the front sees it.
class Worker {
  pending = new Map(); // by number: who hears the answer
  count = 0;
  retired = false;
  gone = false;

  constructor() {
    this.child = fork(fileURLToPath(import.meta.url), ['--worker'], { serialization: 'advanced', stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    this.ready = new Promise((ready) => {
      this.child.on('message', (m) => {
        if (m.kind === 'ready') return ready(true);
        const hear = this.pending.get(m.id);
        if (hear) return hear(m);
        if (m.kind === 'part') this.more(m.id, false); // nobody waits for it any more
      });
      const over = () => {
        ready(false);
        this.gone = true;
        for (const hear of this.pending.values()) hear({ kind: 'gone' });
        this.pending.clear();
      };
      this.child.on('exit', over);
      this.child.on('error', over);
    });
  }

  begin(message, hear) {
    const id = ++this.count;
    this.pending.set(id, hear);
    this.send({ ...message, id, kind: 'invoke' });
    return id;
  }

  // send says something to the worker. One that does not take it is about to be gone.
  send(m) {
    this.child.send(m, () => {});
  }

  // more has the next part of a stream be sent, or none.
  more(id, go) {
    this.send({ id, kind: 'more', go });
  }

  end(id) {
    this.pending.delete(id);
    this.leave();
  }

  // retire ends the worker once nobody waits for it.
  retire() {
    this.retired = true;
    this.leave();
  }

  leave() {
    if (this.retired && this.pending.size === 0) this.child.kill('SIGKILL');
  }
}

class Failure extends Error {
  constructor(status, error, detail) {
    super(error);
    Object.assign(this, { status, detail });
  }
}

class Front {
  running = 0;

  constructor(timeout) {
    this.timeout = timeout;
    this.worker = this.start();
  }

  async start() {
    const worker = new Worker();
    const late = setTimeout(() => {
      console.error(`the handler has not been loaded within ${MAX_LOADING / 1000} s`);
      worker.child.kill('SIGKILL');
    }, MAX_LOADING);
    if (!(await worker.ready)) process.exit(worker.child.exitCode === CANNOT_LOAD ? CANNOT_LOAD : 1); // whoever started this starts it again
    clearTimeout(late);
    return worker;
  }

  // current is the worker that can be asked.
  async current() {
    const at = this.worker;
    const worker = await at;
    if (!worker.retired && !worker.gone) return worker;
    if (this.worker === at) this.worker = this.start(); // else somebody else has
    return this.current();
  }

  async serve(req, res) {
    if (req.headers['x-forwarded-prefix'] === undefined) {
      req.resume();
      res.writeHead(204).end();
      return;
    }
    const began = performance.now();
    const requestId = String(req.headers['x-request-id'] ?? '-').slice(0, 64);
    const path = JSON.stringify(req.url.split('?', 1)[0].slice(0, 200)).slice(1, -1);
    res.on('close', () => {
      const status = res.writableFinished ? res.statusCode : 'broken off';
      console.log(`${requestId} ${req.method} ${path} ${status} ${Math.round(performance.now() - began)}ms`);
    });
    this.running++;
    try {
      if (this.running > MAX_AT_ONCE) {
        req.resume();
        throw new Failure(503, 'too many invocations at once', `at most ${MAX_AT_ONCE}`);
      }
      await this.invoke(req, res, requestId);
    } catch (e) {
      this.fail(req, res, requestId, e);
    } finally {
      this.running--;
    }
  }

  // read reads a body. Of one that is too large the rest is read too: whoever sends it
  // hears of it once it is sent.
  read(req) {
    let parts = [];
    let size = 0;
    return new Promise((done, failed) => {
      req.on('data', (part) => {
        size += part.length;
        if (size <= MAX_BODY) parts.push(part);
        else parts = [];
        if (size > MAX_DRAIN) req.destroy();
      });
      req.on('end', () => (size <= MAX_BODY ? done(Buffer.concat(parts)) : failed(new Failure(413, 'request body too large', `at most ${MAX_BODY} bytes`))));
      req.on('error', failed);
      req.on('close', () => failed(new Error('the body ended early')));
    });
  }

  async invoke(req, res, requestId) {
    const body = await this.read(req);
    const headers = [];
    for (let i = 0; i < req.rawHeaders.length; i += 2) {
      if (!HOP.has(req.rawHeaders[i].toLowerCase())) headers.push(req.rawHeaders[i], req.rawHeaders[i + 1]);
    }
    const worker = await this.current();
    let id, late;
    try {
      await new Promise((done, failed) => {
        late = setTimeout(() => {
          worker.retired = true;
          failed(new Failure(504, 'the function took too long', `its time limit is ${this.timeout} s`));
        }, this.timeout * 1000);
        const hear = (m) => {
          switch (m.kind) {
            case 'gone':
              return failed(new Failure(500, 'the function failed', `its process ended; its logs tell more, at request ${requestId}`));
            case 'error':
              return failed(new Failure(500, 'the function failed', `${m.why}; its logs tell more, at request ${requestId}`));
            case 'head':
              if (res.destroyed) return;
              for (const [name, value] of m.headers) res.appendHeader(name, value);
              if (m.empty && m.status !== 204 && m.status !== 304) res.setHeader('content-length', '0');
              res.statusCode = m.status;
              if (!m.empty) res.flushHeaders();
              return;
            case 'part': {
              const more = () => worker.more(id, !res.destroyed && req.method !== 'HEAD');
              if (res.destroyed || req.method === 'HEAD' || res.write(m.body)) return more();
              const once = () => {
                res.off('drain', once).off('close', once);
                more();
              };
              return res.on('drain', once).on('close', once);
            }
            case 'end':
              clearTimeout(late);
              if (!res.destroyed) res.end();
              return done();
          }
        };
        id = worker.begin({ method: req.method, target: req.url, headers, body, requestId }, (m) => {
          try {
            hear(m);
          } catch (e) { // what cannot be passed on is an end of this invocation, and not of all
            console.error(`${requestId} failed\nthe function's answer is none: ${e.message}`);
            failed(new Failure(500, 'the function failed', `its answer is none; its logs tell more, at request ${requestId}`));
          }
        });
        if (worker.gone) failed(new Failure(500, 'the function failed', 'its process ended'));
      });
    } finally {
      clearTimeout(late);
      worker.end(id);
    }
  }

  fail(req, res, requestId, e) {
    if (!(e instanceof Failure)) {
      return res.destroy(); // its client has left
    }
    if (res.headersSent) return res.destroy(); // that it is cut off is all that can be told
    const raw = Buffer.from(JSON.stringify({ error: e.message, detail: e.detail, request_id: requestId }) + '\n');
    for (const name of res.getHeaderNames()) res.removeHeader(name);
    res.writeHead(e.status, {
      'content-type': 'application/json', 'content-length': raw.length,
      ...(e.status === 503 ? { 'retry-after': '1' } : {}), ...(e.status === 500 || e.status === 504 ? { [FAILED]: '1' } : {}), ...(req.complete ? {} : { connection: 'close' }),
    });
    res.end(raw);
  }
}

async function main() {
  const option = (name, otherwise) => (process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : otherwise);
  const front = new Front(Number(option('--timeout', 30)));
  await front.current();
  const server = createServer({ keepAliveTimeout: 65_000, requestTimeout: 0, maxHeaderSize: 64 << 10 }, (req, res) => front.serve(req, res));
  server.listen(Number(process.env.PORT), process.env.HOST ?? '0.0.0.0');
}

process.argv.includes('--worker') ? work() : main();
