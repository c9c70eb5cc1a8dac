"""One sandbox: commands, terminal, files, ports, events and logs."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from queue import Queue

import pytest

import berth_client as berth
from berth_client import Berth, Exit, Sandbox, Stderr, Stdout

from .conftest import TTL, look


def test_a_command(sandbox: Sandbox) -> None:
    result = sandbox.exec(
        "echo $GREETING; echo $MORE >&2; pwd; cat; exit 3", cwd="/tmp", env={"MORE": "more"}, stdin="in"
    )
    assert (result.exit_code, result.stdout, result.stderr) == (3, "hello\n/tmp\nin", "more\n")
    assert not result.ok
    assert sandbox.exec(["printf", r"\377\0"]).stdout_bytes == b"\xff\0"
    assert sandbox.exec("sleep 60", timeout_seconds=1).timed_out
    with pytest.raises(berth.CommandFailed, match="ended with code 1"):
        sandbox.exec("false", check=True)
    with pytest.raises(berth.BadRequest, match="cmd required") as caught:
        sandbox.exec("")
    assert caught.value.request_id


def test_output_as_it_comes(sandbox: Sandbox) -> None:
    stream = sandbox.stream(r"echo one; read x; echo $x >&2; printf '\377'; exit 7", stdin="two\n")
    output = list(stream)
    end = output[-1]
    assert isinstance(end, Exit)
    assert (end.exit_code, end.timed_out) == (7, False)
    assert b"".join(o.data for o in output if isinstance(o, Stdout)) == b"one\n\xff"
    assert b"".join(o.data for o in output if isinstance(o, Stderr)) == b"two\n"


def test_leaving_an_output_kills_the_command(sandbox: Sandbox) -> None:
    with sandbox.stream("while echo tick; do sleep 0.1; done # left early") as output:
        assert isinstance(next(output), Stdout)
    sandbox.exec("for i in $(seq 100); do pgrep -f '[l]eft early' || exit 0; sleep 0.1; done; exit 1", check=True)


def test_a_command_with_open_input(sandbox: Sandbox) -> None:
    with sandbox.process("while read x; do echo got $x; done; echo end") as process:
        process.write("a\n")
        assert process.recv(timeout=30) == Stdout(b"got a\n")
        process.write(b"b\n")
        assert process.recv(timeout=30) == Stdout(b"got b\n")
        process.close_stdin()
        rest = list(process)
        assert rest[0] == Stdout(b"end\n")
        assert process.exit is not None
        assert process.exit.exit_code == 0
    with sandbox.process(["sleep", "60"]) as process:
        process.signal("TERM")
        assert process.recv(timeout=30) == process.exit
        assert process.exit is not None
        assert process.exit.exit_code == 143


def test_a_terminal(sandbox: Sandbox) -> None:
    with sandbox.pty(cols=100, rows=30, cwd="/tmp") as pty:
        seen = b""

        def until(text: bytes) -> None:
            nonlocal seen
            while text not in seen:
                seen += pty.recv(timeout=30)
            seen = seen.partition(text)[2]

        pty.send("echo $((20+1)):$(stty size):$PWD\r")
        until(b"21:30 100:/tmp")
        pty.resize(132, 43)
        pty.send("stty size\r")
        until(b"43 132")
        # A shell that is interrupted while it starts a command may wait for that command.
        pty.send("sh -c 'echo runs-$((6*6)); exec sleep 600'\r")
        until(b"runs-36")
        pty.send("\x03")
        until(b"# ")  # earlier input may be lost
        pty.send("echo gr\u00fc\u00df-$((6*7))\r")
        until("gr\u00fc\u00df-42".encode())
        pty.send("exit 5\r")
        for _ in pty:
            pass
        assert pty.exit_code == 5


def test_files(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("/srv/deep/in/a b.txt", "grüß\n", mode="0640")
    assert files.read_text("/srv/deep/in/a b.txt") == "grüß\n"
    stat = files.stat("/srv/deep/in/a b.txt")
    assert (stat.type, stat.size_bytes, stat.mode) == ("file", 7, "0640")
    files.write("/srv/deep/pieces", (bytes([n]) * 1000 for n in range(3)))
    assert files.read("/srv/deep/pieces") == b"\0" * 1000 + b"\1" * 1000 + b"\2" * 1000
    files.mkdir("/srv/deep/empty")
    sandbox.exec("ln -s pieces /srv/deep/link", check=True)
    assert [(e.name, e.type, e.target) for e in files.list("/srv/deep")] == [
        ("empty", "dir", None),
        ("in", "dir", None),
        ("link", "symlink", "pieces"),
        ("pieces", "file", None),
    ]
    assert files.exists("/srv/deep/link")
    files.delete("/srv/deep/link")
    assert not files.exists("/srv/deep/link")
    with pytest.raises(berth.Conflict):
        files.delete("/srv/deep")
    files.delete("/srv/deep", recursive=True)
    with pytest.raises(berth.NotFound, match="no such file or directory"):
        files.read("/srv/deep/pieces")
    with pytest.raises(berth.BadRequest, match="is a directory"):
        files.read("/srv")


def test_64_mib_there_and_back(sandbox: Sandbox, tmp_path: Path) -> None:
    size = 64 << 20
    source, target = tmp_path / "out", tmp_path / "back"
    source.write_bytes(os.urandom(size))
    told: list[tuple[int, int | None]] = []
    assert sandbox.files.upload(source, "/srv/big", progress=lambda *p: told.append(p)) == size
    assert told[-1] == (size, size)
    there = sandbox.exec("sha256sum /srv/big", check=True).stdout.split()[0]
    told.clear()
    assert sandbox.files.download("/srv/big", target, progress=lambda *p: told.append(p)) == size
    assert told[-1] == (size, size)
    sums = [hashlib.sha256(f.read_bytes()).hexdigest() for f in (source, target)]
    assert sums == [there, there]
    sandbox.files.delete("/srv/big")


SERVE = """
mkdir -p /srv/www
echo served > /srv/www/page
nohup python3 -m http.server --directory /srv/www 8000 >/dev/null 2>&1 &
until curl -s localhost:8000 >/dev/null; do sleep 0.1; done
"""


def test_a_preview(client: Berth, sandbox: Sandbox) -> None:
    sandbox.exec(SERVE, check=True, timeout_seconds=300)
    answer = look(sandbox.preview_url(8000) + "/page")
    assert (answer.status_code, answer.text) == (200, "served\n")
    ports = {p.port: p for p in sandbox.ports.list()}
    assert ports[8000].url == sandbox.preview_url(8000)
    sandbox.ports.add(8000, "web")
    assert {p.port: p.label for p in sandbox.ports.list()}[8000] == "web"
    sandbox.ports.remove(8000)

    with client.sandboxes.create("base", ttl_seconds=TTL, preview="token") as private:
        private.exec(SERVE, check=True, timeout_seconds=300)
        assert look(private.preview_url(8000) + "/page").status_code == 401
        access = private.preview_token(port=8000, ttl_seconds=60)
        answer = look(private.preview_url(8000) + "/page", {"Berth-Preview-Token": access.token})
        assert (answer.status_code, answer.text) == (200, "served\n")


def test_what_is_told_of_it(client: Berth) -> None:
    sandbox = client.sandboxes.create("base", ttl_seconds=TTL, metadata={"n": [1, None]})
    assert sandbox.metadata == {"n": [1, None]}
    assert sandbox.id in [s.id for s in client.sandboxes.list()]
    (running,) = [e for e in sandbox.events(tail=50) if e.type == "sandbox.running"]
    seen: Queue[str | None] = Queue()

    def follow() -> None:
        for event in sandbox.follow_events(since=running.ts):
            if event.type != "sandbox.ssh_ready":  # at any time
                seen.put(event.type)
        seen.put(None)

    follower = threading.Thread(target=follow)
    follower.start()
    sandbox.pause()
    assert seen.get(timeout=60) == "sandbox.paused"
    with pytest.raises(berth.Conflict, match="resume/wake it first"):
        sandbox.exec("true")
    sandbox.resume()
    assert seen.get(timeout=60) == "sandbox.resumed"
    sandbox.delete()
    assert seen.get(timeout=60) == "sandbox.deleted"
    assert seen.get(timeout=60) is None
    follower.join()
    with pytest.raises(berth.NotFound):
        sandbox.refresh()


def test_logs(sandbox: Sandbox) -> None:
    assert isinstance(sandbox.logs(stream="both", tail=10), str)
    assert sandbox.logs(stream="console", tail=1).count("\n") <= 1
    with sandbox.follow_logs(stream="console") as lines:
        sandbox.exec("echo 'told to the console' > /dev/console", check=True)
        for line in lines:
            assert line.stream == "console"
            if "told to the console" in line.line:
                break


def test_errors(client: Berth) -> None:
    with pytest.raises(berth.NotFound):
        client.sandboxes.get("a" * 26)
    with pytest.raises(berth.BadRequest, match="unknown template"):
        client.sandboxes.create("no-such-template")
    with Berth(token="brt_aaaaaaaa_bbbb") as nobody, pytest.raises(berth.Unauthorized):
        nobody.sandboxes.get("a" * 26)
    key = "the-same-key-" + os.urandom(8).hex()
    with client.sandboxes.create("base", ttl_seconds=TTL, idempotency_key=key) as one:
        assert client.sandboxes.create("base", ttl_seconds=TTL, idempotency_key=key).id == one.id
        with pytest.raises(berth.Conflict, match="idempotency key reused"):
            client.sandboxes.create("base", ttl_seconds=TTL + 1, idempotency_key=key)
