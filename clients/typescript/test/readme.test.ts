// The README shows the example that the tests run.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

test("the README has the example that is run", async () => {
  const example = await readFile("examples/fork-tree.ts", "utf8");
  assert.ok((await readFile("README.md", "utf8")).includes(`\`\`\`ts\n${example}\`\`\`\n`));
});
