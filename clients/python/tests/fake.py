"""A small service that gives scripted answers and records requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SANDBOX: dict[str, Any] = {
    "id": "k7q2mz4tn6vxb3jw5yr8acdefg",
    "status": "running",
    "template": "base",
    "metadata": {},
    "cpu": 2,
    "memory_mb": 512,
    "disk_mb": 4096,
    "agent_id": "host-a",
    "owner": None,
    "from_snapshot": None,
    "forked_from": None,
    "created_at": "2026-11-20T13:05:09.412Z",
    "started_at": "2026-11-20T13:05:09.802Z",
    "expires_at": None,
    "ttl_seconds": None,
    "persistent": False,
    "error": None,
    "volumes": [],
    "preview_url": "http://{port}-k7q2mz4tn6vxb3jw5yr8acdefg.preview.localhost",
    "preview": "public",
    "a_field_of_tomorrow": 1,
}


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    port: int = 0
    """the caller's, of its connection"""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    status: int = 200
    json: Any = None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] | None = None
    cut: bool = False
    """breaks the connection: at once, or after the chunks"""


@dataclass
class Fake:
    url: str
    asked: list[Asked] = field(default_factory=list)
    answers: list[Answer | Callable[[Asked], Answer]] = field(default_factory=list)

    def say(self, *answers: Answer | Callable[[Asked], Answer]) -> None:
        """The next answers in order; the last one repeats."""
        self.answers[:] = answers

    def next(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(asked) if callable(answer) else answer


@contextmanager
def serve() -> Iterator[Fake]:
    fake = Fake("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = fake.next(Asked(self.command, self.path, headers, self.read(), self.client_address[1]))
            if answer.cut and answer.chunks is None:
                self.close_connection = True
                return
            body = answer.body if answer.json is None else json.dumps(answer.json).encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.chunks is None:
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in answer.chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            if answer.cut:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

        def read(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
