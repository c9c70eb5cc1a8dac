// Databases, and SQL by their brokers.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import * as berth from "../src/index.js";
import { Fake, type Answer } from "./fake.js";

const ID = "7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37";
const PATH = `/v1/databases/${ID}`;
const SLEEPING = {
  id: ID,
  status: "hibernated",
  template: "postgres-16",
  size: "1g",
  always_on: false,
  created_at: "2026-11-20T13:05:09.412Z",
  host: `${ID}.db.example.com`,
  port: 5432,
  broker_url: `https://berth.example.com${PATH}/proxy`,
};
const DATABASE = {
  ...SLEEPING,
  status: "running",
  database: "app",
  username: "app",
  password: "secret",
  connection_url: `postgres://app:secret@${ID}.db.example.com:5432/app`,
  broker_token: "brk_1",
};
const RESULT = { columns: [{ name: "n", type: "int4" }], rows: [[42]], row_count: 1, command: "SELECT", truncated: false };

const at = (status: string, more: object = {}): Answer => ({ json: { ...SLEEPING, status, ...more } });

let fake: Fake;
beforeEach(async () => {
  fake = await new Fake().start();
});
afterEach(() => fake.stop());

const body = (n: number): unknown => JSON.parse(fake.asked[n]!.body.toString());
const asked = (): string[] => fake.asked.map((a) => `${a.method} ${a.path}`);

async function running(): Promise<berth.Database> {
  fake.say({ json: DATABASE });
  const database = await fake.client().databases.get(ID);
  fake.asked.length = 0;
  return database;
}

test("create waits until the database runs", async () => {
  fake.say(at("provisioning"), at("provisioning", { error: "PostgreSQL is starting" }), { json: DATABASE });
  const database = await fake.client().databases.create({ label: "orders", size: "4g" });
  assert.deepEqual(asked(), ["POST /v1/databases", `GET ${PATH}`, `GET ${PATH}`]);
  assert.deepEqual(body(0), { label: "orders", size: "4g" });
  assert.ok((fake.asked[0]!.headers["idempotency-key"] ?? "").length >= 32);
  assert.equal(database.connectionUrl, DATABASE.connection_url);
});

test("a create that fails says why", async () => {
  fake.say(at("provisioning"), at("failed", { error: "no available compute node" }));
  await assert.rejects(fake.client().databases.create(), (e) => {
    assert.ok(e instanceof berth.DatabaseFailed);
    assert.equal(e.message, "no available compute node");
    return true;
  });
});

test("one that sleeps has no URL until it is woken", async () => {
  fake.say(at("hibernated"));
  const database = await fake.client().databases.get(ID);
  assert.throws(() => database.connectionUrl, /hibernated/);
  fake.say({ status: 202, json: { status: "waking", detail: "" } }, at("hibernated"), { json: DATABASE });
  assert.equal((await database.wake()).status, "running");
});

test("a wake that fails says why", async () => {
  fake.say(at("hibernated", { error: "of an earlier wake" }));
  const database = await fake.client().databases.get(ID);
  fake.say({ status: 202, json: { status: "waking", detail: "" } }, at("waking"), at("hibernated", { error: "no memory" }));
  await assert.rejects(database.wake(), /hibernated: no memory/);
});

test("a wake of one that runs reads its credentials", async () => {
  fake.say({ json: [{ ...SLEEPING, status: "running" }] });
  for await (const database of fake.client().databases.list()) {
    fake.say({ status: 202, json: { status: "running", detail: "" } }, { json: DATABASE });
    assert.equal((await database.wake()).connectionUrl, DATABASE.connection_url);
  }
});

test("a clone is as of a moment", async () => {
  const database = await running();
  fake.say({ status: 202, json: DATABASE });
  await database.clone({ at: new Date(Date.UTC(2026, 10, 20, 13)), label: "before", wait: false });
  assert.deepEqual([asked()[0], body(0)], [`POST ${PATH}/clone`, { label: "before", target_time: "2026-11-20T13:00:00.000Z" }]);
});

test("a failover outlives a moment without the database", async () => {
  const database = await running();
  fake.say(
    { status: 202, json: { id: ID, status: "restoring", error: "28 seconds are lost" } },
    { status: 404, json: { error: "not found" } },
    at("restoring"),
    { json: DATABASE },
  );
  assert.equal((await database.failover({ force: true })).status, "running");
  assert.deepEqual(body(0), { force: true });
});

test("rotate reads the new credentials", async () => {
  const database = await running();
  fake.say({ json: {} }, { json: DATABASE });
  await database.rotate();
  assert.deepEqual(asked(), [`POST ${PATH}/reset-credentials`, `GET ${PATH}`]);
});

test("SQL goes to the broker with its own token", async () => {
  const database = await running();
  fake.say({ json: RESULT });
  assert.deepEqual((await database.query("SELECT $1::int AS n", 42)).rows, [[42]]);
  assert.equal(asked()[0], `POST ${PATH}/proxy/query`);
  assert.equal(fake.asked[0]!.headers["authorization"], "Bearer brk_1");
  assert.deepEqual(body(0), { sql: "SELECT $1::int AS n", params: [42] });
  fake.say({ json: { results: [RESULT, RESULT] } });
  assert.equal((await database.transaction("SELECT 42 AS n", ["SELECT $1::int AS n", 42])).length, 2);
  assert.deepEqual(body(1), { queries: [{ sql: "SELECT 42 AS n" }, { sql: "SELECT $1::int AS n", params: [42] }] });
  fake.say({ json: { results: [RESULT, { error: "no such table", sqlstate: "42P01" }] } });
  assert.equal((await database.batch("SELECT 42 AS n", "SELECT * FROM nothing"))[1]!.sqlstate, "42P01");
  fake.say({ json: { tables: [], truncated: false } });
  assert.deepEqual((await database.schema()).tables, []);
  assert.deepEqual(asked().slice(1), ["POST transaction", "POST batch", "GET schema"].map((s) => s.replace(" ", ` ${PATH}/proxy/`)));
});

test("a refusal of PostgreSQL has its sqlstate", async () => {
  const database = await running();
  fake.say({ status: 400, json: { error: 'relation "nothing" does not exist', sqlstate: "42P01" } });
  await assert.rejects(database.query("SELECT * FROM nothing"), (e) => {
    assert.ok(e instanceof berth.BadRequest);
    assert.deepEqual(e.fields, { sqlstate: "42P01" });
    return true;
  });
});

test("a query of one from a list reads its token first", async () => {
  fake.say({ json: [SLEEPING] });
  for await (const database of fake.client().databases.list()) {
    fake.say(at("hibernated"), { status: 202, json: { status: "waking", detail: "" } }, { json: DATABASE }, { json: RESULT });
    assert.deepEqual((await database.query("SELECT 42 AS n")).rows, [[42]]);
  }
});
