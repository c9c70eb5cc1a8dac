// Try several ways from one moment and keep the best.
import { Berth, type Sandbox } from "berth-client";

// A process with prepared state that every attempt needs: here some text in memory.
const worker = `
import http.server, zlib
text = b"".join(b"line %d of a log, like many others\\n" % (n * n % 977) for n in range(20000))

class Try(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        size = len(zlib.compress(text, int(self.path[1:])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d" % size)

http.server.HTTPServer(("127.0.0.1", 9000), Try).serve_forever()
`;
const ask = "import sys, urllib.request as u; print(u.urlopen('http://127.0.0.1:9000/' + sys.argv[1]).read().decode())";

async function attempt(child: Sandbox, level: number): Promise<number> {
  return Number((await child.exec(["python3", "-c", ask, String(level)], { check: true })).stdout);
}

const client = new Berth();
const parent = await client.sandboxes.create({ template: "base", ttlSeconds: 900 });
try {
  await parent.files.write("/srv/worker.py", worker);
  const start = 'nohup python3 /srv/worker.py >/tmp/worker.log 2>&1 & until python3 -c "$ASK" 1; do sleep 0.2; done';
  await parent.exec(start, { env: { ASK: ask }, check: true });

  // Each child continues with the worker as it is now, including its text.
  const tree = await parent.forkTree(2);
  console.log(`${tree.children.length} ways from one moment; the parent was paused for ${tree.pauseMs} ms`);
  const levels = [1, 9];
  const sizes = await Promise.all(tree.children.map((child, i) => attempt(child, levels[i]!)));
  sizes.forEach((size, i) => console.log(`level ${levels[i]}: ${size} bytes`));
  const winner = await tree.promote(tree.children[sizes.indexOf(Math.min(...sizes))]!, { cleanupSiblings: true });

  await winner.exec("echo chosen > /srv/result", { check: true });
  console.log("kept:", (await winner.files.readText("/srv/result")).trim());
  await winner.delete();
} finally {
  await parent.delete();
}
