"""Hibernation, snapshots, forks and templates."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import berth_client as berth
from berth_client import AsyncBerth, Berth, Sandbox, Stdout

from .conftest import TTL

# A process that counts requests in memory only.
COUNTER = """
import http.server
class Count(http.server.BaseHTTPRequestHandler):
    n = 0
    def do_GET(self):
        Count.n += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d" % Count.n)
http.server.HTTPServer(("127.0.0.1", 7000), Count).serve_forever()
"""


def start_counter(sandbox: Sandbox) -> None:
    sandbox.files.write("/srv/counter.py", COUNTER)
    sandbox.exec("nohup python3 /srv/counter.py >/dev/null 2>&1 &", check=True)
    sandbox.exec("until curl -s localhost:7000 >/dev/null; do sleep 0.1; done", check=True, timeout_seconds=300)


def count(sandbox: Sandbox) -> int:
    return int(sandbox.exec("curl -s localhost:7000", check=True).stdout)


def test_hibernating_and_lifecycle(client: Berth) -> None:
    with client.sandboxes.create("base", ttl_seconds=TTL) as sandbox:
        start_counter(sandbox)
        assert count(sandbox) == 2
        assert sandbox.hibernate().status == "hibernated"
        assert count(sandbox) == 3  # this wakes it
        assert sandbox.refresh().status == "running"
        assert sandbox.lifecycle().ttl_seconds == TTL
        life = sandbox.set_lifecycle(ttl_seconds=None, persistent=True)
        assert (life.expires_at, life.persistent) == (None, True)
        assert sandbox.set_lifecycle(ttl_seconds=TTL).persistent


def test_a_snapshot(client: Berth) -> None:
    with client.sandboxes.create("base", ttl_seconds=TTL) as sandbox:
        start_counter(sandbox)
        snapshot = sandbox.snapshot("before")
        try:
            assert snapshot.sandbox_id == sandbox.id
            assert [s.id for s in client.snapshots.list(sandbox_id=sandbox.id)] == [snapshot.id]
            assert count(sandbox) == 2
            with client.sandboxes.create(from_snapshot=snapshot, ttl_seconds=TTL) as copy:
                assert copy.info.from_snapshot == snapshot.id
                assert count(copy) == 2
        finally:
            client.snapshots.delete(snapshot.id)
        with pytest.raises(berth.NotFound):
            client.snapshots.get(snapshot.id)


def test_forks(client: Berth) -> None:
    with client.sandboxes.create("base", ttl_seconds=TTL) as parent:
        start_counter(parent)
        (cold,) = parent.fork()
        with cold:
            assert cold.info.forked_from == parent.id
            assert cold.files.exists("/srv/counter.py")
            assert cold.exec("curl -s localhost:7000").exit_code != 0  # booted afresh
        with parent.fork_tree(2, metadata={"try": "two"}) as tree:
            assert tree.failed == []
            first, second = tree.children
            assert first.metadata["fork_tree_id"] == tree.tree_id
            assert sorted(c.metadata["fork_index"] for c in tree.children) == [0, 1]
            assert first.metadata["try"] == "two"
            assert [count(first), count(first), count(second)] == [2, 3, 2]
            winner = tree.promote(second)
        with winner:
            assert winner.metadata["fork_tree_role"] == "promoted"
            assert count(winner) == 3
            with pytest.raises(berth.NotFound):
                first.refresh()
            assert count(parent) == 2


def test_a_volume(client: Berth) -> None:
    name = "v-" + os.urandom(6).hex()
    volume = client.volumes.create(name, size_mb=64)
    assert (volume.size_mb, volume.attached_to) == (64, None)
    try:
        for text in ("", "kept\n"):
            with client.sandboxes.create("base", ttl_seconds=TTL, volumes={name: "/data"}) as sandbox:
                assert client.volumes.get(name).attached_to == sandbox.id
                assert sandbox.exec("cat /data/note 2>/dev/null; echo kept > /data/note; sync").stdout == text
        with pytest.raises(berth.Conflict, match="volume already exists"):
            client.volumes.create(name)
        assert name in [v.name for v in client.volumes.list()]
    finally:
        client.volumes.delete(name)


def test_a_build_that_fails(client: Berth) -> None:
    assert "base" in [t.name for t in client.templates.list()]
    assert client.templates.get("base").status == "ready"
    name = "t-" + os.urandom(6).hex()
    build = client.templates.build(name, "base", run=["echo this is said; exit 3"])
    with pytest.raises(berth.BuildFailed):
        build.wait(timeout=300)
    assert any("this is said" in line for line in build.logs())
    assert [b.id for b in client.templates.builds(name)] == [build.id]


def test_the_async_client() -> None:
    async def main() -> None:
        async with AsyncBerth() as client, await client.sandboxes.create("base", ttl_seconds=TTL) as sandbox:
            results = await asyncio.gather(*(sandbox.exec(["echo", str(n)]) for n in range(4)))
            assert [r.stdout for r in results] == ["0\n", "1\n", "2\n", "3\n"]
            output = [o async for o in sandbox.stream("echo out")]
            assert output[0] == Stdout(b"out\n")
            async with sandbox.pty() as pty:
                await pty.send("exit 4\r")
                async for _ in pty:
                    pass
                assert pty.exit_code == 4
            async with sandbox.process("cat") as process:
                await process.write("x")
                assert await process.recv(timeout=30) == Stdout(b"x")
            await sandbox.files.write("/srv/x", b"async")
            assert await sandbox.files.read("/srv/x") == b"async"
            async with sandbox.follow_events() as events:
                async for event in events:
                    assert event.type == "sandbox.running"
                    break
            async with await sandbox.fork_tree(2) as tree:
                said = await asyncio.gather(*(c.exec("cat /srv/x") for c in tree.children))
                assert [r.stdout for r in said] == ["async", "async"]
                winner = await tree.promote(tree.children[0])
            async with winner:
                assert (await winner.exec("cat /srv/x")).stdout == "async"

    asyncio.run(main())


def test_the_example() -> None:
    example = Path(__file__).parent.parent / "examples" / "fork_tree.py"
    ran = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "2 ways from one moment" in ran.stdout
    assert ran.stdout.endswith("kept: chosen\n")
