"""Streams, files and terminals."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.sync.server import ServerConnection, serve

import berth_client as berth
from berth_client import AsyncBerth, Berth, Exit, Gap, Sandbox, Stderr, Stdout
from berth_client._core import READ_TIMEOUT, STREAM_TIMEOUT
from berth_client._sse import Decoder

from .fake import SANDBOX, Answer, Asked, Fake


def sse(event: str, data: object) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


def event(n: int, type: str = "sandbox.paused") -> dict[str, object]:
    return {
        "ts": f"2026-11-20T13:05:09.{n:03d}Z",
        "sandbox_id": SANDBOX["id"],
        "agent_id": "host-a",
        "type": type,
        "code": "ok",
        "message": "",
        "metadata": {},
    }


def test_events_come_whole_however_the_bytes_are_cut() -> None:
    text = b'event: stdout\r\ndata: {"a":1}\r\n\r\n: ping\n\n'
    text += b"data: one\ndata: two\nid: 5\n\nevent: lost\n\ndata:bare\n\n"
    whole = Decoder().feed(text)
    assert [(m.event, m.data) for m in whole] == [("stdout", '{"a":1}'), ("message", "one\ntwo"), ("message", "bare")]
    decoder = Decoder()
    assert [m for b in text for m in decoder.feed(bytes([b]))] == whole


def test_output_comes_as_it_is_written(fake: Fake, sandbox: Sandbox) -> None:
    pieces = [
        sse("stdout", {"data": "héllo"}),
        b": ping\n\n",
        sse("stderr", {"data": "/w==", "encoding": "base64"}),
        sse("a_kind_of_tomorrow", {}),
        sse("exit", {"exit_code": 3, "duration_ms": 7, "timed_out": False}),
    ]
    whole = b"".join(pieces)
    fake.say(Answer(chunks=[whole[:20], whole[20:23], whole[23:]]))
    out = list(sandbox.stream("make", cwd="/src", stdin=b"\x00"))
    assert out == [Stdout("héllo".encode()), Stderr(b"\xff"), Exit(3, 7, False)]
    assert fake.asked[0].json == {"cmd": "make", "cwd": "/src", "stdin_base64": "AA=="}


@pytest.mark.parametrize(
    "answer",
    [
        Answer(chunks=[sse("stdout", {"data": "x"})]),
        Answer(chunks=[sse("stdout", {"data": "x"}), sse("error", {"error": "agent unreachable"})]),
    ],
)
def test_an_output_without_its_end_is_an_error(fake: Fake, sandbox: Sandbox, answer: Answer) -> None:
    fake.say(answer)
    output = sandbox.stream("make")
    assert next(iter(output)) == Stdout(b"x")
    with pytest.raises(berth.StreamBroken):
        list(output)


def test_a_command_waits_for_its_sandbox_to_be_woken() -> None:
    # The answer to a command that is not tried again begins only once the sandbox runs.
    patience: list[tuple[str, float]] = []

    class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __init__(self, request: httpx.Request) -> None:
            self.request = request

        def note(self, what: str) -> None:
            patience.append((what, self.request.extensions["timeout"]["read"]))

        def __iter__(self) -> Iterator[bytes]:
            self.note("body")
            yield sse("exit", {"exit_code": 0, "duration_ms": 1, "timed_out": False})

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in self:
                yield piece

    def answer(request: httpx.Request) -> httpx.Response:
        body = Body(request)
        body.note("head")
        return httpx.Response(200, stream=body)

    async def of_async() -> None:
        http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        async with http, AsyncBerth("http://berth", "k", http=http) as client:
            found = berth.AsyncSandbox(client._transport, berth.models.Sandbox.from_json(SANDBOX))
            assert [type(piece) async for piece in found.stream("make")] == [Exit]

    with httpx.Client(transport=httpx.MockTransport(answer)) as http, Berth("http://berth", "k", http=http) as client:
        found = Sandbox(client._transport, berth.models.Sandbox.from_json(SANDBOX))
        assert [type(piece) for piece in found.stream("make")] == [Exit]
    asyncio.run(of_async())
    assert patience == [("head", READ_TIMEOUT), ("body", STREAM_TIMEOUT)] * 2


def test_a_broken_output_is_an_error(fake: Fake, sandbox: Sandbox) -> None:
    fake.say(Answer(chunks=[sse("stdout", {"data": "x"})], cut=True))
    with pytest.raises(berth.ConnectionFailed):
        list(sandbox.stream("make"))


def test_check_says_what_the_command_said(fake: Fake, sandbox: Sandbox) -> None:
    fake.say(
        Answer(
            200,
            {
                "exit_code": 2,
                "stdout": "\ufffd",
                "stdout_base64": "/w==",
                "stderr": "no rule\n",
                "duration_ms": 1,
                "timed_out": False,
                "truncated": False,
            },
        )
    )
    assert sandbox.exec("make").stdout_bytes == b"\xff"
    with pytest.raises(berth.CommandFailed, match="ended with code 2: no rule"):
        sandbox.exec("make", check=True)


COMMAND = {
    "id": "cmd-1",
    "cmd": "make",
    "status": "running",
    "exit_code": None,
    "timed_out": False,
    "started_at": "2026-11-20T13:05:09.412Z",
    "ended_at": None,
    "output_bytes": 3,
}
ENDED = {**COMMAND, "status": "exited", "exit_code": 3, "ended_at": "2026-11-20T13:05:10.412Z"}


def test_a_detached_command(fake: Fake, sandbox: Sandbox, hasty: list[float]) -> None:
    fake.say(Answer(201, COMMAND))
    command = sandbox.commands.start("make", cwd="/src", idempotency_key="k")
    assert (command.id, command.status, command.exit_code) == ("cmd-1", "running", None)
    assert fake.asked[0].json == {"cmd": "make", "cwd": "/src"}

    fake.asked.clear()
    fake.say(
        Answer(chunks=[sse("gap", {"offset": 4}), sse("stdout", {"data": "hé", "offset": 4})], cut=True),
        Answer(200, SANDBOX),
        Answer(chunks=[sse("stderr", {"data": "/w==", "encoding": "base64", "offset": 7})]),
        Answer(200, SANDBOX),
        Answer(chunks=[sse("exit", {"exit_code": 3, "duration_ms": 7, "timed_out": False, "offset": 8})]),
    )
    assert list(command.follow()) == [Gap(4), Stdout("hé".encode(), 4), Stderr(b"\xff", 7), Exit(3, 7, False)]
    queries = [a.path.partition("?")[2] for a in fake.asked if "/output" in a.path]
    assert queries == ["follow=true&since=0", "follow=true&since=7", "follow=true&since=8"]

    fake.say(
        Answer(200, COMMAND),
        Answer(chunks=[sse("stdout", {"data": "x", "offset": 3}), sse("exit", {"exit_code": 3, "duration_ms": 7})]),
        Answer(200, ENDED),
    )
    assert command.wait() == Exit(3, 7)
    assert (command.status, command.exit_code) == ("exited", 3)

    fake.asked.clear()
    fake.say(Answer(204), Answer(204), Answer(204), Answer(204), Answer(200, [COMMAND]))
    command.input("yes\n")
    command.input(b"\xff", eof=True)
    command.signal("INT")
    command.delete()
    assert [c.id for c in sandbox.commands.list()] == ["cmd-1"]
    assert [a.json for a in fake.asked[:3]] == [
        {"data": "yes\n", "eof": False},
        {"data": "/w==", "encoding": "base64", "eof": True},
        {"signal": "INT"},
    ]


def test_who_only_listens_does_not_wake_a_sandbox(fake: Fake, sandbox: Sandbox, hasty: list[float]) -> None:
    fake.say(Answer(200, COMMAND))
    command = sandbox.commands.get("cmd-1")
    fake.say(
        Answer(chunks=[sse("error", {"error": "agent unreachable"})]),
        Answer(200, {**SANDBOX, "status": "hibernated"}),
    )
    with pytest.raises(berth.StreamBroken, match="the sandbox is hibernated"):
        list(command.follow())


def test_following_goes_on_where_it_was_cut(fake: Fake, sandbox: Sandbox, hasty: list[float]) -> None:
    fake.say(
        Answer(chunks=[sse("ev", event(1)), sse("ev", event(2))], cut=True),
        Answer(503, {"error": "unavailable"}, headers={"Retry-After": "1"}),
        Answer(chunks=[sse("ev", event(3))]),
        Answer(chunks=[sse("error", {"error": "agent unreachable"})]),
        Answer(chunks=[sse("ev", event(4, "sandbox.deleted"))]),
    )
    events = list(sandbox.follow_events(tail=5))
    assert [e.ts.microsecond // 1000 for e in events] == [1, 2, 3, 4]
    assert events[0].metadata == {}
    assert [a.path.partition("?")[2] for a in fake.asked] == [
        "follow=true&tail=5",
        *["follow=true&since=2026-11-20T13%3A05%3A09.002000%2B00%3A00"] * 2,
        *["follow=true&since=2026-11-20T13%3A05%3A09.003000%2B00%3A00"] * 2,
    ]


def test_following_ends_when_the_sandbox_is_gone(fake: Fake, sandbox: Sandbox) -> None:
    fake.say(Answer(chunks=[sse("ev", event(1))]), Answer(404, {"error": "not found"}))
    assert len(list(sandbox.follow_events())) == 1
    with pytest.raises(berth.NotFound):
        list(sandbox.follow_events())


def test_following_gives_up_on_a_service_that_stays_away(fake: Fake, sandbox: Sandbox) -> None:
    fake.say(Answer(chunks=[sse("error", {"error": "agent unreachable", "detail": "the stream broke off"})]))
    with pytest.raises(berth.StreamBroken, match="agent unreachable: the stream broke off"):
        list(sandbox.follow_events())


def test_a_quiet_stream_that_was_alive_counts_as_a_connection(fake: Fake, sandbox: Sandbox) -> None:
    cuts = [Answer(chunks=[b": ping\n\n"], cut=True) for _ in range(6)]
    fake.say(*cuts, Answer(chunks=[sse("ev", event(1, "sandbox.deleted"))]))
    assert len(list(sandbox.follow_events())) == 1

    fake.say(Answer(200, COMMAND))
    command = sandbox.commands.get("cmd-1")
    fake.say(*[a for cut in cuts for a in (cut, Answer(200, SANDBOX))], Answer(chunks=[sse("exit", {"exit_code": 3})]))
    assert list(command.follow()) == [Exit(3)]


def test_logs(fake: Fake, sandbox: Sandbox) -> None:
    fake.say(Answer(body="héllo\n".encode()))
    assert sandbox.logs(stream="console", tail=3) == "héllo\n"
    assert fake.asked[0].path.endswith("/logs?stream=console&tail=3")
    line = {"line": "up", "ts": "2026-11-20T13:05:09.412Z"}
    fake.say(Answer(chunks=[sse("stdout", line), sse("console", {"line": "a", "partial": True})]))
    lines = list(sandbox.follow_logs())
    assert [(x.stream, x.line, x.partial) for x in lines] == [("stdout", "up", False), ("console", "a", True)]
    assert lines[0].ts is not None


BUILD = {
    "id": "b-1",
    "template": "web",
    "status": "queued",
    "error": None,
    "created_at": "2026-11-20T13:05:09.412Z",
    "finished_at": None,
}


def test_a_build_says_what_it_does_and_becomes_a_template(client: Berth, fake: Fake) -> None:
    fake.say(Answer(202, BUILD))
    build = client.templates.build(
        "web", "python", run=["pip install flask"], ready=berth.models.TemplateCheck(port=80)
    )
    assert fake.asked[0].json == {
        "name": "web",
        "from": "python",
        "run": ["pip install flask"],
        "ready": {"port": 80},
    }
    fake.say(Answer(chunks=[sse("log", {"line": "one"}), sse("log", {"line": "two"}), sse("end", {"status": "ready"})]))
    assert list(build.logs()) == ["one", "two"]
    fake.say(Answer(chunks=[sse("log", {"line": "one"})]))
    with pytest.raises(berth.StreamBroken):
        list(build.logs())
    fake.say(Answer(200, dict(BUILD, status="building")), Answer(200, dict(BUILD, status="failed", error="exit 1")))
    with pytest.raises(berth.BuildFailed, match="exit 1"):
        build.wait()
    build.info.status = "ready"
    size = {"cpu": 1, "memory_mb": 512, "disk_mb": 1024, "size_bytes": 1}
    at = {"created_at": BUILD["created_at"], "updated_at": BUILD["created_at"]}
    fake.say(Answer(200, {"name": "web", "status": "ready", "build_id": "b-1", **size, **at}))
    assert build.wait().name == "web"


def test_stopping_early_ends_the_stream(fake: Fake, sandbox: Sandbox) -> None:
    fake.say(Answer(chunks=[sse("stdout", {"data": "x"})] * 3))
    with sandbox.stream("yes") as output:
        for _ in output:
            break
    assert list(output) == []


def test_files(fake: Fake, sandbox: Sandbox, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(data)
    seen: list[tuple[int, int | None]] = []

    fake.say(Answer(201))
    assert sandbox.files.upload(source, "/srv/a b&c", mode="0755", progress=lambda *p: seen.append(p)) == len(data)
    asked = fake.asked[0]
    assert asked.path == f"/v1/sandboxes/{SANDBOX['id']}/fs?path=%2Fsrv%2Fa+b%26c&mode=0755"
    assert (asked.method, asked.body == data, asked.headers["content-length"]) == ("PUT", True, str(len(data)))
    assert "transfer-encoding" not in asked.headers
    assert seen[-1] == (len(data), len(data))
    assert len(seen) == 4

    fake.say(Answer(204))
    sandbox.files.write("/a", "text")
    sandbox.files.write("/b", b"bytes")
    sandbox.files.write("/c", (part for part in (b"pie", b"ces")))
    assert [a.body for a in fake.asked[1:]] == [b"text", b"bytes", b"pieces"]

    seen.clear()
    fake.say(Answer(body=data))
    assert sandbox.files.download("/srv/a", target, progress=lambda *p: seen.append(p)) == len(data)
    assert target.read_bytes() == data == sandbox.files.read("/srv/a") == b"".join(sandbox.files.stream("/srv/a"))
    assert seen[-1] == (len(data), len(data))

    stat = {
        "path": "/a", "name": "a", "type": "file", "size_bytes": 5, "mode": "0644", "uid": 0, "gid": 0,
        "modified_at": "2026-11-20T13:05:09.412Z",
    }  # fmt: skip
    fake.say(Answer(200, {"path": "/", "entries": [stat]}))
    assert [e.name for e in sandbox.files.list("/")] == ["a"]
    fake.say(Answer(200, stat))
    assert sandbox.files.stat("/a").target is None
    assert sandbox.files.exists("/a")
    fake.say(Answer(404, {"error": "no such file or directory"}))
    assert not sandbox.files.exists("/a")
    fake.say(Answer(404, {"error": "not found"}))
    with pytest.raises(berth.NotFound):
        sandbox.files.exists("/a")
    fake.say(Answer(204))
    sandbox.files.delete("/a")
    sandbox.files.delete("/d", recursive=True)
    sandbox.files.mkdir("/e")
    assert [(a.method, a.path.partition("/fs")[2]) for a in fake.asked[-3:]] == [
        ("DELETE", "?path=%2Fa"),
        ("DELETE", "?path=%2Fd&recursive=true"),
        ("POST", "/dir?path=%2Fe"),
    ]


def test_pieces_go_to_the_next_replica_when_one_is_away(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"abc")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{s.getsockname()[1]}"
        fake.say(Answer(201))
        for _ in range(2):
            with Berth([away, fake.url], "k", retries=0) as client:
                sandbox = Sandbox(client._transport, berth.models.Sandbox.from_json(SANDBOX))
                if not fake.asked:
                    sandbox.files.upload(tmp_path / "in", "/x")
                else:
                    sandbox.files.write("/x", iter([b"ab", b"c"]))
    assert [a.body for a in fake.asked] == [b"abc", b"abc"]


def test_half_a_download_leaves_what_was_there(fake: Fake, sandbox: Sandbox, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("old")
    fake.say(Answer(chunks=[b"half"], cut=True))
    with pytest.raises(berth.ConnectionFailed):
        sandbox.files.download("/a", target)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_fork_tells_which_children_failed(fake: Fake, sandbox: Sandbox) -> None:
    failed = [{"index": 1, "error": "insufficient host memory for sandbox"}]
    fake.say(
        Answer(201, {"parent_id": "p", "mode": "cold", "children": [SANDBOX], "failed": failed, "pause_ms": 4}),
    )
    children = sandbox.fork(2)
    assert [c.id for c in children] == [SANDBOX["id"]]
    assert [(f.index, f.error) for f in children.failed] == [(1, "insufficient host memory for sandbox")]
    assert children.pause_ms == 4


def test_fork_tree_keeps_the_winner(fake: Fake, sandbox: Sandbox) -> None:
    children = [dict(SANDBOX, id=i) for i in ("one", "two", "three")]

    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("/fork-tree"):
            tree = {"tree_id": "t", "parent_id": "p", "children": children, "failed": [], "pause_ms": 4, "stored": True}
            return Answer(201, tree)
        if asked.path.endswith("/promote"):
            return Answer(200, {"promoted": children[1], "deleted": asked.json["cleanup_siblings"] * ["one", "three"]})
        return Answer(204)

    fake.say(answer)
    with sandbox.fork_tree(3, metadata={"try": 1}) as tree:
        assert tree.stored
        assert (tree.pause_ms, [c.id for c in tree.children]) == (4, ["one", "two", "three"])
        winner = tree.promote(tree.children[1], cleanup_siblings=True)
    assert winner.id == "two"
    assert [(a.method, a.path) for a in fake.asked] == [
        ("POST", f"/v1/sandboxes/{SANDBOX['id']}/fork-tree"),
        ("POST", "/v1/sandboxes/two/promote"),
    ]
    assert fake.asked[1].json == {"tree_id": "t", "cleanup_siblings": True}
    with pytest.raises(RuntimeError), sandbox.fork_tree(3):
        raise RuntimeError("nobody won")
    assert [a.path.rpartition("/")[2] for a in fake.asked[-3:]] == ["one", "two", "three"]


def echo(ws: ServerConnection) -> None:
    """A terminal or command that echoes its input until it is told to end."""
    assert ws.request is not None
    if "/exec/ws" in ws.request.path:
        ws.send(json.dumps({"type": "stdout", "data": ws.recv()}))
    for message in ws:
        if isinstance(message, bytes):
            ws.send(message)
            continue
        frame = json.loads(message)
        if frame["type"] == "eof" or frame.get("signal") == "TERM":
            ws.send(json.dumps({"type": "exit", "exit_code": 143, "duration_ms": 1}))
            return
        if frame.get("signal") == "INT":
            ws.send(json.dumps({"type": "error", "error": "agent unreachable"}))
            return
        if frame.get("signal") == "KILL":
            ws.close(1011, "the guest is gone")
            return
        if frame["type"] == "stdin":
            ws.send(json.dumps(dict(frame, type="stderr")))


@contextmanager
def sockets(handler: Callable[[ServerConnection], None] = echo) -> Iterator[Sandbox]:
    with serve(handler, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with Berth(f"http://127.0.0.1:{server.socket.getsockname()[1]}", "k", retries=0) as client:
            yield Sandbox(client._transport, berth.models.Sandbox.from_json(SANDBOX))
        server.shutdown()
        thread.join()


def test_input_may_wait_for_a_slow_command() -> None:
    # While the service passes input on, it reads no further, and answers no ping: the
    # default of websockets, 20 seconds, would end the command.
    async def of_async(url: str) -> float | None:
        async with AsyncBerth(url, "k", retries=0) as client:
            found = berth.AsyncSandbox(client._transport, berth.models.Sandbox.from_json(SANDBOX))
            async with found.process("psql") as process:
                await process.close_stdin()
                assert [type(piece) async for piece in process] == [Stdout, Exit]
                return process._open.ping_timeout

    with sockets() as sandbox, sandbox.process("psql") as process:
        process.close_stdin()
        assert [type(piece) for piece in process] == [Stdout, Exit]
        assert process._open.ping_timeout == READ_TIMEOUT
        assert asyncio.run(of_async(sandbox._transport.config.urls[0])) == READ_TIMEOUT


def test_pings_are_answered_while_output_waits_for_a_slow_caller() -> None:
    answered: list[bool] = []
    over = threading.Event()

    def chatter(ws: ServerConnection) -> None:
        ws.recv()
        for _ in range(300):
            ws.send(json.dumps({"type": "stdout", "data": "x"}))
        answered.append(ws.ping().wait(5))
        over.set()
        ws.send(json.dumps({"type": "exit", "exit_code": 0, "duration_ms": 1}))

    async def of_async(url: str) -> int:
        async with AsyncBerth(url, "k", retries=0) as client:
            found = berth.AsyncSandbox(client._transport, berth.models.Sandbox.from_json(SANDBOX))
            async with found.process("make") as process:
                await asyncio.to_thread(over.wait, 20)
                return len([piece async for piece in process])

    with sockets(chatter) as sandbox:
        with sandbox.process("make") as process:
            assert over.wait(20)
            assert len(list(process)) == 301
        over.clear()
        assert asyncio.run(of_async(sandbox._transport.config.urls[0])) == 301
    assert answered == [True, True]


def test_a_terminal() -> None:
    with sockets() as sandbox:
        with sandbox.pty(cols=100, rows=30) as pty:
            pty.send("ls\r")
            assert pty.recv(timeout=5) == b"ls\r"
            with pytest.raises(TimeoutError):
                pty.recv(timeout=0.01)
            pty.resize(120, 40)
            pty.signal("TERM")
            assert list(pty) == []
            assert pty.exit_code == 143
        with pytest.raises(berth.StreamBroken, match="the guest is gone"), sandbox.pty() as pty:
            pty.signal("KILL")
            pty.recv(timeout=5)
        with pytest.raises(berth.BerthError, match="context manager"):
            sandbox.pty().send("x")


def test_a_command_with_open_input() -> None:
    with sockets() as sandbox:
        with sandbox.process(["cat", "-"]) as process:
            first = process.recv(timeout=5)
            assert isinstance(first, Stdout)
            assert json.loads(first.data) == {"cmd": ["cat", "-"]}
            process.write("text")
            assert process.recv() == Stderr(b"text")
            process.write(b"\xff")
            assert process.recv() == Stderr(b"\xff")
            process.close_stdin()
            assert list(process) == [Exit(143, 1)]
            assert process.recv() == Exit(143, 1)
        with pytest.raises(berth.StreamBroken, match="agent unreachable"), sandbox.process("x") as process:
            process.signal("INT")
            list(process)


def test_long_input_is_sent_in_pieces() -> None:
    text, data = "a€𝄞" * 100_000, b"\x00\xff" * 600_000
    with sockets() as sandbox:
        with sandbox.process(["cat"]) as process:
            process.recv(timeout=5)
            for given, whole in ((text, text.encode()), (data, data)):
                echoed = b""
                writing = threading.Thread(target=process.write, args=(given,))
                writing.start()
                while len(echoed) < len(whole):
                    piece = process.recv(timeout=60)
                    assert isinstance(piece, Stderr)
                    echoed += piece.data
                writing.join()
                assert echoed == whole
        with sandbox.pty() as pty:
            writing = threading.Thread(target=pty.send, args=(data,))
            writing.start()
            echoed = b""
            while len(echoed) < len(data):
                echoed += pty.recv(timeout=60)
            writing.join()
            assert echoed == data


def test_a_socket_that_is_refused_is_told_by_its_status(fake: Fake, sandbox: Sandbox) -> None:
    fake.say(Answer(409, {"error": "sandbox not running", "detail": "resume it"}))
    with pytest.raises(berth.Conflict, match="sandbox not running: resume it"), sandbox.pty():
        pass


def test_async_streams(fake: Fake, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncBerth(fake.url, "k") as client:
            fake.say(Answer(201, SANDBOX))
            sandbox = await client.sandboxes.create()
            fake.say(Answer(chunks=[sse("stdout", {"data": "x"}), sse("exit", {"exit_code": 0})]))
            assert [o async for o in sandbox.stream("x")] == [Stdout(b"x"), Exit(0)]
            async with sandbox.stream("x") as output:
                async for _ in output:
                    break
            (tmp_path / "in").write_bytes(b"abc")
            fake.say(Answer(201))
            await sandbox.files.upload(tmp_path / "in", "/x")
            assert fake.asked[-1].body == b"abc"
            fake.say(Answer(body=b"abc"))
            assert await sandbox.files.read("/x") == b"abc"

    asyncio.run(main())

    async def terminal(url: str) -> None:
        async with AsyncBerth(url, "k") as client:
            from berth_client import AsyncSandbox

            sandbox = AsyncSandbox(client._transport, berth.models.Sandbox.from_json(SANDBOX))
            async with sandbox.pty() as pty:
                await pty.send(b"hi")
                assert await pty.recv(timeout=5) == b"hi"
                with pytest.raises(TimeoutError):
                    await pty.recv(timeout=0.01)
                await pty.signal("TERM")
                assert [data async for data in pty] == []

    with sockets() as sandbox:
        asyncio.run(terminal(sandbox._transport.config.urls[0]))
