// Requests, retries and errors.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import * as berth from "../src/index.js";
import { Berth, operations } from "../src/index.js";
import { Fake, refusing, SANDBOX, type Answer } from "./fake.js";

const EXEC = { exit_code: 0, stdout: "hi\n", stderr: "", duration_ms: 3, timed_out: false, truncated: false };

function refused(status: number, headers: Record<string, string> = {}): Answer {
  return {
    status,
    json: { error: "max sandboxes reached", detail: "delete some", max: 10 },
    headers: { "X-Request-Id": "req-1", ...headers },
  };
}

let fake: Fake;
beforeEach(async () => {
  fake = await new Fake().start();
});
afterEach(() => fake.stop());

const body = (n: number): unknown => JSON.parse(fake.asked[n]!.body.toString());

test("create sends what was given and no more", async () => {
  fake.say({ status: 201, json: SANDBOX });
  const sandbox = await fake.client().sandboxes.create({ ttlSeconds: 60, volumes: { data: "/mnt" }, metadata: { a: [1] } });
  const asked = fake.asked[0]!;
  assert.deepEqual([asked.method, asked.path], ["POST", "/v1/sandboxes"]);
  assert.equal(asked.headers["authorization"], "Bearer brt_test_key");
  assert.ok((asked.headers["idempotency-key"] ?? "").length >= 32);
  assert.deepEqual(body(0), {
    template: "base",
    ttl_seconds: 60,
    metadata: { a: [1] },
    volumes: [{ name: "data", mount_path: "/mnt" }],
  });
  assert.equal(sandbox.previewUrl(8080), "http://8080-k7q2mz4tn6vxb3jw5yr8acdefg.preview.localhost");
});

test("a POST always has a body, and null and absent are two things", async () => {
  const sandbox = await fake.sandbox();
  await sandbox.pause();
  await sandbox.setLifecycle({ persistent: true });
  await sandbox.setLifecycle({ ttlSeconds: null });
  await sandbox.setLifecycle({ ttlSeconds: 5 });
  assert.deepEqual([0, 1, 2, 3].map(body), [{}, { persistent: true }, { ttl_seconds: null }, { ttl_seconds: 5 }]);
});

test("segments of a path stay segments", async () => {
  fake.say({ status: 404, json: { error: "not found" } });
  await assert.rejects(fake.client().sandboxes.get("../me?x=#"), berth.NotFound);
  assert.equal(fake.asked[0]!.path, "/v1/sandboxes/..%2Fme%3Fx%3D%23");
});

const classes: [number, typeof berth.APIError][] = [
  [400, berth.BadRequest],
  [401, berth.Unauthorized],
  [402, berth.PaymentRequired],
  [403, berth.Forbidden],
  [404, berth.NotFound],
  [409, berth.Conflict],
  [410, berth.APIError],
  [429, berth.LimitExceeded],
  [500, berth.ServerError],
  [501, berth.ServerError],
];
for (const [status, of] of classes) {
  test(`a refusal with ${status} is thrown at once`, async () => {
    fake.say(refused(status));
    await assert.rejects(fake.client().sandboxes.create(), (e) => {
      assert.ok(e instanceof berth.APIError);
      assert.equal(e.constructor, of);
      assert.equal(e.name, of.name);
      assert.deepEqual([e.status, e.error, e.detail, e.requestId], [status, "max sandboxes reached", "delete some", "req-1"]);
      assert.deepEqual(e.fields, { max: 10 });
      assert.equal(e.message, `max sandboxes reached: delete some (status ${status}, request req-1)`);
      return true;
    });
    assert.equal(fake.asked.length, 1);
  });
}

test("an answer that is not ours is told by its status", async () => {
  for (const text of ["<html>", "[]", '{"error": 5}', ""]) {
    fake.say({ status: 403, body: text });
    await assert.rejects(fake.client().version(), { message: "status 403 (status 403)" });
  }
  fake.say({ status: 302, headers: { Location: "http://elsewhere.invalid/" } });
  await assert.rejects(fake.client().version(), berth.APIError);
  fake.say({ body: "not json" });
  await assert.rejects(fake.client().version(), /not JSON/);
});

test("a create is tried again under its key", async () => {
  for (const status of [502, 507]) {
    fake.asked.length = fake.waits.length = 0;
    fake.say(refused(status), refused(status), { status: 201, json: SANDBOX });
    await fake.client().sandboxes.create();
    assert.equal(fake.asked.length, 3);
    assert.equal(new Set(fake.asked.map((a) => a.headers["idempotency-key"])).size, 1);
    assert.ok(fake.waits[1]! > fake.waits[0]! && fake.waits[0]! > 0);
  }
});

test("two creates have two keys", async () => {
  fake.say({ status: 201, json: SANDBOX });
  const { sandboxes } = fake.client();
  await sandboxes.create();
  await sandboxes.create();
  await sandboxes.create({ idempotencyKey: "mine" });
  const keys = fake.asked.map((a) => a.headers["idempotency-key"]);
  assert.notEqual(keys[0], keys[1]);
  assert.equal(keys[2], "mine");
});

test("tries come to an end", async () => {
  fake.say(refused(507));
  await assert.rejects(fake.client().sandboxes.create(), berth.InsufficientCapacity);
  assert.equal(fake.asked.length, 5);
});

test("503 is waited for where it says when, and a rate limit by any call", async () => {
  const sandbox = await fake.sandbox();
  fake.say(refused(503, { "Retry-After": "2" }), { json: SANDBOX });
  await sandbox.refresh();
  assert.ok(fake.waits[0]! >= 2 && fake.waits[0]! < 3);
  fake.say(refused(503));
  await assert.rejects(sandbox.refresh(), berth.Unavailable);
  fake.say(refused(429, { "Retry-After": "1" }), { json: EXEC });
  assert.ok((await sandbox.exec("true")).ok);
  assert.ok(fake.waits[1]! >= 1 && fake.waits[1]! < 2);
});

test("an hour is not waited for", async () => {
  const sandbox = await fake.sandbox();
  fake.say(refused(503, { "Retry-After": "3600" })); // an app whose workspace is paused
  await assert.rejects(sandbox.refresh(), (e) => e instanceof berth.Unavailable && e.retryAfter === 3600);
  assert.deepEqual([fake.asked.length, fake.waits.length], [1, 0]);
});

test("a command is never run twice", async () => {
  const sandbox = await fake.sandbox();
  fake.say(refused(502));
  await assert.rejects(sandbox.exec("pay-once"), berth.Unreachable);
  fake.say({ cut: true });
  await assert.rejects(sandbox.exec("pay-once"), berth.ConnectionFailed);
  assert.equal(fake.asked.length, 2);
});

test("a broken connection is made again for what may be done twice", async () => {
  fake.say({ cut: true }, { json: SANDBOX });
  assert.equal((await fake.client().sandboxes.get("x")).status, "running");
  assert.equal(fake.asked.length, 2);
});

test("the next replica is asked when one is away", async () => {
  const away = await refusing();
  fake.say({ json: SANDBOX });
  const sandbox = await fake.client({ url: `${away}, ${fake.url}/` }).sandboxes.get("x");
  fake.say({ json: EXEC });
  await sandbox.exec("true"); // no longer sent to the other
  assert.deepEqual(fake.waits, [0]);
  await assert.rejects(fake.client({ url: away, retries: 2 }).version(), (e) => {
    assert.ok(e instanceof berth.ConnectionFailed && e.message.includes(away), String(e));
    return true;
  });
  assert.equal(fake.waits.length, 3);
});

test("a call after one that was not answered begins with another replica", async () => {
  const other = await new Fake().start();
  try {
    fake.say({ json: SANDBOX });
    const sandbox = await fake.client({ url: [fake.url, other.url] }).sandboxes.get("x");
    fake.say({ cut: true });
    await assert.rejects(sandbox.exec("pay-once"), berth.ConnectionFailed);
    other.say({ json: EXEC });
    assert.ok((await sandbox.exec("pay-once")).ok);
    assert.deepEqual([fake.asked.length, other.asked.length], [2, 1]);
  } finally {
    other.stop();
  }
});

test("the global fetch is called as a function", async () => {
  const { fetch } = globalThis;
  globalThis.fetch = function (this: unknown, input: RequestInfo | URL, init?: RequestInit) {
    if (this !== undefined && this !== globalThis) {
      throw new TypeError("Illegal invocation"); // as in browsers
    }
    return fetch(input, init);
  };
  try {
    fake.say({ json: SANDBOX });
    await fake.client().sandboxes.get("x");
  } finally {
    globalThis.fetch = fetch;
  }
});

test("lists are read page by page", async () => {
  fake.say((asked) =>
    asked.path.includes("cursor=c2")
      ? { json: [{ ...SANDBOX, id: "third" }] }
      : {
          json: [{ ...SANDBOX, id: "first" }, { ...SANDBOX, id: "second" }],
          headers: { Link: '</v1/sandboxes?cursor=c2&limit=2>; rel="next"' },
        },
  );
  const ids = [];
  for await (const s of fake.client().sandboxes.list()) {
    ids.push(s.id);
  }
  assert.deepEqual(ids, ["first", "second", "third"]);
});

test("settings come from the environment", async () => {
  for (const name of ["BERTH_URL", "BERTH_URLS", "BERTH_TOKEN"]) {
    delete process.env[name];
  }
  assert.throws(() => new Berth({ token: "k" }), /no URL/);
  assert.throws(() => new Berth({ url: "ftp://x", token: "k" }), /want http/);
  assert.throws(() => new Berth({ url: fake.url }), /no token/);
  process.env["BERTH_URLS"] = ""; // as good as none
  process.env["BERTH_URL"] = fake.url;
  process.env["BERTH_TOKEN"] = "from-env";
  fake.say({ json: SANDBOX });
  await new Berth().sandboxes.get("x");
  assert.equal(fake.asked[0]!.headers["authorization"], "Bearer from-env");
});

test("any operation can be called", async () => {
  const client = fake.client();
  fake.say({ json: { id: "u-1", email: "ada@example.com", current_org: null, orgs: [] } });
  assert.equal((await client.call(operations.me())).email, "ada@example.com");
  fake.say({ status: 204 });
  await client.run(operations.revokeToken("k3v7q2xa"));
  fake.say({ json: [] });
  for await (const token of client.pages(operations.listTokens())) {
    assert.fail(token.name);
  }
  fake.say({ body: "backup" });
  assert.equal(await (await client.stream(operations.backup())).text(), "backup");
});
