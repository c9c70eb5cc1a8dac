"""Requests, retries and errors."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import berth_client as berth
from berth_client import APIError, AsyncBerth, Berth, operations

from .fake import SANDBOX, Answer, Asked, Fake, serve

VERSION = {"version": "1", "commit": "c", "go_version": "go", "api": "v1"}
EXEC = {"exit_code": 0, "stdout": "hi\n", "stderr": "", "duration_ms": 3, "timed_out": False, "truncated": False}


def refused(status: int, **headers: str) -> Answer:
    return Answer(
        status,
        {"error": "max sandboxes reached", "detail": "delete some", "max": 10},
        headers={"X-Request-Id": "req-1", **headers},
    )


def test_create_sends_what_was_given_and_no_more(client: Berth, fake: Fake) -> None:
    fake.say(Answer(201, SANDBOX))
    sandbox = client.sandboxes.create("base", ttl_seconds=60, volumes={"data": "/mnt"}, metadata={"a": [1]})
    (asked,) = fake.asked
    assert (asked.method, asked.path) == ("POST", "/v1/sandboxes")
    assert asked.headers["authorization"] == "Bearer brt_test_key"
    assert len(asked.headers["idempotency-key"]) >= 32
    assert asked.json == {
        "template": "base",
        "ttl_seconds": 60,
        "metadata": {"a": [1]},
        "volumes": [{"name": "data", "mount_path": "/mnt"}],
    }
    assert sandbox.info.created_at.year == 2026
    assert sandbox.info.started_at is not None
    assert sandbox.preview_url(8080) == "http://8080-k7q2mz4tn6vxb3jw5yr8acdefg.preview.localhost"
    assert sandbox.id not in repr(sandbox)


def test_a_post_always_has_a_body(client: Berth, fake: Fake, sandbox: berth.Sandbox) -> None:
    sandbox.pause()
    assert fake.asked[0].json == {}


def test_segments_of_a_path_stay_segments(client: Berth, fake: Fake) -> None:
    fake.say(Answer(404, {"error": "not found"}))
    with pytest.raises(berth.NotFound):
        client.sandboxes.get("../me?x=#")
    assert fake.asked[0].path == "/v1/sandboxes/..%2Fme%3Fx%3D%23"


def test_null_and_absent_are_two_things(fake: Fake, sandbox: berth.Sandbox) -> None:
    answer = {"status": "running", "ttl_seconds": None, "expires_at": None, "persistent": True}
    fake.say(Answer(200, answer))
    sandbox.set_lifecycle(persistent=True)
    sandbox.set_lifecycle(ttl_seconds=None)
    sandbox.set_lifecycle(ttl_seconds=5)
    assert [a.json for a in fake.asked] == [{"persistent": True}, {"ttl_seconds": None}, {"ttl_seconds": 5}]


@pytest.mark.parametrize(
    ("status", "of"),
    [
        (400, berth.BadRequest),
        (401, berth.Unauthorized),
        (402, berth.PaymentRequired),
        (403, berth.Forbidden),
        (404, berth.NotFound),
        (409, berth.Conflict),
        (410, APIError),
        (429, berth.LimitExceeded),
        (500, berth.ServerError),
        (501, berth.ServerError),
    ],
)
def test_a_refusal_is_raised_at_once(
    client: Berth, fake: Fake, status: int, of: type[APIError], hasty: list[float]
) -> None:
    fake.say(refused(status))
    with pytest.raises(APIError) as caught:
        client.sandboxes.create()
    e = caught.value
    assert type(e) is of
    assert (e.status, e.error, e.detail, e.request_id) == (status, "max sandboxes reached", "delete some", "req-1")
    assert e.fields == {"max": 10}
    assert str(e) == f"max sandboxes reached: delete some (status {status}, request req-1)"
    assert len(fake.asked) == 1
    assert hasty == []


def test_an_answer_that_is_not_ours_is_told_by_its_status(client: Berth, fake: Fake) -> None:
    for body in (b"<html>", b"[]", b'{"error": 5}', b"\xff"):
        fake.say(Answer(403, body=body))
        with pytest.raises(berth.Forbidden, match=r"^forbidden \(status 403\)$"):
            client.version()
    fake.say(Answer(302, headers={"Location": "http://elsewhere.invalid/"}))
    with pytest.raises(APIError, match="found"):
        client.version()
    fake.say(Answer(200, body=b"not json"))
    with pytest.raises(berth.BerthError, match="not JSON"):
        client.version()


@pytest.mark.parametrize("status", [502, 507])
def test_a_create_is_tried_again_under_its_key(client: Berth, fake: Fake, status: int, hasty: list[float]) -> None:
    fake.say(refused(status), refused(status), Answer(201, SANDBOX))
    client.sandboxes.create()
    assert len(fake.asked) == 3
    assert len({a.headers["idempotency-key"] for a in fake.asked}) == 1
    assert len(hasty) == 2
    assert hasty[1] > hasty[0] > 0


def test_two_creates_have_two_keys(client: Berth, fake: Fake) -> None:
    fake.say(Answer(201, SANDBOX))
    client.sandboxes.create()
    client.sandboxes.create()
    client.sandboxes.create(idempotency_key="mine")
    keys = [a.headers["idempotency-key"] for a in fake.asked]
    assert keys[0] != keys[1]
    assert keys[2] == "mine"


def test_tries_come_to_an_end(client: Berth, fake: Fake) -> None:
    fake.say(refused(507))
    with pytest.raises(berth.InsufficientCapacity):
        client.sandboxes.create()
    assert len(fake.asked) == 5


def test_503_is_waited_for_where_it_says_when(client: Berth, fake: Fake, hasty: list[float]) -> None:
    fake.say(refused(503, **{"Retry-After": "2"}), Answer(200, SANDBOX))
    client.sandboxes.get("x")
    assert 2 <= hasty[0] < 3
    fake.say(refused(503))
    with pytest.raises(berth.Unavailable):
        client.sandboxes.get("x")
    assert len(fake.asked) == 3


def test_an_hour_is_not_waited_for(client: Berth, fake: Fake, hasty: list[float]) -> None:
    fake.say(refused(503, **{"Retry-After": "3600"}))  # an app whose workspace is paused
    with pytest.raises(berth.Unavailable) as e:
        client.sandboxes.get("x")
    assert (e.value.retry_after, hasty, len(fake.asked)) == (3600, [], 1)


def test_a_rate_limit_is_waited_for_by_any_call(fake: Fake, sandbox: berth.Sandbox, hasty: list[float]) -> None:
    fake.say(refused(429, **{"Retry-After": "1"}), Answer(200, EXEC))
    assert sandbox.exec("true").ok
    assert 1 <= hasty[0] < 2


def test_a_command_is_never_run_twice(fake: Fake, sandbox: berth.Sandbox) -> None:
    fake.say(refused(502))
    with pytest.raises(berth.Unreachable):
        sandbox.exec("pay-once")
    fake.say(Answer(cut=True))
    with pytest.raises(berth.ConnectionFailed):
        sandbox.exec("pay-once")
    assert len(fake.asked) == 2


def test_a_broken_connection_is_made_again_for_what_may_be_done_twice(client: Berth, fake: Fake) -> None:
    fake.say(Answer(cut=True), Answer(200, SANDBOX))
    assert client.sandboxes.get("x").status == "running"
    assert len(fake.asked) == 2


def test_the_next_replica_is_asked_when_one_is_away(fake: Fake, hasty: list[float]) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{s.getsockname()[1]}"
        fake.say(Answer(200, SANDBOX))
        with Berth([away, fake.url], "k") as client:
            sandbox = client.sandboxes.get("x")
            assert hasty == [0]
            fake.say(Answer(200, EXEC))
            sandbox.exec("true")  # no longer sent to the other
            assert hasty == [0]
        with Berth(away, "k", retries=2) as client, pytest.raises(berth.ConnectionFailed) as caught:
            client.version()
    assert away in str(caught.value)
    assert len(hasty) == 3


def test_a_call_after_one_that_was_not_answered_begins_with_another_replica(fake: Fake) -> None:
    fake.say(Answer(cut=True))
    with serve() as other, Berth([fake.url, other.url], "k") as client:
        sandbox = berth.Sandbox(client._transport, berth.models.Sandbox.from_json(SANDBOX))
        with pytest.raises(berth.ConnectionFailed):
            sandbox.exec("pay-once")
        other.say(Answer(200, EXEC))
        assert sandbox.exec("pay-once").ok
        assert (len(fake.asked), len(other.asked)) == (1, 1)


def test_a_call_after_a_deadline_begins_with_another_replica(fake: Fake) -> None:
    over = threading.Event()

    def frozen(asked: Asked) -> Answer:
        over.wait(60)
        return Answer(200, SANDBOX)

    async def main(other: Fake) -> None:
        async with AsyncBerth([fake.url, other.url], "k") as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.sandboxes.get("x")
            await client.sandboxes.get("x")

    fake.say(frozen)
    with serve() as other:
        other.say(Answer(200, SANDBOX))
        asyncio.run(main(other))
        assert (len(fake.asked), len(other.asked)) == (1, 1)
    over.set()


def test_a_call_may_be_used_again(client: Berth, fake: Fake) -> None:
    def page(asked: Asked) -> Answer:
        if "cursor=c2" in asked.path:
            return Answer(200, [dict(SANDBOX, id="second")])
        return Answer(200, [dict(SANDBOX, id="first")], headers={"Link": '</v1/sandboxes?cursor=c2>; rel="next"'})

    fake.say(page)
    listing = operations.list_sandboxes()
    for _ in range(2):
        assert [s.id for s in client.pages(listing)] == ["first", "second"]
    fake.asked.clear()
    fake.say(Answer(201, SANDBOX))
    create = operations.create_sandbox(berth.models.CreateSandbox(template="base"))
    for _ in range(2):
        client.call(create)
    assert len({a.headers["idempotency-key"] for a in fake.asked}) == 2


def test_many_long_calls_leave_room_for_another(client: Berth, fake: Fake) -> None:
    with contextlib.ExitStack() as stack:
        together = threading.Barrier(111, timeout=60)

        def answer(asked: Asked) -> Answer:
            together.wait()
            return Answer(200, SANDBOX)

        fake.say(answer)
        pool = stack.enter_context(ThreadPoolExecutor(110))
        calls = [pool.submit(client.sandboxes.get, "x") for _ in range(110)]
        together.wait()
        assert {c.result().status for c in calls} == {"running"}


def test_errors_come_whole_from_another_process() -> None:
    refusal = berth.LimitExceeded(429, "max sandboxes reached", "delete some", "req-1", 2.0, {"max": 10})
    failure = berth.CommandFailed(berth.ExecResult(2, "", "no\n", b"", b"no\n", 1, False, False))
    for error in (refusal, failure, berth.StreamBroken("gone")):
        read = pickle.loads(pickle.dumps(error))
        assert (type(read), str(read), read.__dict__) == (type(error), str(error), error.__dict__)
    assert str(refusal) == "max sandboxes reached: delete some (status 429, request req-1)"
    assert str(failure) == "the command ended with code 2: no"


def test_a_forked_process_has_connections_of_its_own(client: Berth, fake: Fake) -> None:
    fake.say(Answer(json=VERSION))
    client.version()
    child = multiprocessing.get_context("fork").Process(target=client.version)
    child.start()
    child.join(30)
    client.version()
    assert child.exitcode == 0
    parent, forked, again = (asked.port for asked in fake.asked)
    assert parent == again != forked


def test_an_async_client_may_be_used_in_one_event_loop_after_another(fake: Fake) -> None:
    fake.say(Answer(json=VERSION))
    client = AsyncBerth(fake.url, "brt_test_key")

    async def twice() -> None:
        await client.version()
        await client.version()

    asyncio.run(twice())
    asyncio.run(twice())
    first, second, third, fourth = (asked.port for asked in fake.asked)
    assert first == second != third == fourth
    asyncio.run(client.aclose())


def test_lists_are_read_page_by_page(client: Berth, fake: Fake) -> None:
    def page(asked: Asked) -> Answer:
        if "cursor=c2" in asked.path:
            return Answer(200, [dict(SANDBOX, id="third")])
        link = '</v1/sandboxes?cursor=c2&limit=2>; rel="next"'
        return Answer(200, [dict(SANDBOX, id="first"), dict(SANDBOX, id="second")], headers={"Link": link})

    fake.say(page)
    assert [s.id for s in client.sandboxes.list()] == ["first", "second", "third"]


def test_settings_come_from_the_environment(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BERTH_URL", "BERTH_URLS", "BERTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for url, token, message in [
        (None, "k", "no URL"),
        ("ftp://x", "k", "want http"),
        ("localhost:80", "k", "want http"),
        (" , ", "k", "no URL"),
        (fake.url, None, "no token"),
    ]:
        with pytest.raises(berth.BerthError, match=message):
            Berth(url, token)
    monkeypatch.setenv("BERTH_URL", fake.url + "/")
    monkeypatch.setenv("BERTH_TOKEN", "from-env")
    fake.say(Answer(200, SANDBOX))
    with Berth() as client:
        client.sandboxes.get("x")
    assert fake.asked[0].path == "/v1/sandboxes/x"
    assert fake.asked[0].headers["authorization"] == "Bearer from-env"


def test_any_operation_can_be_called(client: Berth, fake: Fake) -> None:
    me: dict[str, Any] = {"id": "u-1", "email": "ada@example.com", "current_org": None, "orgs": []}
    fake.say(Answer(200, me))
    assert client.call(operations.me()).email == "ada@example.com"
    fake.say(Answer(204))
    client.run(operations.revoke_token("k3v7q2xa"))
    fake.say(Answer(200, []))
    assert list(client.pages(operations.list_tokens())) == []
    fake.say(Answer(200, body=b"backup"))
    with client.stream(operations.backup()) as response:
        assert response.read() == b"backup"


def test_the_async_client_does_the_same(fake: Fake, hasty: list[float]) -> None:
    async def main() -> None:
        async with AsyncBerth(fake.url, "k") as client:
            fake.say(refused(507), Answer(201, SANDBOX))
            sandbox = await client.sandboxes.create()
            fake.say(Answer(200, EXEC))
            assert (await sandbox.exec(["echo", "hi"], check=True)).stdout == "hi\n"
            fake.say(Answer(200, [SANDBOX]))
            assert [s.id async for s in client.sandboxes.list()] == [SANDBOX["id"]]
            fake.say(Answer(204))
            async with sandbox:
                pass
            assert fake.asked[-1].method == "DELETE"
            fake.say(refused(404))
            with pytest.raises(berth.NotFound):
                await client.sandboxes.get("x")

    asyncio.run(main())
    assert len(hasty) == 1
