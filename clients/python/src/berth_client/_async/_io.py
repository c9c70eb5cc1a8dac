"""How the asynchronous half waits."""

import asyncio
import os

from websockets.asyncio.client import ClientConnection

sleep = asyncio.sleep


def here() -> object:
    """The process and event loop in which this runs."""
    try:
        return os.getpid(), asyncio.get_running_loop()
    except RuntimeError:  # another library's loop
        return os.getpid()


async def receive(ws: ClientConnection, timeout: float | None) -> str | bytes:
    """The next message; TimeoutError if none comes in time."""
    async with asyncio.timeout(timeout):
        return await ws.recv()
