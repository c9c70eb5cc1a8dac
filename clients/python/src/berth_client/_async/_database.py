"""Managed PostgreSQL databases."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from .. import models
from .. import operations as op
from .._core import READ_TIMEOUT, backoff
from ..errors import BerthError, DatabaseFailed, NotFound
from ..types import LogLine
from . import _io
from ._streams import AsyncFeed, log_feed
from ._transport import AsyncTransport

Statement = str | Sequence[Any]
"""SQL, alone or followed by its parameters for $1 and on."""

SQLResults = list[models.SQLBatchResult]


class AsyncDatabases:
    """The workspace's databases."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        *,
        label: str | None = None,
        size: models.DatabaseSize | None = None,
        always_on: bool | None = None,
        wait: bool = True,
        idempotency_key: str | None = None,
    ) -> AsyncDatabase:
        """Creates a database and, unless told not to, waits until it runs. The default size is 1g."""
        body = models.CreateDatabase(label=label, size=size, always_on=always_on)
        call = op.create_database(body, idempotency_key=idempotency_key)
        database = AsyncDatabase(self._transport, await self._transport.call(call))
        return await database.wait() if wait else database

    async def get(self, database_id: str) -> AsyncDatabase:
        return AsyncDatabase(self._transport, await self._transport.call(op.get_database(database_id)))

    async def list(self) -> AsyncIterator[AsyncDatabase]:
        """Iterates over all, newest first and without credentials; see refresh."""
        async for info in self._transport.pages(op.list_databases()):
            yield AsyncDatabase(self._transport, info)


class AsyncDatabase:
    """PostgreSQL 16 in a microVM, which sleeps when nobody is connected."""

    def __init__(self, transport: AsyncTransport, info: models.Database) -> None:
        self._transport = transport
        self.info = info
        """its last known record; see refresh"""

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def status(self) -> models.DatabaseStatus:
        return self.info.status

    @property
    def connection_url(self) -> str:
        """With the password, as of the last refresh; only while it runs. It says nothing of sslmode."""
        if not self.info.connection_url:
            raise BerthError(f"the database is {self.info.status}: it has a URL while it runs")
        return self.info.connection_url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.size} {self.info.status}>"

    async def refresh(self) -> AsyncDatabase:
        """Reads its record again."""
        self.info = await self._transport.call(op.get_database(self.id))
        return self

    async def wait(self, timeout: float | None = 900) -> AsyncDatabase:
        """Waits until it runs; DatabaseFailed if it cannot.

        The very first database waits until its template is built.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        polls = 0
        while self.info.status != "running":
            if self.info.status == "failed":
                raise DatabaseFailed(self.info.error or "the database failed")
            if self.info.status == "hibernated" and self.info.error:  # a wake has failed
                raise BerthError(f"the database is hibernated: {self.info.error}")
            if deadline is not None and time.monotonic() > deadline:
                raise BerthError(f"the database is {self.info.status} after {timeout} seconds")
            await _io.sleep(min(backoff(polls), 2.0))
            polls += 1
            try:
                await self.refresh()
            except NotFound:
                if self.info.status != "restoring":  # for a moment there is none
                    raise
        return self

    async def wake(self) -> AsyncDatabase:
        """Wakes it and waits until it runs. There is no need to: whoever connects wakes it."""
        await self._transport.call(op.wake_database(self.id))
        self.info.status = "waking"  # of one that runs, the credentials are yet to be read
        return await self.wait()

    async def set_always_on(self, on: bool) -> AsyncDatabase:
        """Says whether it may be put to sleep."""
        self.info = await self._transport.call(op.patch_database(self.id, models.PatchDatabase(always_on=on)))
        return self

    async def rotate(self) -> AsyncDatabase:
        """Changes its password and broker token. Clients with the old ones are cut off."""
        await self._transport.call(op.reset_credentials(self.id))
        return await self.refresh()

    async def clone(
        self,
        *,
        at: datetime | str | None = None,
        label: str | None = None,
        size: models.DatabaseSize | None = None,
        wait: bool = True,
        idempotency_key: str | None = None,
    ) -> AsyncDatabase:
        """Makes a database of what is archived of this one: all, or what was there at a moment (with its zone)."""
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise BerthError("at has no time zone")
            at = at.isoformat()
        body = models.CloneDatabase(label=label, size=size, target_time=at)
        call = op.clone_database(self.id, body, idempotency_key=idempotency_key)
        clone = AsyncDatabase(self._transport, await self._transport.call(call))
        return await clone.wait() if wait else clone

    async def failover(self, *, force: bool = False, wait: bool = True) -> AsyncDatabase:
        """Restores it on another host from its archive; with force also one that runs.

        What is lost is in info.error until it runs again.
        """
        answer = await self._transport.call(op.failover_database(self.id, models.FailoverDatabase(force=force)))
        self.info.status, self.info.error = answer.status, answer.error
        return await self.wait() if wait else self

    async def archive(self) -> models.DatabaseArchive:
        """Reads what it can be restored from."""
        return await self._transport.call(op.get_database_archive(self.id))

    async def delete(self) -> None:
        """Deletes it with its data and its archive, for good."""
        await self._transport.nothing(op.delete_database(self.id))

    async def logs(self, *, tail: int | None = None) -> str:
        """Reads PostgreSQL's log."""
        async with self._transport.stream(op.database_logs(self.id, tail=tail)) as response:
            return (await response.aread()).decode(errors="replace")

    def follow_logs(self, *, tail: int | None = None) -> AsyncFeed[LogLine]:
        """Iterates over existing lines and then new ones."""
        return AsyncFeed(log_feed(self._transport, op.follow_database_logs(self.id, tail=tail)))

    # SQL over HTTP, by the broker, which wakes the database.

    async def query(self, sql: str, *params: Any, timeout_seconds: float | None = None) -> models.SQLResult:
        """Runs one statement, with its parameters for $1 and on.

        PostgreSQL's refusal is an APIError with its sqlstate in fields. int8 and
        numeric come as strings.
        """
        body = models.SQLQuery(sql=sql, params=list(params) or None, timeout_seconds=timeout_seconds)
        broker = await self._broker()
        return await broker.call(op.query_database(self.id, body), READ_TIMEOUT + (timeout_seconds or 0))

    async def batch(self, *statements: Statement) -> SQLResults:
        """Runs statements one by one; the error of one is in its place."""
        broker = await self._broker()
        return (await broker.call(op.batch_database(self.id, _queries(statements)))).results

    async def transaction(self, *statements: Statement) -> SQLResults:
        """Runs statements: all of them, or none."""
        broker = await self._broker()
        return (await broker.call(op.transact_database(self.id, _queries(statements)))).results

    async def schema(self) -> models.DatabaseSchema:
        """Describes its tables."""
        broker = await self._broker()
        return await broker.call(op.database_schema(self.id))

    async def _broker(self) -> AsyncTransport:
        if not self.info.broker_token:  # it slept, or comes from a list
            await self.refresh()
            if self.info.status == "hibernated":
                await self.wake()
        if not self.info.broker_token:
            raise BerthError(f"the database is {self.info.status}")
        return self._transport.with_token(self.info.broker_token)


def _queries(statements: Sequence[Statement]) -> models.SQLQueries:
    return models.SQLQueries(
        queries=[
            models.SQLQuery(sql=s) if isinstance(s, str) else models.SQLQuery(sql=s[0], params=list(s[1:]))
            for s in statements
        ]
    )
