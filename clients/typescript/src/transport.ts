// Sends calls to the replicas in turn until one answers.
import { Attempts } from "./attempts.js";
import type { Call, Nothing, Page, Request, Socket, Stream } from "./call.js";
import { Content } from "./content.js";
import { BerthError, ConnectionFailed, errorOf } from "./errors.js";
import { connect, Refused, Unexplained, type Connection } from "./websocket.js";

export const VERSION = "0.1.0";

/** Options of a client. */
export interface Options {
  /** One address, or one per replica; default: BERTH_URLS or BERTH_URL. */
  url?: string | readonly string[] | undefined;
  /** An API key or a JWT; default: BERTH_TOKEN. */
  token?: string | undefined;
  /** How often a call is tried again; default: 4. */
  retries?: number | undefined;
  /** Sends the requests; default: the global fetch. */
  fetch?: typeof globalThis.fetch | undefined;
  /** Waits; default: a timer. */
  sleep?: ((seconds: number) => Promise<void>) | undefined;
}

const timer = (seconds: number): Promise<void> => new Promise((done) => setTimeout(done, seconds * 1000));

/** Codes of failures before anything was sent. */
const unsent = new Set(["ECONNREFUSED", "ENOTFOUND", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

export class Transport {
  readonly urls: readonly string[];
  readonly retries: number;
  readonly sleep: (seconds: number) => Promise<void>;
  private readonly token: string;
  private readonly fetch: typeof globalThis.fetch;
  private last = 0;

  constructor(options: Options) {
    const env = globalThis.process?.env ?? {};
    const url = options.url ?? (env["BERTH_URLS"] || env["BERTH_URL"] || "");
    this.urls = (typeof url === "string" ? url.split(",") : url).map((u) => u.trim().replace(/\/+$/, "")).filter((u) => u !== "");
    if (this.urls.length === 0) {
      throw new BerthError("no URL: give one, or set BERTH_URL");
    }
    for (const u of this.urls) {
      if (!/^https?:\/\/[^/]+/.test(u)) {
        throw new BerthError(`URL ${JSON.stringify(u)}: want http://host:port or https://host`);
      }
    }
    this.token = options.token ?? env["BERTH_TOKEN"] ?? "";
    if (this.token === "") {
      throw new BerthError("no token: give one, or set BERTH_TOKEN");
    }
    this.retries = options.retries ?? 4;
    // A browser's fetch is refused as a method of anything but its window.
    this.fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
    this.sleep = options.sleep ?? timer;
  }

  /** The same service, with another credential. */
  withToken(token: string): Transport {
    return new Transport({ url: this.urls, token, retries: this.retries, fetch: this.fetch, sleep: this.sleep });
  }

  async call<T>(call: Call<T>): Promise<T> {
    return (await this.open(call, (r) => json(r))) as T;
  }

  async nothing(call: Nothing): Promise<void> {
    await this.open(call, (r) => r.arrayBuffer());
  }

  /** Iterates over the elements of a list, page by page. */
  async *pages<T>(call: Page<T>): AsyncGenerator<T> {
    for (let cursor: string | undefined; ; ) {
      const asked: Request = cursor === undefined ? call : { ...call, query: { ...call.query, cursor } };
      const { elements, next } = await this.open(asked, async (r) => ({
        elements: (await json(r)) as T[],
        next: nextCursor(r.headers.get("link")),
      }));
      yield* elements;
      if (next === undefined) {
        return;
      }
      cursor = next;
    }
  }

  /** An answer that is read as a stream. Cancel its body if you do not read all of it. */
  stream(call: Stream): Promise<Response> {
    return this.open(call, (r) => Promise.resolve(r));
  }

  async socket(call: Socket, dial = connect): Promise<Connection> {
    const attempts = new Attempts(this.urls, this.retries, call, this.last);
    for (;;) {
      let wait: number | undefined;
      try {
        const url = address(attempts.url.replace(/^http/, "ws"), call);
        const connection = await dial(url, this.token);
        this.last = attempts.at;
        return connection;
      } catch (thrown) {
        const e = thrown instanceof Unexplained ? await this.explained(attempts.url, call, thrown) : thrown;
        if (e instanceof BerthError) {
          throw e;
        }
        if (e instanceof Refused) {
          wait = attempts.afterAnswer(e.refusal);
          if (wait === undefined) {
            throw errorOf(e.refusal);
          }
        } else {
          this.away(attempts.at);
          wait = attempts.afterBreak(!unsent.has(codeOf(e)));
          if (wait === undefined) {
            throw new ConnectionFailed(`open a WebSocket at ${attempts.url}: ${why(e)}`, { cause: e });
          }
        }
      }
      await this.sleep(wait);
    }
  }

  /** Why a WebSocket was not opened, according to what a plain request for it is answered. */
  private async explained(url: string, call: Socket, why: Unexplained): Promise<unknown> {
    try {
      const response = await this.fetch(address(url, call), this.init(call, new Content(undefined)));
      const refusal = { status: response.status, header: (name: string) => response.headers.get(name), body: await response.text() };
      if (refusal.status >= 400 && refusal.status !== 426) {
        return new Refused(refusal);
      }
    } catch (e) {
      return e;
    }
    return new ConnectionFailed(`open a WebSocket at ${url}: ${why.message}`);
  }

  /** The result of read for the first answer that is not a failure. */
  private async open<T>(call: Request, read: (r: Response) => Promise<T>): Promise<T> {
    const content = new Content(call.content);
    try {
      return await this.answered(call, content, read);
    } finally {
      content.release();
    }
  }

  private async answered<T>(call: Request, content: Content, read: (r: Response) => Promise<T>): Promise<T> {
    if (call.idempotent && call.idempotencyKey === undefined) {
      call = { ...call, idempotencyKey: await newKey() };
    }
    const attempts = new Attempts(this.urls, this.retries, call, this.last);
    for (;;) {
      let wait: number | undefined;
      try {
        const response = await this.fetch(address(attempts.url, call), this.init(call, content));
        if (response.ok) {
          const value = await read(response);
          this.last = attempts.at;
          return value;
        }
        const refusal = {
          status: response.status,
          header: (name: string) => response.headers.get(name),
          body: await response.text(),
        };
        wait = attempts.afterAnswer(refusal);
        if (wait === undefined) {
          this.last = attempts.at;
          throw errorOf(refusal);
        }
      } catch (e) {
        if (e instanceof BerthError) {
          throw e;
        }
        this.away(attempts.at);
        wait = attempts.afterBreak(!unsent.has(codeOf(e)) || !content.whole);
        if (wait === undefined) {
          throw new ConnectionFailed(`${call.method} at ${attempts.url}: ${why(e)}`, { cause: e });
        }
      }
      await this.sleep(wait);
    }
  }

  /** Later calls begin with another replica than the one that did not answer: it may be frozen. */
  private away(at: number): void {
    if (this.last === at) {
      this.last = (at + 1) % this.urls.length;
    }
  }

  private init(call: Request, content: Content): RequestInit {
    const headers: Record<string, string> = {
      authorization: `Bearer ${this.token}`,
      "user-agent": `berth-typescript/${VERSION}`,
    };
    if (call.idempotencyKey !== undefined) {
      headers["idempotency-key"] = call.idempotencyKey;
    }
    const init: RequestInit & { duplex?: "half" } = { method: call.method, headers, redirect: "manual" };
    if (call.content !== undefined) {
      headers["content-type"] = "application/octet-stream";
      init.body = content.body();
      if (content.inPieces) {
        init.duplex = "half";
      }
    } else if (call.json !== undefined || call.method === "POST") {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(call.json ?? {}); // a POST without a body is refused
    }
    return init;
  }
}

function address(base: string, call: Request): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(call.query ?? {})) {
    if (value !== undefined) {
      query.set(name, String(value));
    }
  }
  const text = query.toString();
  return base + call.path + (text ? `?${text}` : "");
}

async function json(response: Response): Promise<unknown> {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch (e) {
    throw new BerthError(`the answer of status ${response.status} is not JSON`, { cause: e });
  }
}

/** The cursor in a Link header with rel="next". */
function nextCursor(link: string | null): string | undefined {
  for (const one of (link ?? "").split(",")) {
    const [target, ...parameters] = one.split(";");
    if (target !== undefined && parameters.join(";").replaceAll(" ", "").includes('rel="next"')) {
      return new URL(target.trim().replace(/^<|>$/g, ""), "http://x").searchParams.get("cursor") ?? undefined;
    }
  }
  return undefined;
}

async function newKey(): Promise<string> {
  // Node 18 has no such global.
  const { randomUUID } = globalThis.crypto ? { randomUUID: () => crypto.randomUUID() } : await import("node:crypto");
  return randomUUID();
}

/** The system's code of an error below fetch. */
function codeOf(e: unknown): string {
  for (let at: unknown = e; at instanceof Error; at = at.cause) {
    if ("code" in at && typeof at.code === "string") {
      return at.code;
    }
    if (at instanceof AggregateError && at.errors.length > 0) {
      return codeOf(at.errors[0]);
    }
  }
  return "";
}

/** The innermost known cause. */
export function why(e: unknown): string {
  let text = String(e);
  for (let at: unknown = e; at instanceof Error; at = at.cause) {
    text = at.message || codeOf(at) || text;
  }
  return text;
}
