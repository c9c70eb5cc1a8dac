"""How the asynchronous half waits."""

import asyncio

from websockets.asyncio.client import ClientConnection

sleep = asyncio.sleep


async def receive(ws: ClientConnection, timeout: float | None) -> str | bytes:
    """The next message; TimeoutError if none comes in time."""
    async with asyncio.timeout(timeout):
        return await ws.recv()
