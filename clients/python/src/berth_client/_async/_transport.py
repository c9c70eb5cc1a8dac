"""Sends calls to the replicas in turn until one answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus

from .._call import Call, Nothing, Page, Request, Socket, Stream
from .._core import (
    CONNECT_TIMEOUT,
    CONNECTIONS,
    READ_TIMEOUT,
    STREAM_TIMEOUT,
    UNSENT,
    Attempts,
    Config,
    next_cursor,
    prepared,
)
from .._sse import Decoder, Message
from ..errors import BerthError, ConnectionFailed, error_of
from . import _io

T = TypeVar("T")

Connection = AbstractAsyncContextManager[ClientConnection]

_MAX_MESSAGE = 32 << 20
_MAX_WAITING = 1024
"""messages of a slow caller; behind more, the service's pings are not answered, and it ends the command"""


class AsyncPool:
    """Connections of this process and, where there is one, of its event loop.

    Those of another cannot be used here: after a fork, two processes would read
    each other's answers, and an event loop that has ended closes none.
    """

    def __init__(self) -> None:
        self._now: tuple[object, httpx.AsyncClient] | None = None

    @property
    def http(self) -> httpx.AsyncClient:
        here = _io.here()
        if self._now is None or self._now[0] != here:
            self._now = here, httpx.AsyncClient(follow_redirects=False, limits=CONNECTIONS)
        return self._now[1]

    async def aclose(self) -> None:
        await self.http.aclose()


class AsyncTransport:
    """Makes calls with one credential."""

    def __init__(self, config: Config, http: httpx.AsyncClient | AsyncPool | None) -> None:
        self.config = config
        self._from = AsyncPool() if http is None else http
        self._own = http is None
        self._last = 0

    @property
    def _http(self) -> httpx.AsyncClient:
        return self._from.http if isinstance(self._from, AsyncPool) else self._from

    async def aclose(self) -> None:
        if self._own:
            await self._from.aclose()

    def with_token(self, token: str) -> AsyncTransport:
        """The same connections, with another credential."""
        return AsyncTransport(replace(self.config, token=token), self._from)

    async def call(self, call: Call[T], read_timeout: float = READ_TIMEOUT) -> T:
        response = await self._open(call, read_timeout, whole=True)
        return call.decode(_json(response))

    async def nothing(self, call: Nothing, read_timeout: float = READ_TIMEOUT) -> None:
        await self._open(call, read_timeout, whole=True)

    async def page(self, call: Page[T]) -> tuple[list[T], str | None]:
        """One page of a list, and the cursor of the next."""
        response = await self._open(call, READ_TIMEOUT, whole=True)
        return [call.decode(raw) for raw in _json(response)], next_cursor(response.headers.get("link"))

    async def pages(self, call: Page[T]) -> AsyncIterator[T]:
        """Iterates over the elements of a list, page by page."""
        call = replace(call, query=dict(call.query))
        while True:
            elements, cursor = await self.page(call)
            for element in elements:
                yield element
            if cursor is None:
                return
            call.query["cursor"] = cursor

    @asynccontextmanager
    async def stream(self, call: Stream, read_timeout: float = STREAM_TIMEOUT) -> AsyncIterator[httpx.Response]:
        """An answer that is read as a stream; leaving closes it."""
        # The sandbox may have to be woken before it begins. What is not tried again waits for that.
        response = await self._open(call, read_timeout if call.safe else READ_TIMEOUT, whole=False)
        response.request.extensions["timeout"]["read"] = read_timeout
        try:
            yield response
        except httpx.TransportError as e:
            raise ConnectionFailed(f"the stream broke off: {_why(e)}") from e
        finally:
            await response.aclose()

    async def messages(
        self, response: httpx.Response, ping: Callable[[], None] = lambda: None
    ) -> AsyncIterator[Message]:
        """The server-sent events of an answer. Each comment calls ping."""
        decoder = Decoder(ping)
        async for chunk in response.aiter_bytes():
            for message in decoder.feed(chunk):
                yield message

    async def socket(self, call: Socket) -> tuple[ClientConnection, Connection]:
        """A WebSocket and how to close it."""
        attempts = Attempts(self.config, call, self._last)
        while True:
            url = httpx.URL(attempts.url + call.path, params=call.query)
            scheme = "wss" if url.scheme == "https" else "ws"
            try:
                connection: Connection = connect(
                    str(url.copy_with(scheme=scheme)),
                    additional_headers=self.config.headers(call),
                    open_timeout=READ_TIMEOUT,  # the sandbox may have to be woken first
                    ping_timeout=READ_TIMEOUT,  # a pong waits behind input that a command is slow to read
                    max_size=_MAX_MESSAGE,
                    max_queue=_MAX_WAITING,
                    compression=None,
                )
                ws = await connection.__aenter__()
            except InvalidStatus as e:
                status, headers = e.response.status_code, e.response.headers
                wait = attempts.after_answer(status, headers)
                if wait is None:
                    raise error_of(status, headers, bytes(e.response.body or b"")) from None
            except (OSError, InvalidHandshake, TimeoutError) as e:
                self._away(attempts.at)
                wait = attempts.after_break(sent=not isinstance(e, ConnectionRefusedError))
                if wait is None:
                    raise ConnectionFailed(f"open a WebSocket at {attempts.url}: {_why(e)}") from e
            else:
                self._last = attempts.at
                return ws, connection
            await _io.sleep(wait)

    async def _open(self, call: Request, read_timeout: float, whole: bool) -> httpx.Response:
        """The first answer that is not a failure, with its body read or still open."""
        call = prepared(call)
        attempts = Attempts(self.config, call, self._last)
        timeout = httpx.Timeout(read_timeout, connect=CONNECT_TIMEOUT)
        while True:
            url = attempts.url
            try:
                http = self._http
                response = await http.send(self._build(http, call, url, timeout), stream=True)
                try:
                    if whole or response.is_error:
                        await response.aread()
                except BaseException:
                    await response.aclose()
                    raise
            except httpx.TransportError as e:
                self._away(attempts.at)
                wait = attempts.after_break(sent=not isinstance(e, UNSENT))
                if wait is None:
                    raise ConnectionFailed(f"{call.method} at {url}: {_why(e)}") from e
            except BaseException:  # the caller's deadline, for one
                self._away(attempts.at)
                raise
            else:
                if response.status_code < 300:
                    self._last = attempts.at
                    return response
                await response.aclose()
                wait = attempts.after_answer(response.status_code, response.headers)
                if wait is None:
                    self._last = attempts.at
                    body = response.content if response.is_error else b""
                    raise error_of(response.status_code, response.headers, body)
            await _io.sleep(wait)

    def _away(self, at: int) -> None:
        """Later calls begin with another replica than the one that did not answer: it may be frozen."""
        if self._last == at:
            self._last = (at + 1) % len(self.config.urls)

    def _build(self, http: httpx.AsyncClient, call: Request, url: str, timeout: httpx.Timeout) -> httpx.Request:
        content: Any = call.content
        return http.build_request(
            call.method,
            url + call.path,
            params=call.query or None,
            headers=self.config.headers(call),
            json=call.json,
            content=content,
            timeout=timeout,
        )


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as e:
        raise BerthError(f"the answer of status {response.status_code} is not JSON") from e


def _why(e: BaseException) -> str:
    return str(e) or type(e).__name__
