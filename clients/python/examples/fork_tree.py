"""Try several ways from one moment and keep the best."""

from berth_client import Berth, Sandbox

# A process with prepared state that every attempt needs: here some text in memory.
WORKER = """
import http.server, zlib
text = b"".join(b"line %d of a log, like many others\\n" % (n * n % 977) for n in range(20000))

class Try(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        size = len(zlib.compress(text, int(self.path[1:])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d" % size)

http.server.HTTPServer(("127.0.0.1", 9000), Try).serve_forever()
"""
ASK = "import sys, urllib.request as u; print(u.urlopen('http://127.0.0.1:9000/' + sys.argv[1]).read().decode())"


def attempt(child: Sandbox, level: int) -> int:
    return int(child.exec(["python3", "-c", ASK, str(level)], check=True).stdout)


with Berth() as client, client.sandboxes.create("base", ttl_seconds=900) as parent:
    parent.files.write("/srv/worker.py", WORKER)
    start = 'nohup python3 /srv/worker.py >/tmp/worker.log 2>&1 & until python3 -c "$ASK" 1; do sleep 0.2; done'
    parent.exec(start, env={"ASK": ASK}, check=True)

    # Each child continues with the worker as it is now, including its text.
    with parent.fork_tree(2) as tree:
        print(f"{len(tree.children)} ways from one moment; the parent was paused for {tree.pause_ms} ms")
        sizes = {}
        for level, child in zip((1, 9), tree.children, strict=True):
            sizes[child] = attempt(child, level)
            print(f"level {level}: {sizes[child]} bytes")
        winner = tree.promote(min(tree.children, key=lambda child: sizes[child]))

    with winner:
        winner.exec("echo chosen > /srv/result", check=True)
        print("kept:", winner.files.read_text("/srv/result").strip())
