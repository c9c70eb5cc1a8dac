"""Terminals, commands with open input, and language servers, over WebSockets."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from .. import models
from .. import operations as op
from .._call import Socket
from .._core import byte_pieces, pieces
from ..errors import BerthError, StreamBroken
from ..types import Exit, Output, Stderr, Stdout, output_of
from . import _io
from ._transport import AsyncTransport, Connection

S = TypeVar("S", bound="AsyncSocketSession")


class AsyncSocketSession:
    """A context manager: entering connects, leaving ends the program at the other end."""

    def __init__(self, transport: AsyncTransport, call: Socket) -> None:
        self._transport = transport
        self._call = call
        self._ws: ClientConnection | None = None
        self._connection: Connection | None = None

    async def __aenter__(self: S) -> S:
        await self._connect()
        return self

    async def __aexit__(
        self, of: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends it."""
        if self._connection is not None:
            await self._connection.__aexit__(None, None, None)

    async def _connect(self) -> None:
        self._ws, self._connection = await self._transport.socket(self._call)

    @property
    def _open(self) -> ClientConnection:
        if self._ws is None:
            raise BerthError("not connected: use it as a context manager")
        return self._ws

    async def _send(self, message: bytes | dict[str, Any]) -> None:
        try:
            await self._open.send(message if isinstance(message, bytes) else json.dumps(message))
        except ConnectionClosed as e:
            raise StreamBroken(_closed(e)) from e

    async def _receive(self, timeout: float | None) -> str | bytes:
        """The next message; TimeoutError if none comes in time."""
        try:
            return await _io.receive(self._open, timeout)
        except ConnectionClosed as e:
            raise StreamBroken(_closed(e)) from e


class AsyncPty(AsyncSocketSession):
    """A program on a terminal in a sandbox."""

    def __init__(self, transport: AsyncTransport, call: Socket) -> None:
        super().__init__(transport, call)
        self.exit_code: int | None = None
        """set when the program has ended"""

    async def send(self, data: bytes | str) -> None:
        """Sends input. A line ends with \\r or \\n; Ctrl-C is b"\\x03"."""
        for piece in byte_pieces(data.encode() if isinstance(data, str) else data):
            await self._send(piece)

    async def resize(self, cols: int, rows: int) -> None:
        """Changes the size of the terminal."""
        await self._send({"type": "resize", "cols": cols, "rows": rows})

    async def signal(self, name: str) -> None:
        """Sends a signal, such as "TERM"."""
        await self._send({"type": "signal", "signal": name})

    async def recv(self, timeout: float | None = None) -> bytes:
        """The next output of the program; b"" when it has ended. TimeoutError if nothing comes in time."""
        while self.exit_code is None:
            message = await self._receive(timeout)
            if isinstance(message, bytes):
                if message:
                    return message
                continue
            frame = _frame(message)
            if frame.get("type") == "exit":
                self.exit_code = frame["exit_code"]
        return b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.recv():
            yield data


class AsyncProcess(AsyncSocketSession):
    """A running command with open input. Iterate over its output and its end."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str, request: models.Exec) -> None:
        super().__init__(transport, op.exec_socket(sandbox_id))
        self._request = request
        self.exit: Exit | None = None
        """set when it has ended"""

    async def _connect(self) -> None:
        await super()._connect()
        await self._send(self._request.to_json())

    async def write(self, data: bytes | str) -> None:
        """Sends input to the command."""
        for piece in pieces(data):
            if isinstance(piece, str):
                await self._send({"type": "stdin", "data": piece})
            else:
                await self._send({"type": "stdin", "data": b64encode(piece).decode(), "encoding": "base64"})

    async def close_stdin(self) -> None:
        """Ends its input."""
        await self._send({"type": "eof"})

    async def signal(self, name: str) -> None:
        """Sends it a signal, such as "INT"."""
        await self._send({"type": "signal", "signal": name})

    async def recv(self, timeout: float | None = None) -> Stdout | Stderr | Exit:
        """The next output, at the end an Exit. TimeoutError if nothing comes in time."""
        while self.exit is None:
            frame = _frame(await self._receive(timeout))
            output = output_of(frame.get("type", ""), frame)
            if isinstance(output, Exit):
                self.exit = output
            if output is not None:
                return output
        return self.exit

    async def __aiter__(self) -> AsyncIterator[Output]:
        while self.exit is None:
            yield await self.recv()


class AsyncLanguageServer(AsyncSocketSession):
    """A language server of a sandbox. Its JSON-RPC messages are objects here."""

    async def send(self, message: dict[str, Any]) -> None:
        await self._send(message)

    async def recv(self, timeout: float | None = None) -> dict[str, Any]:
        """The next message. TimeoutError if none comes in time."""
        value = json.loads(await self._receive(timeout))
        return value if isinstance(value, dict) else {}


def _frame(message: str | bytes) -> dict[str, Any]:
    value = json.loads(message)
    if not isinstance(value, dict):
        return {}
    if value.get("type") == "error":
        error, detail = value.get("error", "error"), value.get("detail")
        raise StreamBroken(f"{error}: {detail}" if detail else str(error))
    return value


def _closed(e: ConnectionClosed) -> str:
    reason = e.rcvd.reason if e.rcvd else ""
    return f"the connection was closed: {reason}" if reason else "the connection was closed"
