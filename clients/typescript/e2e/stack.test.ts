// Tests against the Berth that BERTH_URL and BERTH_TOKEN name.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { get } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test as unlimited } from "node:test";
import { promisify } from "node:util";
import * as berth from "../src/index.js";
import { Berth, type Sandbox } from "../src/index.js";

/** Seconds until the remains of a killed test run expire. */
const ttlSeconds = 900;
/** Milliseconds: far more than any test takes, so that a hanging test fails with its name. */
const timeout = 240_000;
const test = (name: string, body: () => Promise<void>): void => void unlimited(name, { timeout }, body);

const client = new Berth();
let sandbox: Sandbox;
before(async () => {
  sandbox = await client.sandboxes.create({ ttlSeconds, env: { GREETING: "hello" } });
});
after(() => sandbox.delete());

async function all<T>(from: AsyncIterable<T>): Promise<T[]> {
  const out = [];
  for await (const one of from) {
    out.push(one);
  }
  return out;
}

const text = (output: berth.Output[], type: "stdout" | "stderr"): string =>
  Buffer.concat(output.flatMap((o) => (o.type === type ? [o.data] : []))).toString("latin1");

/** Requests a preview, even if this machine does not resolve names under .localhost. */
function look(url: string, headers: Record<string, string> = {}): Promise<{ status: number; body: string }> {
  const { hostname, port, host, pathname } = new URL(url);
  return new Promise((done, fail) => {
    get(
      { host: hostname.endsWith(".localhost") ? "127.0.0.1" : hostname, port, path: pathname, headers: { host, ...headers } },
      (response) => {
        let body = "";
        response.on("data", (chunk: Buffer) => (body += chunk.toString()));
        response.on("end", () => done({ status: response.statusCode ?? 0, body }));
      },
    ).on("error", fail);
  });
}

test("a command", async () => {
  const result = await sandbox.exec("echo $GREETING; echo $MORE >&2; pwd; cat; exit 3", {
    cwd: "/tmp",
    env: { MORE: "more" },
    stdin: "in",
  });
  assert.deepEqual([result.exitCode, result.stdout, result.stderr], [3, "hello\n/tmp\nin", "more\n"]);
  assert.deepEqual([...(await sandbox.exec(["printf", "\\377\\0"])).stdoutBytes], [255, 0]);
  assert.ok((await sandbox.exec("sleep 60", { timeoutSeconds: 1 })).timedOut);
  assert.equal((await sandbox.exec("echo streamed", { timeoutSeconds: 600 })).stdout, "streamed\n");
  await assert.rejects(sandbox.exec("false", { check: true }), berth.CommandFailed);
  await assert.rejects(sandbox.exec(""), (e) => e instanceof berth.BadRequest && e.error === "cmd required" && !!e.requestId);
});

test("output as it comes", async () => {
  const output = await all(sandbox.stream("echo one; read x; echo $x >&2; printf '\\377'; exit 7", { stdin: "two\n" }));
  const end = output.at(-1)!;
  assert.ok(end.type === "exit");
  assert.equal(end.exitCode, 7);
  assert.deepEqual([text(output, "stdout"), text(output, "stderr")], ["one\n\u00ff", "two\n"]);
});

test("leaving an output kills the command", async () => {
  for await (const piece of sandbox.stream("while echo tick; do sleep 0.1; done # left early")) {
    assert.equal(piece.type, "stdout");
    break;
  }
  await sandbox.exec("for i in $(seq 100); do pgrep -f '[l]eft early' || exit 0; sleep 0.1; done; exit 1", { check: true });
});

test("a command with open input", async () => {
  const process = await sandbox.process("while read x; do echo got $x; done; echo end");
  process.write("a\n");
  assert.equal(text([await process.recv(30)], "stdout"), "got a\n");
  process.write(new TextEncoder().encode("b\n"));
  assert.equal(text([await process.recv(30)], "stdout"), "got b\n");
  process.closeStdin();
  assert.equal(text(await all(process), "stdout"), "end\n");
  assert.equal(process.exit?.exitCode, 0);
  process.close();
  const sleeping = await sandbox.process(["sleep", "60"]);
  sleeping.signal("TERM");
  await all(sleeping);
  assert.equal(sleeping.exit?.exitCode, 143);
  sleeping.close();
});

test("a terminal", async () => {
  const pty = await sandbox.pty({ cols: 100, rows: 30, cwd: "/tmp" });
  let seen = Buffer.alloc(0);
  const until = async (wanted: string): Promise<void> => {
    while (!seen.includes(wanted)) {
      seen = Buffer.concat([seen, (await pty.recv(30)) ?? assert.fail(`it ended before ${wanted}`)]);
    }
    seen = seen.subarray(seen.indexOf(wanted) + wanted.length);
  };
  pty.send("echo $((20+1)):$(stty size):$PWD\r");
  await until("21:30 100:/tmp");
  pty.resize(132, 43);
  pty.send("stty size\r");
  await until("43 132");
  // A shell that is interrupted while it starts a command may wait for that command.
  pty.send("sh -c 'echo runs-$((6*6)); exec sleep 600'\r");
  await until("runs-36");
  pty.send("\x03");
  await until("# "); // earlier input may be lost
  pty.send("echo grüß-$((6*7))\r");
  await until("grüß-42");
  pty.send("exit 5\r");
  await all(pty);
  assert.equal(pty.exitCode, 5);
  pty.close();
});

test("files", async () => {
  const { files } = sandbox;
  await files.write("/srv/deep/in/a b.txt", "grüß\n", { mode: "0640" });
  assert.equal(await files.readText("/srv/deep/in/a b.txt"), "grüß\n");
  const stat = await files.stat("/srv/deep/in/a b.txt");
  assert.deepEqual([stat.type, stat.size_bytes, stat.mode], ["file", 7, "0640"]);
  await files.mkdir("/srv/deep/empty");
  assert.deepEqual(
    (await files.list("/srv/deep")).map((e) => [e.name, e.type]),
    [
      ["empty", "dir"],
      ["in", "dir"],
    ],
  );
  await assert.rejects(files.delete("/srv/deep"), berth.Conflict);
  await files.delete("/srv/deep", { recursive: true });
  assert.equal(await files.exists("/srv/deep"), false);
  await assert.rejects(files.read("/srv/deep"), berth.NotFound);
});

test("64 MiB there and back", async () => {
  const dir = await mkdtemp(join(tmpdir(), "berth-"));
  try {
    const data = randomBytes(64 << 20);
    await writeFile(join(dir, "out"), data);
    const told: [number, number | undefined][] = [];
    const progress = (done: number, total: number | undefined): void => void told.push([done, total]);
    assert.equal(await sandbox.files.upload(join(dir, "out"), "/srv/big", { progress }), data.length);
    assert.deepEqual(told.at(-1), [data.length, data.length]);
    const there = (await sandbox.exec("sha256sum /srv/big", { check: true })).stdout.split(" ")[0];
    assert.equal(await sandbox.files.download("/srv/big", join(dir, "back"), { progress }), data.length);
    assert.deepEqual(told.at(-1), [data.length, data.length]);
    const back = createHash("sha256");
    for await (const chunk of createReadStream(join(dir, "back"))) {
      back.update(chunk as Buffer);
    }
    assert.deepEqual([createHash("sha256").update(data).digest("hex"), back.digest("hex")], [there, there]);
    await sandbox.files.delete("/srv/big");
  } finally {
    await rm(dir, { recursive: true });
  }
});

const serve = `
mkdir -p /srv/www
echo served > /srv/www/page
nohup python3 -m http.server --directory /srv/www 8000 >/dev/null 2>&1 &
until curl -s localhost:8000 >/dev/null; do sleep 0.1; done
`;

test("a preview", async () => {
  await sandbox.exec(serve, { check: true, timeoutSeconds: 300 });
  assert.deepEqual(await look(`${sandbox.previewUrl(8000)}/page`), { status: 200, body: "served\n" });
  assert.equal((await sandbox.ports.list()).find((p) => p.port === 8000)?.url, sandbox.previewUrl(8000));
  await sandbox.ports.add(8000, "web");
  assert.equal((await sandbox.ports.list()).find((p) => p.port === 8000)?.label, "web");
  await sandbox.ports.remove(8000);

  await using hidden = await client.sandboxes.create({ ttlSeconds, preview: "token" });
  await hidden.exec(serve, { check: true, timeoutSeconds: 300 });
  assert.equal((await look(`${hidden.previewUrl(8000)}/page`)).status, 401);
  const { token } = await hidden.previewToken({ port: 8000, ttlSeconds: 60 });
  assert.equal((await look(`${hidden.previewUrl(8000)}/page`, { "berth-preview-token": token })).body, "served\n");
});

test("its life, and what is told of it", async () => {
  const own = await client.sandboxes.create({ ttlSeconds, metadata: { n: [1, null] } });
  assert.deepEqual(own.metadata, { n: [1, null] });
  assert.ok((await all(client.sandboxes.list())).some((s) => s.id === own.id));
  const running = (await own.events({ tail: 50 })).find((e) => e.type === "sandbox.running")!;
  const following = all(own.followEvents({ since: running.ts }));
  assert.equal((await own.pause()).status, "paused");
  await assert.rejects(own.exec("true"), berth.Conflict);
  await own.resume();
  await own.exec("mkdir -p /run/own && echo in memory > /run/own/note", { check: true });
  assert.equal((await own.hibernate()).status, "hibernated");
  assert.equal((await own.exec("cat /run/own/note")).stdout, "in memory\n"); // this wakes it
  assert.equal((await own.setLifecycle({ ttlSeconds: null, persistent: true })).expires_at, null);
  assert.equal((await own.lifecycle()).persistent, true);
  await own.delete();
  assert.deepEqual(
    (await following).map((e) => e.type).filter((type) => type !== "sandbox.ssh_ready"), // at any time
    ["sandbox.paused", "sandbox.resumed", "sandbox.hibernated", "sandbox.woken", "sandbox.deleted"],
  );
  await assert.rejects(own.refresh(), berth.NotFound);
});

test("logs", async () => {
  assert.equal(typeof (await sandbox.logs({ stream: "both", tail: 10 })), "string");
  const lines = sandbox.followLogs({ stream: "console" });
  const told = (async () => {
    for await (const line of lines) {
      if (line.line.includes("told to the console")) {
        return line.stream;
      }
    }
    return "";
  })();
  await sandbox.exec("echo 'told to the console' > /dev/console", { check: true });
  assert.equal(await told, "console");
});

test("snapshots and forks", async () => {
  await using parent = await client.sandboxes.create({ ttlSeconds });
  await parent.exec("mkdir -p /run/own && echo before > /run/own/note", { check: true }); // only in its memory
  const snapshot = await parent.snapshot("before");
  try {
    assert.deepEqual(
      (await all(client.snapshots.list({ sandboxId: parent.id }))).map((s) => s.id),
      [snapshot.id],
    );
    await using copy = await client.sandboxes.create({ fromSnapshot: snapshot, ttlSeconds });
    assert.equal((await copy.exec("cat /run/own/note")).stdout, "before\n");
  } finally {
    await client.snapshots.delete(snapshot.id);
  }
  {
    const [cold] = await parent.fork();
    await using fork = cold!;
    assert.equal(fork.info.forked_from, parent.id);
    assert.notEqual((await fork.exec("cat /run/own/note")).exitCode, 0); // booted afresh
  }
  let winner: Sandbox;
  {
    await using tree = await parent.forkTree(2, { metadata: { try: "two" } });
    assert.deepEqual(tree.failed, []);
    const [first, second] = tree.children as [Sandbox, Sandbox];
    await first.exec("echo first > /run/own/note", { check: true });
    assert.equal((await second.exec("cat /run/own/note")).stdout, "before\n");
    winner = await tree.promote(first, { cleanupSiblings: true });
    await assert.rejects(second.refresh(), berth.NotFound);
  }
  await using kept = winner;
  assert.equal(kept.metadata["fork_tree_role"], "promoted");
  assert.equal((await kept.exec("cat /run/own/note")).stdout, "first\n");
});

test("volumes and templates", async () => {
  const name = `v-${randomBytes(6).toString("hex")}`;
  assert.equal((await client.volumes.create(name, { sizeMb: 64 })).size_mb, 64);
  try {
    await using one = await client.sandboxes.create({ ttlSeconds, volumes: { [name]: "/data" } });
    await one.exec("echo kept > /data/note && sync", { check: true });
    assert.equal((await client.volumes.get(name)).attached_to, one.id);
    await assert.rejects(client.volumes.delete(name), berth.Conflict);
    await one.delete();
  } finally {
    await client.volumes.delete(name);
  }
  assert.ok((await all(client.templates.list())).some((t) => t.name === "base"));
  assert.equal((await client.templates.get("base")).status, "ready");
  await assert.rejects(client.templates.get(name), berth.NotFound);
});

test("errors", async () => {
  await assert.rejects(client.sandboxes.get("a".repeat(26)), berth.NotFound);
  await assert.rejects(client.sandboxes.create({ template: "no-such-template" }), berth.BadRequest);
  await assert.rejects(new Berth({ token: "brt_aaaaaaaa_bbbb" }).sandboxes.get("x"), berth.Unauthorized);
  await assert.rejects((await client.sandboxes.get(sandbox.id)).languageServer("cobol"), berth.NotFound);
});

test("the example", async () => {
  const { stdout } = await promisify(execFile)(process.execPath, ["dist/examples/fork-tree.js"], { timeout: 300_000 });
  assert.ok(stdout.includes("2 ways from one moment"), stdout);
  assert.ok(stdout.endsWith("kept: chosen\n"), stdout);
});
