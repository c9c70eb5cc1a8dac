// Streams, files and terminals.
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { WebSocket, WebSocketServer } from "ws";
import * as berth from "../src/index.js";
import { messages } from "../src/sse.js";
import { Transport } from "../src/transport.js";
import { collect } from "../src/types.js";
import { connect, Connection, connectPlatform } from "../src/websocket.js";
import { Fake, refusing, SANDBOX, sockets, type Answer } from "./fake.js";

let fake: Fake;
let sandbox: berth.Sandbox;
beforeEach(async () => {
  fake = await new Fake().start();
  sandbox = await fake.sandbox();
});
afterEach(() => fake.stop());

const sse = (event: string, data: unknown): string => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
const event = (n: number, type = "sandbox.paused"): unknown => ({ ts: `2026-11-20T13:05:09.00${n}Z`, type, metadata: {} });

async function all<T>(from: AsyncIterable<T>): Promise<T[]> {
  const out = [];
  for await (const one of from) {
    out.push(one);
  }
  return out;
}

test("events come whole however the bytes are cut", async () => {
  const text = Buffer.from('event: é\r\ndata: {"a":"é"}\r\n\r\n: ping\n\ndata: {"a":\ndata: 2}\nid: 5\n\nevent: lost\n\ndata:{}\n\n');
  const cut = async function* (size: number): AsyncGenerator<Uint8Array> {
    for (let i = 0; i < text.length; i += size) {
      yield text.subarray(i, i + size);
    }
  };
  const whole = await all(messages(cut(text.length)));
  assert.deepEqual(whole, [
    { event: "é", json: { a: "é" } },
    { event: "message", json: { a: 2 } },
    { event: "message", json: {} },
  ]);
  assert.deepEqual(await all(messages(cut(1))), whole);
});

test("output comes as it is written", async () => {
  const whole = Buffer.from(
    sse("stdout", { data: "héllo" }) +
      ": ping\n\n" +
      sse("stderr", { data: "/w==", encoding: "base64" }) +
      sse("a_kind_of_tomorrow", {}) +
      sse("exit", { exit_code: 3, duration_ms: 7, timed_out: false }),
  );
  fake.say({ chunks: [whole.subarray(0, 31), whole.subarray(31, 33), whole.subarray(33)] });
  const out = await all(sandbox.stream("make", { cwd: "/src", stdin: new Uint8Array([0]) }));
  assert.deepEqual(
    out.map((o) => (o.type === "exit" ? o : { type: o.type, text: o.text })),
    [
      { type: "stdout", text: "héllo" },
      { type: "stderr", text: "\ufffd" },
      { type: "exit", exitCode: 3, durationMs: 7, timedOut: false },
    ],
  );
  assert.deepEqual(JSON.parse(fake.asked[0]!.body.toString()), { cmd: "make", cwd: "/src", stdin_base64: "AA==" });
});

test("an output without its end is an error", async () => {
  const x = sse("stdout", { data: "x" });
  const answers: [Answer, typeof berth.BerthError][] = [
    [{ chunks: [x] }, berth.StreamBroken],
    [{ chunks: [x, sse("error", { error: "agent unreachable" })] }, berth.StreamBroken],
    [{ chunks: [x], cut: true }, berth.ConnectionFailed],
  ];
  for (const [answer, of] of answers) {
    fake.say(answer);
    const output = sandbox.stream("make");
    assert.equal((await output.next()).done, false);
    await assert.rejects(all(output), of);
  }
});

test("check says what the command said", async () => {
  fake.say({ json: { exit_code: 2, stdout: "\ufffd", stdout_base64: "/w==", stderr: "no rule\n", duration_ms: 1 } });
  assert.deepEqual([...(await sandbox.exec("make")).stdoutBytes], [255]);
  await assert.rejects(sandbox.exec("make", { check: true }), /ended with code 2: no rule$/);
});

test("a command that may take long is streamed, to the same result", async () => {
  const big = { type: "stdout" as const, data: new Uint8Array(5 << 20).fill(65), text: "" };
  const result = await collect(
    (async function* (): AsyncGenerator<berth.Output> {
      yield big;
      yield { type: "stderr", data: new Uint8Array([255]), text: "" };
      yield big;
      yield { type: "exit", exitCode: 1, durationMs: 5, timedOut: true };
    })(),
  );
  assert.equal(result.stdout.length, 8 << 20);
  assert.deepEqual([result.truncated, result.timed_out, result.stderr_base64, result.stdout_base64], [true, true, "/w==", undefined]);
  fake.say({ chunks: [sse("stdout", { data: "x" }), sse("exit", { exit_code: 0 })] });
  assert.equal((await sandbox.exec("make", { timeoutSeconds: 3600 })).stdout, "x");
  assert.ok(fake.asked[0]!.path.endsWith("/exec/stream"));
});

const command = {
  id: "cmd-1",
  cmd: "make",
  status: "running",
  exit_code: null,
  timed_out: false,
  started_at: "2026-11-20T13:05:09.412Z",
  ended_at: null,
  output_bytes: 3,
};

test("a detached command", async () => {
  fake.say({ status: 201, json: command });
  const one = await sandbox.commands.start("make", { cwd: "/src", idempotencyKey: "k" });
  assert.deepEqual([one.id, one.status, one.exitCode], ["cmd-1", "running", null]);
  assert.deepEqual(JSON.parse(fake.asked[0]!.body.toString()), { cmd: "make", cwd: "/src" });
  fake.say(
    { chunks: [sse("gap", { offset: 4 }), sse("stdout", { data: "hé", offset: 4 })], cut: true },
    { json: SANDBOX },
    { chunks: [sse("stderr", { data: "/w==", encoding: "base64", offset: 7 })] },
    { json: SANDBOX },
    { chunks: [sse("exit", { exit_code: 3, duration_ms: 7, timed_out: false, offset: 8 })] },
  );
  const output = await all(one.follow());
  assert.deepEqual(
    output.map((o) => (o.type === "stdout" || o.type === "stderr" ? [o.type, o.text, o.offset] : o)),
    [
      { type: "gap", offset: 4 },
      ["stdout", "hé", 4],
      ["stderr", "\ufffd", 7],
      { type: "exit", exitCode: 3, durationMs: 7, timedOut: false },
    ],
  );
  assert.deepEqual(
    fake.asked.filter((a) => a.path.includes("/output")).map((a) => new URL(a.path, fake.url).searchParams.get("since")),
    ["0", "7", "8"],
  );
  fake.say(
    { json: command },
    { chunks: [sse("exit", { exit_code: 3 })] },
    { json: { ...command, status: "exited", exit_code: 3, ended_at: "2026-11-20T13:05:10.412Z" } },
  );
  assert.equal((await one.wait()).exitCode, 3);
  assert.equal(one.exitCode, 3);
  fake.asked.length = 0;
  fake.say({ status: 204 }, { status: 204 }, { status: 204 }, { status: 204 }, { json: [command] });
  await one.input("yes\n");
  await one.input(new Uint8Array([255]), { eof: true });
  await one.signal("INT");
  await one.delete();
  assert.equal((await sandbox.commands.list())[0]!.id, "cmd-1");
  assert.deepEqual(
    fake.asked.slice(0, 3).map((a) => JSON.parse(a.body.toString())),
    [{ data: "yes\n", eof: false }, { data: "/w==", encoding: "base64", eof: true }, { signal: "INT" }],
  );
});

test("who only listens does not wake a sandbox", async () => {
  fake.say({ json: command });
  const one = await sandbox.commands.get("cmd-1");
  fake.say({ chunks: [sse("error", { error: "agent unreachable" })] }, { json: { ...SANDBOX, status: "hibernated" } });
  await assert.rejects(all(one.follow()), /the sandbox is hibernated/);
});

test("following goes on where it was cut", async () => {
  fake.say(
    { chunks: [sse("ev", event(1)), sse("ev", event(2))], cut: true },
    { status: 503, json: { error: "unavailable" }, headers: { "Retry-After": "1" } },
    { chunks: [sse("ev", event(3))] },
    { chunks: [sse("error", { error: "agent unreachable" })] },
    { chunks: [sse("ev", event(4, "sandbox.deleted"))] },
  );
  const events = await all(sandbox.followEvents({ tail: 5 }));
  assert.deepEqual(
    events.map((e) => e.ts.slice(-4)),
    ["001Z", "002Z", "003Z", "004Z"],
  );
  assert.deepEqual(
    fake.asked.map((a) => new URL(a.path, fake.url).searchParams.get("since")?.slice(-4)),
    [undefined, "002Z", "002Z", "003Z", "003Z"],
  );
});

test("following ends when the sandbox is gone, and gives up on a service that stays away", async () => {
  fake.say({ chunks: [sse("ev", event(1))] }, { status: 404, json: { error: "not found" } });
  assert.equal((await all(sandbox.followEvents())).length, 1);
  await assert.rejects(all(sandbox.followEvents()), berth.NotFound);
  fake.say({ chunks: [sse("error", { error: "agent unreachable", detail: "the stream broke off" })] });
  await assert.rejects(all(sandbox.followEvents()), { message: "agent unreachable: the stream broke off" });
});

test("a quiet stream that was alive counts as a connection", async () => {
  const cut: Answer = { chunks: [": ping\n\n"], cut: true };
  const cuts = Array<Answer>(6).fill(cut);
  fake.say(...cuts, { chunks: [sse("ev", event(1, "sandbox.deleted"))] });
  assert.equal((await all(sandbox.followEvents())).length, 1);

  fake.say({ json: command });
  const one = await sandbox.commands.get("cmd-1");
  fake.say(...cuts.flatMap((c) => [c, { json: SANDBOX }]), { chunks: [sse("exit", { exit_code: 3 })] });
  assert.equal((await all(one.follow())).length, 1);
});

test("logs", async () => {
  fake.say({ body: "héllo\n" });
  assert.equal(await sandbox.logs({ stream: "console", tail: 3 }), "héllo\n");
  assert.ok(fake.asked[0]!.path.endsWith("/logs?stream=console&tail=3"));
  fake.say({ chunks: [sse("stdout", { line: "up", ts: "2026-11-20T13:05:09.412Z" }), sse("console", { line: "a", partial: true })] });
  assert.deepEqual(await all(sandbox.followLogs()), [
    { stream: "stdout", line: "up", partial: false, ts: "2026-11-20T13:05:09.412Z" },
    { stream: "console", line: "a", partial: true },
  ]);
});

test("a build says what it does and becomes a template", async () => {
  const build = await fake.client().templates.build({ name: "web", from: "python" });
  fake.say({ chunks: [sse("log", { line: "one" }), sse("end", { status: "ready" })] });
  assert.deepEqual(await all(build.logs()), ["one"]);
  fake.say({ chunks: [sse("log", { line: "one" })] });
  await assert.rejects(all(build.logs()), berth.StreamBroken);
  fake.say({ json: { status: "building" } }, { json: { status: "failed", error: "exit 1" } });
  build.info.status = "queued";
  await assert.rejects(build.wait(), { name: "BuildFailed", message: "exit 1" });
  build.info.status = "ready";
  fake.say({ json: { name: "web" } });
  assert.equal((await build.wait()).name, "web");
});

test("files", async () => {
  const dir = await mkdtemp(join(tmpdir(), "berth-"));
  try {
    const data = Buffer.alloc(1 << 20, "0123456789abcdef");
    await writeFile(join(dir, "in"), data);
    const seen: [number, number | undefined][] = [];
    const progress = (done: number, total: number | undefined): void => void seen.push([done, total]);

    fake.say({ status: 201 });
    assert.equal(await sandbox.files.upload(join(dir, "in"), "/srv/a b&c", { mode: "0755", progress }), data.length);
    assert.equal(fake.asked[0]!.path, `/v1/sandboxes/${SANDBOX.id}/fs?path=%2Fsrv%2Fa+b%26c&mode=0755`);
    assert.ok(fake.asked[0]!.body.equals(data));
    assert.deepEqual(seen.at(-1), [data.length, data.length]);

    fake.say({ status: 204 });
    await sandbox.files.write("/a", "text");
    await sandbox.files.write("/b", new Uint8Array([1, 2]));
    assert.deepEqual([fake.asked[1]!.body.toString(), [...fake.asked[2]!.body]], ["text", [1, 2]]);

    fake.say({ body: data });
    assert.equal(await sandbox.files.download("/srv/a", join(dir, "out"), { progress }), data.length);
    assert.ok((await readFile(join(dir, "out"))).equals(data));
    assert.ok(Buffer.from(await sandbox.files.read("/srv/a")).equals(data));

    await writeFile(join(dir, "out"), "old");
    fake.say({ chunks: ["half"], cut: true });
    await assert.rejects(sandbox.files.download("/a", join(dir, "out")), berth.ConnectionFailed);
    assert.equal(await readFile(join(dir, "out"), "utf8"), "old");
    assert.deepEqual(await readdir(dir), ["in", "out"]);
  } finally {
    await rm(dir, { recursive: true });
  }
  fake.say({ json: { path: "/", entries: [{ name: "a" }] } });
  assert.deepEqual(
    (await sandbox.files.list("/")).map((e) => e.name),
    ["a"],
  );
  assert.ok(await sandbox.files.exists("/a"));
  fake.say({ status: 404, json: { error: "no such file or directory" } });
  assert.equal(await sandbox.files.exists("/a"), false);
  fake.say({ status: 404, json: { error: "not found" } });
  await assert.rejects(sandbox.files.exists("/a"), berth.NotFound);
  fake.say({ status: 204 });
  await sandbox.files.delete("/d", { recursive: true });
  await sandbox.files.mkdir("/e");
  assert.deepEqual(
    fake.asked.slice(-2).map((a) => [a.method, a.path.split("/fs")[1]]),
    [
      ["DELETE", "?path=%2Fd&recursive=true"],
      ["POST", "/dir?path=%2Fe"],
    ],
  );
});

test("pieces go to the next replica when one is away", async () => {
  const dir = await mkdtemp(join(tmpdir(), "berth-"));
  try {
    await writeFile(join(dir, "in"), "abc");
    const away = await refusing();
    const pieces = async function* (): AsyncGenerator<Uint8Array> {
      yield new Uint8Array([97]);
      yield new Uint8Array([98, 99]);
    };
    const whole = new Blob(["abc"]).stream() as ReadableStream<Uint8Array>;
    for (const send of [
      (at: berth.Sandbox) => at.files.upload(join(dir, "in"), "/x"),
      (at: berth.Sandbox) => at.files.write("/x", pieces()),
      (at: berth.Sandbox) => at.files.write("/x", whole),
    ]) {
      // The first replica goes away between two calls.
      fake.say({ json: SANDBOX });
      const routed: typeof fetch = (input, init) =>
        fetch(init?.method === "GET" ? String(input).replace(away, fake.url) : input, init);
      const at = await fake.client({ url: [away, fake.url], fetch: routed, retries: 0 }).sandboxes.get(SANDBOX.id);
      fake.asked.length = 0;
      fake.say({ status: 201 });
      await send(at);
      assert.deepEqual(fake.asked.map((a) => a.body.toString()), ["abc"]);
    }
  } finally {
    await rm(dir, { recursive: true });
  }
});

test("pieces that nobody takes are no longer read", async () => {
  const client = fake.client({ url: await refusing(), retries: 0 });
  let returned = false;
  const pieces: AsyncIterable<Uint8Array> = {
    [Symbol.asyncIterator]: () => ({
      next: () => Promise.resolve({ value: new Uint8Array([1]), done: false }),
      return: () => ((returned = true), Promise.resolve({ value: undefined, done: true })),
    }),
  };
  await assert.rejects(client.run(berth.operations.writeFile("x", pieces, { path: "/x" })), berth.ConnectionFailed);
  assert.ok(returned);
});

test("long input is sent in pieces", async () => {
  const server = await sockets();
  try {
    sandbox = await atSockets(server.url);
    const text = "a€𝄞".repeat(100_000);
    const data = new Uint8Array(1_200_000).map((_, i) => i);
    const process = await sandbox.process(["cat"]);
    await process.recv(5);
    for (const given of [text, data]) {
      process.write(given);
      const whole = Buffer.from(given);
      const echoed: Uint8Array[] = [];
      for (let n = 0; n < whole.length; n += echoed.at(-1)!.length) {
        const piece = await process.recv(60);
        assert.ok(piece.type === "stderr");
        echoed.push(piece.data);
      }
      assert.ok(Buffer.concat(echoed).equals(whole));
    }
    process.close();
    const pty = await sandbox.pty();
    pty.send(data);
    const echoed: Uint8Array[] = [];
    for (let n = 0; n < data.length; n += echoed.at(-1)!.length) {
      echoed.push((await pty.recv(60))!);
    }
    assert.ok(Buffer.concat(echoed).equals(data));
    pty.close();
  } finally {
    server.stop();
  }
});

test("a fork tells which children failed", async () => {
  const failed = [{ index: 1, error: "insufficient host memory for sandbox" }];
  fake.say({ status: 201, json: { parent_id: "p", mode: "cold", children: [SANDBOX], failed, pause_ms: 4 } });
  const children = await sandbox.fork(2);
  assert.deepEqual(children.map((c) => c.id), [SANDBOX.id]);
  assert.deepEqual([children.failed, children.pauseMs], [failed, 4]);
});

test("a fork tree keeps the winner", async () => {
  const children = ["one", "two", "three"].map((id) => ({ ...SANDBOX, id }));
  fake.say((asked) =>
    asked.path.endsWith("/fork-tree")
      ? { status: 201, json: { tree_id: "t", parent_id: "p", children, failed: [], pause_ms: 4, stored: true } }
      : asked.path.endsWith("/promote")
        ? { json: { promoted: children[1], deleted: ["one", "three"] } }
        : { status: 204 },
  );
  {
    await using tree = await sandbox.forkTree(3, { metadata: { try: 1 } });
    assert.deepEqual([tree.pauseMs, tree.children.map((c) => c.id)], [4, ["one", "two", "three"]]);
    assert.equal((await tree.promote(tree.children[1]!, { cleanupSiblings: true })).id, "two");
  }
  assert.deepEqual(
    fake.asked.map((a) => a.path.split("/").slice(-2).join("/")),
    [`${SANDBOX.id}/fork-tree`, "two/promote"],
  );
  assert.deepEqual(JSON.parse(fake.asked[1]!.body.toString()), { tree_id: "t", cleanup_siblings: true });
  {
    await using _tree = await sandbox.forkTree(3);
  }
  assert.deepEqual(new Set(fake.asked.slice(-3).map((a) => a.path.split("/").pop())), new Set(["one", "two", "three"]));
});

test("a terminal", async () => {
  const server = await sockets();
  try {
    sandbox = await atSockets(server.url);
    const pty = await sandbox.pty({ cols: 100, rows: 30 });
    pty.send("ls\r");
    assert.equal(Buffer.from((await pty.recv(5))!).toString(), "ls\r");
    await assert.rejects(pty.recv(0.01), berth.TimeoutError);
    pty.resize(120, 40);
    pty.signal("TERM");
    assert.deepEqual(await all(pty), []);
    assert.equal(pty.exitCode, 143);
    pty.close();
    const killed = await sandbox.pty();
    killed.signal("KILL");
    await assert.rejects(killed.recv(5), { message: "the connection was closed: the guest is gone" });
    assert.throws(() => killed.send("x"), berth.StreamBroken);
  } finally {
    server.stop();
  }
});

test("a command with open input", async () => {
  const server = await sockets();
  try {
    sandbox = await atSockets(server.url);
    const process = await sandbox.process(["cat", "-"]);
    const first = await process.recv(5);
    assert.ok(first.type === "stdout");
    assert.deepEqual(JSON.parse(first.text), { cmd: ["cat", "-"] });
    process.write(new Uint8Array([255]));
    const second = await process.recv(5);
    assert.ok(second.type === "stderr");
    assert.deepEqual([...second.data], [255]);
    process.closeStdin();
    assert.deepEqual(await all(process), [{ type: "exit", exitCode: 143, durationMs: 1, timedOut: false }]);
    process.close();
    const failing = await sandbox.process("x");
    failing.signal("INT");
    await assert.rejects(all(failing), { message: "agent unreachable" });
    failing.close();
  } finally {
    server.stop();
  }
});

test("a socket whose other end is silent ends", async () => {
  const server = await sockets();
  try {
    const silent = await connect(`${server.url.replace("http", "ws")}/exec/pty`, "k", 0.05);
    await assert.rejects(silent.receive(5), { message: "the connection was closed: the service is silent" });
    assert.throws(() => silent.send("x"), berth.StreamBroken);
  } finally {
    server.stop();
  }
});

test("a socket is read no faster than its messages are received", async () => {
  const said: string[] = [];
  const say = (what: string) => () => void said.push(what);
  const connection = new Connection({ send: say("send"), close: say("close"), pause: say("pause"), resume: say("resume") });
  const mebibyte = new Uint8Array(1 << 20);
  connection.push("x");
  for (let i = 0; i < 8; i++) {
    assert.deepEqual(said, []);
    connection.push(mebibyte);
  }
  assert.deepEqual(said, ["pause"]);
  assert.equal(await connection.receive(5), "x");
  for (let i = 0; i < 8; i++) {
    assert.equal(await connection.receive(5), mebibyte);
  }
  assert.equal(said[1], "resume");
  said.length = 0;
  connection.close(); // the end of what was sent is still to come
  for (let i = 0; i < 9; i++) {
    connection.push(mebibyte);
  }
  assert.deepEqual(said, ["resume", "close"]);
});

test("a socket that is not received from is not silent, and loses nothing", async () => {
  const most = 400;
  const message = (i: number): string => String(i).padEnd(64 << 10); // more than the kernel keeps
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  await once(server, "listening");
  server.on("connection", (socket, request) => {
    for (let i = 0; request.url === "/flood" && i < most; i++) {
      socket.send(message(i));
    }
  });
  try {
    const url = `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const flooded = await connect(`${url}/flood`, "k", 0.5);
    assert.equal(await flooded.receive(5), message(0));
    const silent = await connect(url, "k", 1); // ends later than the other one would
    await assert.rejects(silent.receive(5), { message: "the connection was closed: the service is silent" });
    for (let i = 1; i < most; i++) {
      assert.equal(await flooded.receive(5), message(i));
    }
    flooded.close();
  } finally {
    server.close();
  }
});

test("a socket that is refused is told by its status", async () => {
  fake.say({ status: 409, json: { error: "sandbox not running", detail: "resume it" } });
  fake.peers.clear();
  await assert.rejects(sandbox.pty(), (e) => e instanceof berth.Conflict && e.detail === "resume it");
  // Its connection would keep the program alive.
  const [peer] = fake.peers;
  if (!peer!.destroyed) {
    await once(peer!, "close", { signal: AbortSignal.timeout(5000) });
  }
});

test("the platform's WebSocket sends the credential as a subprotocol", async () => {
  const server = await sockets();
  try {
    const platform = WebSocket as unknown as typeof globalThis.WebSocket;
    const connection = await connectPlatform(platform, `${server.url.replace("http", "ws")}/exec/pty`, "brt_k");
    connection.send(new Uint8Array([1, 2]));
    assert.deepEqual(await connection.receive(5), new Uint8Array([1, 2]));
    assert.deepEqual(server.protocols, ["berth.v1", "bearer.brt_k"]);
    connection.close();
    await assert.rejects(connectPlatform(platform, fake.url.replace("http", "ws"), "k"), /refused/);
  } finally {
    server.stop();
  }
});

test("what the platform's WebSocket does not say is asked for plainly", async () => {
  const waits: number[] = [];
  const transport = new Transport({ url: fake.url, token: "k", sleep: async (seconds) => void waits.push(seconds) });
  const platform = WebSocket as unknown as typeof globalThis.WebSocket;
  const open = (): Promise<unknown> =>
    transport.socket(berth.operations.openTerminal("x"), (url, token) => connectPlatform(platform, url, token));
  // To the fake, which knows no upgrade, both are plain requests.
  fake.say({ status: 409, json: { error: "sandbox not running" } });
  await assert.rejects(open(), berth.Conflict);
  fake.say({ status: 426, json: { error: "upgrade required" } });
  await assert.rejects(open(), berth.ConnectionFailed);
  assert.deepEqual(waits, []);
  fake.say({ status: 503, json: { error: "no leader" }, headers: { "Retry-After": "1" } });
  await assert.rejects(open(), berth.Unavailable);
  assert.ok(waits.length > 0);
});

/** A sandbox of a service that has only WebSockets. */
async function atSockets(url: string): Promise<berth.Sandbox> {
  fake.say({ json: SANDBOX });
  const routed: typeof fetch = (input, init) => fetch(String(input).replace(url, fake.url), init);
  return fake.client({ url, fetch: routed, retries: 0 }).sandboxes.get(SANDBOX.id);
}
