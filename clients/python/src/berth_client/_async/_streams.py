"""Streams of a sandbox: output of commands, events, lines of logs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Generic, TypeVar

import httpx

from .. import models
from .. import operations as op
from .._call import Stream
from .._core import backoff
from ..errors import ConnectionFailed, NotFound, StreamBroken
from ..types import Exit, LogLine, Output, output_of
from . import _io
from ._transport import AsyncTransport

T = TypeVar("T")


class AsyncFeed(Generic[T]):
    """Iterate over it. To stop before its end, also use it as a context manager."""

    def __init__(self, elements: AsyncIterator[T]) -> None:
        self._elements = elements

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await self._elements.__anext__()

    async def aclose(self) -> None:
        """Ends it."""
        if hasattr(self._elements, "aclose"):
            await self._elements.aclose()

    async def __aenter__(self) -> AsyncFeed[T]:
        return self

    async def __aexit__(
        self, of: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


async def exec_output(transport: AsyncTransport, sandbox_id: str, body: models.Exec) -> AsyncIterator[Output]:
    """The output of a command and its end. Leaving the iteration kills it."""
    async with transport.stream(op.exec_stream(sandbox_id, body)) as response:
        async for message in transport.messages(response):
            if message.event == "error":
                raise StreamBroken(said(message.json()))
            output = output_of(message.event, message.json())
            if output is not None:
                yield output
            if isinstance(output, Exit):
                return
    raise StreamBroken("the stream ended before the command")


async def event_feed(
    transport: AsyncTransport, sandbox_id: str, since: datetime | None, tail: int | None
) -> AsyncIterator[models.Event]:
    """Events until the sandbox is deleted. A broken connection is replaced."""
    failures = 0
    began = False

    def alive() -> None:
        nonlocal failures
        failures = 0

    while True:
        call = op.follow_events(sandbox_id, since=since, tail=tail)
        try:
            async with transport.stream(call) as response:
                if since is None and tail == 0:
                    since, tail = _date(response), None  # where another connection continues
                began = True
                async for message in transport.messages(response, alive):
                    if message.event != "ev":
                        if message.event == "error":
                            raise StreamBroken(said(message.json()))
                        continue
                    event = models.Event.from_json(message.json())
                    since, tail, failures = event.ts, None, 0
                    yield event
                    if event.type == "sandbox.deleted":
                        return
        except NotFound:
            if began:
                return  # gone in the meantime
            raise
        except (ConnectionFailed, StreamBroken):
            failures += 1
            if failures > transport.config.retries:
                raise
        await _io.sleep(backoff(failures))


async def log_feed(transport: AsyncTransport, call: Stream) -> AsyncIterator[LogLine]:
    """Existing lines of a log, and then new ones."""
    async with transport.stream(call) as response:
        async for message in transport.messages(response):
            raw = message.json()
            if message.event == "error":
                raise StreamBroken(said(raw))
            if "line" in raw:
                ts = raw.get("ts")
                yield LogLine(
                    message.event,
                    raw["line"],
                    None if ts is None else datetime.fromisoformat(ts),
                    raw.get("partial", False),
                    raw.get("instance", ""),
                )


async def build_feed(transport: AsyncTransport, build_id: str) -> AsyncIterator[str]:
    """The log of a build until it ends."""
    async with transport.stream(op.build_logs(build_id)) as response:
        async for message in transport.messages(response):
            raw = message.json()
            if message.event == "end":
                return
            if message.event == "error":
                raise StreamBroken(said(raw))
            if message.event == "log":
                yield raw["line"]
    raise StreamBroken("the log ended before the build")


def said(raw: dict[str, object]) -> str:
    error, detail = raw.get("error", "the stream broke off"), raw.get("detail")
    return f"{error}: {detail}" if detail else str(error)


def _date(response: httpx.Response) -> datetime | None:
    try:
        return parsedate_to_datetime(response.headers.get("date", ""))
    except ValueError:
        return None
