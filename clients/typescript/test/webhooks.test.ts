// Verification of webhooks, by the cases that the Go client has too.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";
import { BerthError, InvalidSignature, verifyWebhook } from "../src/index.js";

interface Case {
  name: string;
  secret: string;
  signature: string;
  body: string;
  now: number;
  valid: boolean;
}

// From dist/test.
const file = new URL("../../../../controlplane/api/testdata/webhooks.json", import.meta.url);
const cases = JSON.parse(await readFile(file, "utf8")) as Case[];

for (const c of cases) {
  test(c.name, async () => {
    const body = new TextEncoder().encode(c.body);
    const plain = { "X-Service-Signature": c.signature };
    for (const headers of [plain, new Map([["x-service-signature", c.signature]])]) {
      const verified = verifyWebhook(c.secret, headers as typeof plain, body, { now: c.now });
      if (!c.valid) {
        await assert.rejects(verified, InvalidSignature);
        continue;
      }
      const event = await verified;
      assert.equal(event.id, "wd_k7m2qz4xw3v5n6a2j7p4t5r6sd");
      assert.equal(event.type, "endpoint.test");
      assert.equal(event.data["endpoint_id"], "we-k7m2");
    }
  });
}

test("a body as a string", async () => {
  const c = cases[0]!;
  const event = await verifyWebhook(c.secret, { "x-service-signature": c.signature }, c.body, { now: c.now });
  assert.equal(event.workspace, "ws-k7m2");
  await assert.rejects(verifyWebhook(c.secret, { "x-service-signature": c.signature }, c.body), InvalidSignature);
});

test("no secret", async () => {
  await assert.rejects(verifyWebhook("", {}, "{}"), BerthError);
});
