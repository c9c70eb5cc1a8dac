"""Databases, and SQL by their brokers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import berth_client as berth
from berth_client import AsyncBerth, Berth

from .fake import Answer, Fake

DATABASE: dict[str, Any] = {
    "id": "7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37",
    "status": "running",
    "template": "postgres-16",
    "size": "1g",
    "always_on": False,
    "created_at": "2026-11-20T13:05:09.412Z",
    "host": "7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37.db.example.com",
    "port": 5432,
    "database": "app",
    "username": "app",
    "password": "secret",
    "connection_url": "postgres://app:secret@7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37.db.example.com:5432/app",
    "broker_token": "brk_1",
    "broker_url": "https://berth.example.com/v1/databases/7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37/proxy",
}
SECRETS = ("database", "username", "password", "connection_url", "broker_token")
PATH = "/v1/databases/7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37"
RESULT = {
    "columns": [{"name": "n", "type": "int4"}],
    "rows": [[42]],
    "row_count": 1,
    "command": "SELECT",
    "truncated": False,
}


def at(status: str, **more: Any) -> Answer:
    """The database in another status, in which it has no credentials."""
    return Answer(200, {k: v for k, v in DATABASE.items() if k not in SECRETS} | {"status": status} | more)


def running(client: Berth, fake: Fake) -> berth.Database:
    fake.say(Answer(200, DATABASE))
    database = client.databases.get(DATABASE["id"])
    fake.asked.clear()
    return database


def test_create_waits_until_the_database_runs(client: Berth, fake: Fake) -> None:
    fake.say(at("provisioning"), at("provisioning", error="PostgreSQL is starting"), Answer(200, DATABASE))
    database = client.databases.create(label="orders", size="4g")
    assert [(a.method, a.path) for a in fake.asked] == [("POST", "/v1/databases"), ("GET", PATH), ("GET", PATH)]
    assert fake.asked[0].json == {"label": "orders", "size": "4g"}
    assert len(fake.asked[0].headers["idempotency-key"]) >= 32
    assert database.connection_url == DATABASE["connection_url"]
    assert "secret" not in repr(database)


def test_a_create_that_fails_says_why(client: Berth, fake: Fake) -> None:
    fake.say(at("provisioning"), at("failed", error="no available compute node"))
    with pytest.raises(berth.DatabaseFailed, match="no available compute node"):
        client.databases.create()


def test_one_that_sleeps_has_no_url(client: Berth, fake: Fake) -> None:
    fake.say(at("hibernated"))
    database = client.databases.get(DATABASE["id"])
    with pytest.raises(berth.BerthError, match="hibernated"):
        _ = database.connection_url
    fake.say(Answer(202, {"status": "waking", "detail": ""}), at("hibernated"), Answer(200, DATABASE))
    assert database.wake().status == "running"


def test_a_wake_that_fails_says_why(client: Berth, fake: Fake) -> None:
    fake.say(at("hibernated", error="of an earlier wake"))
    database = client.databases.get(DATABASE["id"])
    fake.say(Answer(202, {"status": "waking", "detail": ""}), at("waking"), at("hibernated", error="no memory"))
    with pytest.raises(berth.BerthError, match="hibernated: no memory"):
        database.wake()


def test_a_wake_of_one_that_runs_reads_its_credentials(client: Berth, fake: Fake) -> None:
    fake.say(Answer(200, [at("running").json]))
    (database,) = client.databases.list()
    fake.say(Answer(202, {"status": "running", "detail": ""}), Answer(200, DATABASE))
    assert database.wake().connection_url == DATABASE["connection_url"]


def test_a_clone_is_as_of_a_moment(client: Berth, fake: Fake) -> None:
    database = running(client, fake)
    fake.say(Answer(202, DATABASE))
    database.clone(at=datetime(2026, 11, 20, 13, tzinfo=UTC), label="before", wait=False)
    assert (fake.asked[0].path, fake.asked[0].json) == (
        PATH + "/clone",
        {"label": "before", "target_time": "2026-11-20T13:00:00+00:00"},
    )
    with pytest.raises(berth.BerthError, match="time zone"):
        database.clone(at=datetime(2026, 11, 20, 13))


def test_a_failover_outlives_a_moment_without_the_database(client: Berth, fake: Fake) -> None:
    database = running(client, fake)
    answer = Answer(202, {"id": DATABASE["id"], "status": "restoring", "error": "28 seconds are lost"})
    fake.say(answer, Answer(404, {"error": "not found"}), at("restoring"), Answer(200, DATABASE))
    assert database.failover(force=True).status == "running"
    assert fake.asked[0].json == {"force": True}


def test_rotate_reads_the_new_credentials(client: Berth, fake: Fake) -> None:
    database = running(client, fake)
    fake.say(Answer(200, {"status": "running", "host": "h", "port": 1, "broker_url": ""}), Answer(200, DATABASE))
    assert database.rotate().info.password == "secret"
    assert [(a.method, a.path) for a in fake.asked] == [("POST", PATH + "/reset-credentials"), ("GET", PATH)]


def test_a_query_goes_to_the_broker_with_its_own_token(client: Berth, fake: Fake) -> None:
    database = running(client, fake)
    fake.say(Answer(200, RESULT))
    result = database.query("SELECT $1::int", 42)
    (asked,) = fake.asked
    assert (asked.method, asked.path) == ("POST", PATH + "/proxy/query")
    assert asked.headers["authorization"] == "Bearer brk_1"
    assert asked.json == {"sql": "SELECT $1::int", "params": [42]}
    assert ([(c.name, c.type) for c in result.columns], result.rows) == ([("n", "int4")], [[42]])
    fake.say(Answer(200, {"results": [RESULT, RESULT]}))
    assert len(database.transaction("SELECT 42 AS n", ("SELECT $1::int AS n", 42))) == 2
    assert fake.asked[1].path == PATH + "/proxy/transaction"
    assert fake.asked[1].json == {
        "queries": [{"sql": "SELECT 42 AS n"}, {"sql": "SELECT $1::int AS n", "params": [42]}]
    }
    fake.say(Answer(200, {"results": [RESULT, {"error": "no such table", "sqlstate": "42P01"}]}))
    one, two = database.batch("SELECT 42 AS n", "SELECT * FROM nothing")
    assert (one.rows, two.sqlstate) == ([[42]], "42P01")
    fake.say(Answer(200, {"tables": [], "truncated": False}))
    assert database.schema().tables == []
    assert {a.headers["authorization"] for a in fake.asked} == {"Bearer brk_1"}


def test_a_refusal_of_postgres_has_its_sqlstate(client: Berth, fake: Fake) -> None:
    database = running(client, fake)
    fake.say(Answer(400, {"error": 'relation "nothing" does not exist', "sqlstate": "42P01"}))
    with pytest.raises(berth.BadRequest) as refused:
        database.query("SELECT * FROM nothing")
    assert refused.value.fields == {"sqlstate": "42P01"}


def test_a_query_of_one_from_a_list_reads_its_token(client: Berth, fake: Fake) -> None:
    fake.say(Answer(200, [at("hibernated").json]))
    (database,) = client.databases.list()
    fake.say(
        at("hibernated"),
        Answer(202, {"status": "waking", "detail": ""}),
        Answer(200, DATABASE),
        Answer(200, RESULT),
    )
    assert database.query("SELECT 42 AS n").rows == [[42]]


def test_the_asynchronous_client_has_databases_too(fake: Fake) -> None:
    async def use() -> None:
        async with AsyncBerth(fake.url, "brt_test_key") as client:
            database = await client.databases.get(DATABASE["id"])
            fake.say(Answer(200, RESULT))
            assert (await database.query("SELECT 42 AS n")).rows == [[42]]

    fake.say(Answer(200, DATABASE))
    asyncio.run(use())
