"""Runs the handler of a function.

The front, this program, speaks HTTP on $PORT. The handler runs in a worker, a process of
its own, so that one that never returns, or ends the process, is replaced, and those who
wait hear of it. The two exchange frames: two lengths, a JSON object and bytes.

Of a request without X-Forwarded-Prefix, which Berth adds to each invocation, the handler
hears nothing: somebody looks whether the function is up.
"""

import argparse
import inspect
import json
import os
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

MAX_BODY = 10 << 20  # bytes of a request, and of an answer that is not streamed
MAX_DRAIN = 64 << 20  # bytes of a request that is too large, before it is cut off
MAX_PART = 256 << 10  # bytes of a streamed answer between the two processes
MAX_AT_ONCE = 100  # invocations
MAX_HEADERS = 32 << 10  # bytes
MAX_LOADING = 60  # seconds
CANNOT_LOAD = 78  # exit code: trying again would end the same way. The control plane knows it
HANDLER = "handler.py"

SIZES = struct.Struct(">II")
TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
FAILED = "Berth-Function-Failed"  # has Berth add the log, which it masks, up to the line of the invocation
HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length", FAILED.lower()}


def say(text, to=None):
    """Writes a line at once, so that those of others do not come between."""
    to = to or sys.stdout
    to.write(text + "\n")
    to.flush()


def send(sock, lock, head, body=b""):
    raw = json.dumps(head).encode()
    with lock:
        sock.sendall(SIZES.pack(len(raw), len(body)) + raw)
        if body:
            sock.sendall(body)


def receive(stream):
    sizes = stream.read(SIZES.size)
    if len(sizes) < SIZES.size:
        raise EOFError
    n, m = SIZES.unpack(sizes)
    raw, body = stream.read(n), stream.read(m)
    if len(raw) < n or len(body) < m:
        raise EOFError
    return json.loads(raw), body


# The worker.


class Headers(dict):
    """Headers by name, in any case."""

    def __init__(self, pairs):
        super().__init__()
        for name, value in pairs:
            name = name.lower()
            self[name] = f"{self[name]}, {value}" if name in self else value

    def __getitem__(self, name):
        return super().__getitem__(name.lower())

    def __contains__(self, name):
        return super().__contains__(name.lower())

    def get(self, name, default=None):
        return super().get(name.lower(), default)


class Request:
    """What a handler is called with."""

    def __init__(self, head, body):
        self.id = head["request_id"]
        self.method = head["method"]
        self.path, _, self.query_string = head["target"].partition("?")
        self.query = dict(parse_qsl(self.query_string, keep_blank_values=True))
        self.headers = Headers(head["headers"])
        self.body = body

    @property
    def text(self):
        return self.body.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.body)


class Nonsense(Exception):
    """An answer that is none."""


def bytes_of(part):
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, (bytes, bytearray, memoryview)):
        return bytes(part)
    raise Nonsense(f"a part of an answer is {type(part).__name__}, want str or bytes")


def answer_of(result):
    """Returns status, headers as pairs, and a body: bytes, or an iterator of parts."""
    status, headers = None, []
    if isinstance(result, tuple):
        if not 2 <= len(result) <= 3:
            raise Nonsense("a tuple is (body, status) or (body, status, headers)")
        status = result[1]
        if len(result) == 3:
            given = result[2].items() if isinstance(result[2], dict) else result[2]
            headers = [(str(k), str(v)) for k, v in given]
        result = result[0]
        if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
            raise Nonsense(f"the status is {status!r}, want 200 to 599")
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
        if not TOKEN.fullmatch(name) or any(c in value for c in "\r\n\0") or not value.isprintable():
            raise Nonsense(f"the header {name!r} is none")
        try:
            value.encode("latin-1")
        except UnicodeEncodeError:
            raise Nonsense(f"the header {name!r} is not Latin-1") from None
    if size > MAX_HEADERS or len(headers) > 200:
        raise Nonsense("the headers are too large")
    if result is None:
        kind, body = None, b""
        status = status or 204
    elif isinstance(result, str):
        kind, body = "text/plain; charset=utf-8", result.encode()
    elif isinstance(result, (bytes, bytearray, memoryview)):
        kind, body = "application/octet-stream", bytes(result)
    elif hasattr(result, "__next__"):
        kind, body = "application/octet-stream", result
    else:
        try:
            kind, body = "application/json", json.dumps(result, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as e:
            raise Nonsense(f"the answer, of type {type(result).__name__}, is no JSON: {e}") from None
    if isinstance(body, bytes) and len(body) > MAX_BODY:
        raise Nonsense(f"the answer has {len(body)} bytes, at most {MAX_BODY}: stream it, by an iterator")
    if kind and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", kind))
    return status or 200, headers, body


def load():
    """Returns the function's handler."""
    import importlib.util

    sys.path[0] = os.getcwd()  # instead of this program's
    spec = importlib.util.spec_from_file_location("handler", HANDLER)
    module = importlib.util.module_from_spec(spec)
    sys.modules["handler"] = module
    spec.loader.exec_module(module)
    handler = getattr(module, "handler", None)
    if not callable(handler):
        raise Nonsense(f"{HANDLER} has no function named handler")
    return handler


def trace(e):
    """The trace of an error of the handler's, without this program's part."""
    tb = e.__traceback__
    while tb and tb.tb_frame.f_code.co_filename == __file__ or tb and "importlib" in tb.tb_frame.f_code.co_filename:
        tb = tb.tb_next
    return "".join(traceback.format_exception(type(e), e, tb))


class Worker:
    """What runs in the worker's process."""

    def __init__(self, inward, outward):
        self.stream = socket.socket(fileno=inward).makefile("rb")
        self.out, self.lock = socket.socket(fileno=outward), threading.Lock()
        self.acks, self.handler = {}, None

    def run(self):
        try:
            self.handler = load()
        except BaseException as e:  # noqa: BLE001: whatever it is, it is the handler's
            say(f"{e}" if isinstance(e, Nonsense) else trace(e).rstrip(), sys.stderr)
            os._exit(CANNOT_LOAD if isinstance(e, (Nonsense, SyntaxError, ImportError)) else 1)
        send(self.out, self.lock, {"kind": "ready"})
        while True:
            try:
                head, body = receive(self.stream)
            except (EOFError, OSError):
                os._exit(0)  # the front is gone
            if head["kind"] == "more":
                if to := self.acks.get(head["id"]):
                    to.put(head["go"])
                continue
            self.acks[head["id"]] = queue.SimpleQueue()
            threading.Thread(target=self.invoke, args=(head, body), daemon=True).start()

    def invoke(self, head, body):
        number = head["id"]
        try:
            result = self.handler(Request(head, body))
            if inspect.iscoroutine(result):
                import asyncio

                result = asyncio.run(result)
            status, headers, body = answer_of(result)
            streamed = not isinstance(body, bytes)
            send(self.out, self.lock, {"id": number, "kind": "head", "status": status, "headers": headers, "streamed": streamed}, b"" if streamed else body)
            if streamed:
                self.stream_out(number, body)
                send(self.out, self.lock, {"id": number, "kind": "end"})
        except BaseException as e:  # noqa: BLE001
            text = f"the function's answer is none: {e}" if isinstance(e, Nonsense) else trace(e).rstrip()
            say(f"{head['request_id']} failed\n{text}", sys.stderr)
            why = "its answer is none" if isinstance(e, Nonsense) else type(e).__name__
            send(self.out, self.lock, {"id": number, "kind": "error", "why": why})
        finally:
            del self.acks[number]
            sys.stdout.flush()

    def stream_out(self, number, parts):
        for part in parts:
            raw = bytes_of(part)
            for at in range(0, len(raw), MAX_PART):
                send(self.out, self.lock, {"id": number, "kind": "part"}, raw[at : at + MAX_PART])
                if not self.acks[number].get():  # once it has been sent
                    if hasattr(parts, "close"):
                        parts.close()
                    return


# The front.


class Process:
    """A worker, as the front sees it."""

    def __init__(self, timeout):
        mine, theirs = socket.socketpair()
        mine2, theirs2 = socket.socketpair()
        mine.settimeout(timeout)  # a worker that does not even read is stuck
        self.to, self.lock = mine, threading.Lock()
        self.stream = mine2.makefile("rb")
        self.pending, self.guard = {}, threading.Lock()
        self.ready, self.gone, self.retired = threading.Event(), False, False
        self.count = 0
        fds = (theirs.fileno(), theirs2.fileno())
        argv = [sys.executable, "-u", __file__, "--worker", str(fds[0]), str(fds[1])]
        self.child = subprocess.Popen(argv, pass_fds=fds, stdin=subprocess.DEVNULL)
        theirs.close()
        theirs2.close()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        try:
            while True:
                head, body = receive(self.stream)
                if head["kind"] == "ready":
                    self.ready.set()
                    continue
                with self.guard:
                    to = self.pending.get(head["id"])
                if to:
                    to.put((head, body))
                elif head["kind"] == "part":  # nobody waits for it any more
                    self.more(head["id"], False)
        except (EOFError, OSError, ValueError):
            pass
        self.kill()
        self.child.wait()
        with self.guard:
            self.gone = True
            waiting = list(self.pending.values())
        self.ready.set()
        for to in waiting:
            to.put(({"kind": "gone"}, b""))

    def begin(self, head, body):
        """Begins an invocation, and returns its number and where its answer comes."""
        to = queue.SimpleQueue()
        with self.guard:
            self.count += 1
            number = self.count
            self.pending[number] = to
            if self.gone:
                to.put(({"kind": "gone"}, b""))
                return number, to
        try:
            send(self.to, self.lock, {**head, "id": number, "kind": "invoke"}, body)
        except OSError:
            self.kill()
        return number, to

    def more(self, number, go):
        """Has the next part of a stream be sent, or none."""
        try:
            send(self.to, self.lock, {"id": number, "kind": "more", "go": go})
        except OSError:
            self.kill()

    def end(self, number):
        with self.guard:
            self.pending.pop(number, None)
            over = self.retired and not self.pending
        if over:
            self.kill()

    def retire(self):
        """Ends the process once nobody waits for it."""
        with self.guard:
            self.retired = True

    def kill(self):
        if self.child.poll() is None:
            self.child.kill()


class Front:
    """Who keeps a worker that can be asked."""

    def __init__(self, timeout):
        self.timeout, self.guard = timeout, threading.Lock()
        self.slots = threading.BoundedSemaphore(MAX_AT_ONCE)
        self.process = self.start()

    def start(self):
        p = Process(self.timeout)
        if not p.ready.wait(MAX_LOADING):
            say(f"{HANDLER} has not been loaded within {MAX_LOADING} s", sys.stderr)
            p.kill()
        elif not p.gone:
            return p
        os._exit(CANNOT_LOAD if p.child.returncode == CANNOT_LOAD else 1)  # whoever started this starts it again

    def current(self):
        with self.guard:
            if self.process.retired or self.process.gone:
                self.process = self.start()
            return self.process


class Failure(Exception):
    """An answer of the front's own."""

    def __init__(self, status, error, detail=""):
        super().__init__(error)
        self.status, self.error, self.detail = status, error, detail


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 65  # seconds without a request
    wbufsize = 64 << 10  # a head and its body go together
    disable_nagle_algorithm = True
    front = None

    def log_message(self, *_):
        pass

    def version_string(self):
        return ""

    def send_response(self, code, message=None):
        self.send_response_only(code, message)

    def serve(self):
        if "X-Forwarded-Prefix" not in self.headers:
            self.send_response(204)
            self.send_header("Connection", "close")
            self.end_headers()
            return
        began, request_id = time.monotonic(), self.headers.get("X-Request-Id", "-")[:64]
        self.status, self.begun, self.left = 0, False, False
        try:
            if not self.front.slots.acquire(blocking=False):
                self.read_body()
                raise Failure(503, "too many invocations at once", f"at most {MAX_AT_ONCE}")
            try:
                self.invoke(request_id)
            finally:
                self.front.slots.release()
        except Failure as e:
            self.fail(e, request_id)
        except OSError:  # the client has left
            self.close_connection = True
        finally:
            took = (time.monotonic() - began) * 1000
            shown = self.path.partition("?")[0][:200].encode("unicode_escape").decode()
            status = "broken off" if self.left or not self.status else self.status
            say(f"{request_id} {self.command} {shown} {status} {took:.0f}ms")

    def __getattr__(self, name):
        if name.startswith("do_"):  # by this name the server looks for a method, whichever it is
            return self.serve
        raise AttributeError(name)

    def read_body(self):
        """Reads a body. Of one that is too large the rest is read too: whoever sends it
        hears of it once it is sent."""
        parts, size = [], 0
        for part in self.parts():
            size += len(part)
            if size <= MAX_BODY:
                parts.append(part)
            elif parts:
                parts = []
            if size > MAX_DRAIN:
                raise ConnectionError("the body has no end")
        if size > MAX_BODY:
            raise Failure(413, "request body too large", f"at most {MAX_BODY} bytes")
        return b"".join(parts)

    def parts(self):
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            while n := self.number(self.rfile.readline(1024).split(b";")[0], 16):
                yield from self.exactly(n)
                self.rfile.readline(1024)
            while self.rfile.readline(65536).strip():
                pass
        else:
            yield from self.exactly(self.number(self.headers.get("Content-Length") or "0", 10))

    def number(self, text, base):
        try:
            n = int(text, base)
        except ValueError:
            n = -1
        if n < 0:
            raise ConnectionError("the body has no size")
        return n

    def exactly(self, n):
        while n > 0:
            part = self.rfile.read(min(n, 256 << 10))
            if not part:
                raise ConnectionError("the body ended early")
            n -= len(part)
            yield part

    def invoke(self, request_id):
        head = {
            "request_id": request_id, "method": self.command, "target": self.path,
            "headers": [(k, v) for k, v in self.headers.items() if k.lower() not in HOP],
        }
        body = self.read_body()
        process = self.front.current()
        until = time.monotonic() + self.front.timeout
        number, answers = process.begin(head, body)
        try:
            streamed = False
            while True:
                try:
                    head, body = answers.get(timeout=max(0, until - time.monotonic()))
                except queue.Empty:
                    process.retire()
                    raise Failure(504, "the function took too long", f"its time limit is {self.front.timeout} s") from None
                kind = head["kind"]
                if kind == "gone":
                    raise Failure(500, "the function failed", f"its process ended; its logs tell more, at request {request_id}")
                if kind == "error":
                    raise Failure(500, "the function failed", f"{head['why']}; its logs tell more, at request {request_id}")
                if kind == "head":
                    streamed = head["streamed"]
                    self.begin_answer(head["status"], head["headers"], None if streamed else len(body))
                if kind in ("head", "part") and body:
                    self.write(b"%x\r\n%b\r\n" % (len(body), body) if streamed and self.chunked else body)
                if kind == "end" and self.chunked:
                    self.write(b"0\r\n\r\n")
                self.write(b"", flush=True)
                if kind == "part":
                    process.more(number, not self.left and self.command != "HEAD")
                if kind == "end" or kind == "head" and not streamed:
                    return
        finally:
            process.end(number)

    def write(self, raw, flush=False):
        """Writes to the client. One that has left is not told."""
        try:
            if self.left or self.command == "HEAD" and not flush:
                return
            self.wfile.write(raw)
            if flush:
                self.wfile.flush()
        except OSError:
            self.left = self.close_connection = True

    def begin_answer(self, status, headers, size, failed=False):
        self.status, self.begun = status, True
        self.send_response(status)
        if failed:
            self.send_header(FAILED, "1")
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.chunked = False
        if size is not None:
            if status not in (204, 304):
                self.send_header("Content-Length", str(size))
        elif self.request_version == "HTTP/1.1":
            self.chunked = True
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.close_connection = True
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def fail(self, e, request_id):
        if self.begun:  # that it is cut off is all that can be told
            self.status, self.close_connection = 0, True
            return
        raw = json.dumps({"error": e.error, "detail": e.detail, "request_id": request_id}).encode() + b"\n"
        headers = [("Content-Type", "application/json")] + [("Retry-After", "1")] * (e.status == 503)
        self.begin_answer(e.status, headers, len(raw), failed=e.status in (500, 504))
        self.write(raw)
        self.write(b"", flush=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    allow_reuse_address = True

    def handle_error(self, *_):
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--timeout", type=int, default=30, help="of an invocation, in seconds")
    args.add_argument("--worker", type=int, nargs=2)
    args = args.parse_args()
    if args.worker:
        Worker(*args.worker).run()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Handler.front = Front(args.timeout)
    Server((os.environ.get("HOST", "0.0.0.0"), int(os.environ["PORT"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
