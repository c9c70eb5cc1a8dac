// Apps and their deployments.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import * as berth from "../src/index.js";
import { Fake, type Answer } from "./fake.js";

const PATH = "/v1/apps/app-1";
const APP = { id: "app-1", name: "shop", status: "created", url: "https://app-1.app.example.com/" };
const DEPLOYMENT = { id: "dep-1", app_id: "app-1", status: "queued", phases: [] };
const LINES = ['event: stdout\ndata: {"line":"building"}\n\n', 'event: stderr\ndata: {"line":"warning"}\n\n'];
const LIVE = `event: end\ndata: ${JSON.stringify({ ...DEPLOYMENT, status: "live" })}\n\n`;

const at = (status: string, more: object = {}): Answer => ({ json: { ...DEPLOYMENT, status, ...more } });
const stream = (chunks: string[], cut = false): Answer => ({ chunks, cut, headers: { "content-type": "text/event-stream" } });

let fake: Fake;
beforeEach(async () => {
  fake = await new Fake().start();
});
afterEach(() => fake.stop());

const body = (n: number): unknown => JSON.parse(fake.asked[n]!.body.toString());
const asked = (): string[] => fake.asked.map((a) => `${a.method} ${a.path}`);

async function app(): Promise<berth.App> {
  fake.say({ json: APP });
  const got = await fake.client().apps.get("app-1");
  fake.asked.length = 0;
  return got;
}

test("an app without a repository is uploaded", async () => {
  fake.say({ status: 201, json: APP });
  const shop = await fake.client().apps.create({ name: "shop", port: 8000 });
  assert.deepEqual(body(0), { name: "shop", source: "upload", port: 8000 });
  assert.equal(shop.url, APP.url);
  await fake.client().apps.create({ name: "shop", git_url: "https://example.com/shop" });
  assert.deepEqual(body(1), { name: "shop", git_url: "https://example.com/shop" });
});

test("a deployment is followed through a broken stream", async () => {
  const shop = await app();
  fake.say(
    { json: { source_id: "src-1", size_bytes: 3 } },
    { status: 202, json: DEPLOYMENT },
    stream([LINES[0]!], true),
    stream([LINES[0]!, 'event: error\ndata: {"error":"no leader"}\n\n']),
    stream([...LINES, LIVE]),
  );
  const lines: string[] = [];
  const deployment = await shop.deploy({
    source: new TextEncoder().encode("tgz"),
    log: (l) => lines.push(`${l.stream} ${l.line}`),
  });
  assert.deepEqual(asked().slice(0, 2), [`PUT ${PATH}/source`, `POST ${PATH}/deploys`]);
  assert.equal(fake.asked[0]!.body.toString(), "tgz");
  assert.deepEqual(body(1), { source_id: "src-1" });
  assert.deepEqual(lines, ["stdout building", "stderr warning"]);
  assert.equal(deployment.status, "live");
});

test("a deployment that began again elsewhere says all of its lines", async () => {
  const shop = await app();
  const says = (line: string): string => `event: stdout\ndata: ${JSON.stringify({ line })}\n\n`;
  fake.say(
    { status: 202, json: DEPLOYMENT },
    stream([says("clone"), says("on a"), says("built")], true),
    stream([says("clone"), says("on b"), says("built"), LIVE]),
  );
  const lines: string[] = [];
  await shop.deploy({ log: (l) => lines.push(l.line) });
  assert.deepEqual(lines, ["clone", "on a", "built", "on b", "built"]);
});

test("a deployment that fails says why", async () => {
  const shop = await app();
  fake.say(at("queued"), at("building"), at("failed", { error: "npm ERR! missing script: build" }));
  await assert.rejects(shop.deploy({ gitRef: "main" }), (e) => {
    assert.ok(e instanceof berth.DeploymentFailed);
    return e.message.includes("missing script");
  });
  fake.say(at("queued"), at("failed", { error: "cancelled" }));
  assert.equal((await (await shop.rollback({ wait: false })).cancel()).status, "failed");
});

test("what changes an app", async () => {
  const shop = await app();
  fake.say({ json: APP });
  await shop.update({ port: null, start_command: "x" });
  fake.say({ json: { key: "A", value: "b" } });
  await shop.setEnv("A", "b", { secret: true });
  fake.say({ json: [{ key: "A", value: "b" }] });
  assert.equal((await shop.importEnv("A=b"))[0]?.key, "A");
  assert.equal((await shop.env())[0]?.value, "b");
  const domain = { domain: "shop.example.com", status: "pending", dns: [{ type: "TXT", name: "_berth.shop.example.com", value: "v" }] };
  fake.say({ status: 201, json: domain });
  assert.equal((await shop.addDomain("shop.example.com")).dns[0]?.type, "TXT");
  fake.say({ json: { ...domain, status: "verified" } });
  assert.equal((await shop.verifyDomain("shop.example.com")).status, "verified");
  assert.equal((await shop.domain("shop.example.com")).domain, "shop.example.com");
  fake.say({ json: [domain] });
  for await (const d of shop.domains()) assert.equal(d.domain, "shop.example.com");
  fake.say({ status: 204 });
  await shop.removeDomain("shop.example.com");
  await shop.deleteEnv("A");
  await shop.delete();
  assert.deepEqual(asked(), [
    `PATCH ${PATH}`,
    `PUT ${PATH}/env/A`,
    `POST ${PATH}/env/import`,
    `GET ${PATH}/env`,
    `POST ${PATH}/domains`,
    `POST ${PATH}/domains/shop.example.com/verify`,
    `GET ${PATH}/domains/shop.example.com`,
    `GET ${PATH}/domains`,
    `DELETE ${PATH}/domains/shop.example.com`,
    `DELETE ${PATH}/env/A`,
    `DELETE ${PATH}`,
  ]);
  assert.deepEqual(body(0), { port: null, start_command: "x" });
});
