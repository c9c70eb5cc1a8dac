# Generated from _async/_streams.py by `make clients`. Do not edit.
"""Streams of a sandbox: output of commands, events, lines of logs."""

from __future__ import annotations

from collections.abc import Iterator
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
from ._transport import Transport

T = TypeVar("T")


class Feed(Generic[T]):
    """Iterate over it. To stop before its end, also use it as a context manager."""

    def __init__(self, elements: Iterator[T]) -> None:
        self._elements = elements

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._elements.__next__()

    def close(self) -> None:
        """Ends it."""
        if hasattr(self._elements, "close"):
            self._elements.close()

    def __enter__(self) -> Feed[T]:
        return self

    def __exit__(
        self, of: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def exec_output(transport: Transport, sandbox_id: str, body: models.Exec) -> Iterator[Output]:
    """The output of a command and its end. Leaving the iteration kills it."""
    with transport.stream(op.exec_stream(sandbox_id, body)) as response:
        for message in transport.messages(response):
            if message.event == "error":
                raise StreamBroken(said(message.json()))
            output = output_of(message.event, message.json())
            if output is not None:
                yield output
            if isinstance(output, Exit):
                return
    raise StreamBroken("the stream ended before the command")


def event_feed(
    transport: Transport, sandbox_id: str, since: datetime | None, tail: int | None
) -> Iterator[models.Event]:
    """Events until the sandbox is deleted. A broken connection is replaced."""
    failures = 0
    began = False

    def alive() -> None:
        nonlocal failures
        failures = 0

    while True:
        call = op.follow_events(sandbox_id, since=since, tail=tail)
        try:
            with transport.stream(call) as response:
                if since is None and tail == 0:
                    since, tail = _date(response), None  # where another connection continues
                began = True
                for message in transport.messages(response, alive):
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
        _io.sleep(backoff(failures))


def log_feed(transport: Transport, call: Stream) -> Iterator[LogLine]:
    """Existing lines of a log, and then new ones."""
    with transport.stream(call) as response:
        for message in transport.messages(response):
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


def build_feed(transport: Transport, build_id: str) -> Iterator[str]:
    """The log of a build until it ends."""
    with transport.stream(op.build_logs(build_id)) as response:
        for message in transport.messages(response):
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
