"""Apps and their deployments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import berth_client as berth
from berth_client import AsyncBerth, Berth

from .fake import Answer, Fake

APP: dict[str, Any] = {
    "id": "app-1",
    "name": "shop",
    "status": "created",
    "url": "https://app-1.app.example.com/",
    "git_url": "",
    "port": 3000,
    "max_instances": 1,
    "instances": 0,
    "auto_hibernate": True,
    "idle_timeout_seconds": 900,
    "auto_deploy": False,
    "previews": False,
    "fork_previews": False,
    "env": {},
    "sandbox_id": "",
    "deployment_id": "",
    "last_request_at": None,
    "created_at": "2026-11-20T13:05:09.412Z",
    "updated_at": "2026-11-20T13:05:09.412Z",
}
DEPLOYMENT: dict[str, Any] = {
    "id": "dep-1",
    "app_id": "app-1",
    "status": "queued",
    "current": False,
    "git_ref": "",
    "git_commit": "",
    "git_message": "",
    "git_author": "",
    "source": "upload",
    "trigger": "api",
    "created_at": "2026-11-20T13:05:09.412Z",
    "started_at": None,
    "finished_at": None,
    "error": "",
    "phases": [],
}
LINES = [b'event: stdout\ndata: {"line":"building"}\n\n', b'event: stderr\ndata: {"line":"warning"}\n\n']
LIVE = b'event: end\ndata: {"id":"dep-1","app_id":"app-1","status":"live","current":true,"git_ref":"","git_commit":"","git_message":"","git_author":"","source":"upload","trigger":"api","created_at":"2026-11-20T13:05:09.412Z","started_at":null,"finished_at":null,"error":"","phases":[]}\n\n'  # noqa: E501


def at(status: str, **more: Any) -> Answer:
    return Answer(200, DEPLOYMENT | {"status": status} | more)


def stream(*chunks: bytes, cut: bool = False) -> Answer:
    return Answer(200, chunks=list(chunks), headers={"Content-Type": "text/event-stream"}, cut=cut)


def app(client: Berth, fake: Fake) -> berth.App:
    fake.say(Answer(200, APP))
    got = client.apps.get("app-1")
    fake.asked.clear()
    return got


def test_an_app_without_a_repository_is_uploaded(client: Berth, fake: Fake) -> None:
    fake.say(Answer(201, APP))
    shop = client.apps.create("shop", port=8000)
    assert fake.asked[0].json == {"name": "shop", "source": "upload", "port": 8000}
    assert shop.url == "https://app-1.app.example.com/"
    client.apps.create("shop", "https://example.com/shop")
    assert fake.asked[1].json == {"name": "shop", "git_url": "https://example.com/shop"}


def test_a_deployment_is_followed_through_a_broken_stream(client: Berth, fake: Fake) -> None:
    shop = app(client, fake)
    fake.say(
        Answer(200, {"source_id": "src-1", "size_bytes": 3}),
        Answer(202, DEPLOYMENT),
        stream(LINES[0], cut=True),
        stream(LINES[0], b'event: error\ndata: {"error":"no leader"}\n\n'),
        stream(*LINES, LIVE),
    )
    said: list[str] = []
    deployment = shop.deploy(source=b"tgz", log=lambda line: said.append(f"{line.stream} {line.line}"))
    assert [(a.method, a.path) for a in fake.asked[:2]] == [
        ("PUT", "/v1/apps/app-1/source"),
        ("POST", "/v1/apps/app-1/deploys"),
    ]
    assert fake.asked[0].body == b"tgz"
    assert fake.asked[1].json == {"source_id": "src-1"}
    assert said == ["stdout building", "stderr warning"]
    assert deployment.status == "live"


def test_a_deployment_that_began_again_elsewhere_says_all_of_its_lines(client: Berth, fake: Fake) -> None:
    def says(line: str) -> bytes:
        return f'event: stdout\ndata: {{"line":"{line}"}}\n\n'.encode()

    shop = app(client, fake)
    fake.say(
        Answer(202, DEPLOYMENT),
        stream(says("clone"), says("on a"), says("built"), cut=True),
        stream(says("clone"), says("on b"), says("built"), LIVE),
    )
    said: list[str] = []
    shop.deploy(log=lambda line: said.append(line.line))
    assert said == ["clone", "on a", "built", "on b", "built"]


def test_a_deployment_that_fails_says_why(client: Berth, fake: Fake) -> None:
    shop = app(client, fake)
    fake.say(at("queued"), at("building"), at("failed", error="npm ERR! missing script: build"))
    with pytest.raises(berth.DeploymentFailed, match="missing script"):
        shop.deploy(git_ref="main")
    fake.say(at("queued"), at("failed", error="cancelled"))
    assert shop.rollback(wait=False).cancel().status == "failed"


def test_what_changes_an_app(client: Berth, fake: Fake) -> None:
    shop = app(client, fake)
    variable = {"key": "A", "value": "b", "secret": False, "scope": "", "updated_at": "2026-11-20T13:05:09.412Z"}
    fake.say(Answer(200, APP))
    shop.update(port=None, start_command="x")
    fake.say(Answer(200, variable))
    shop.set_env("A", "b", secret=True)
    fake.say(Answer(200, [variable]))
    assert shop.import_env("A=b")[0].key == "A"
    assert shop.env()[0].value == "b"
    domain = {
        "domain": "shop.example.com",
        "app_id": "app-1",
        "status": "pending",
        "url": "https://shop.example.com/",
        "dns": [{"type": "TXT", "name": "_berth.shop.example.com", "value": "v"}],
        "certificate": {"status": "none", "expires_at": None},
        "checked_at": None,
        "next_check_at": None,
        "verified_at": None,
        "created_at": "2026-11-20T13:05:09.412Z",
    }
    fake.say(Answer(201, domain))
    assert shop.add_domain("shop.example.com").dns[0].type == "TXT"
    fake.say(Answer(200, domain | {"status": "verified"}))
    assert shop.verify_domain("shop.example.com").status == "verified"
    assert shop.domain("shop.example.com").certificate.status == "none"
    fake.say(Answer(200, [domain]))
    assert [d.domain for d in shop.domains()] == ["shop.example.com"]
    fake.say(Answer(204))
    shop.remove_domain("shop.example.com")
    shop.delete_env("A")
    shop.delete()
    assert [(a.method, a.path) for a in fake.asked] == [
        ("PATCH", "/v1/apps/app-1"),
        ("PUT", "/v1/apps/app-1/env/A"),
        ("POST", "/v1/apps/app-1/env/import"),
        ("GET", "/v1/apps/app-1/env"),
        ("POST", "/v1/apps/app-1/domains"),
        ("POST", "/v1/apps/app-1/domains/shop.example.com/verify"),
        ("GET", "/v1/apps/app-1/domains/shop.example.com"),
        ("GET", "/v1/apps/app-1/domains"),
        ("DELETE", "/v1/apps/app-1/domains/shop.example.com"),
        ("DELETE", "/v1/apps/app-1/env/A"),
        ("DELETE", "/v1/apps/app-1"),
    ]
    assert fake.asked[0].json == {"port": None, "start_command": "x"}


def test_without_waiting_in_between(fake: Fake) -> None:
    async def run() -> list[str]:
        async with AsyncBerth(fake.url, "brt_x_y") as client:
            fake.say(Answer(200, APP), Answer(202, DEPLOYMENT), stream(*LINES, LIVE))
            said: list[str] = []
            await (await client.apps.get("app-1")).deploy(log=lambda line: said.append(line.line))
            return said

    assert asyncio.run(run()) == ["building", "warning"]
