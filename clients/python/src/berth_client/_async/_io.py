"""What waiting is in the asynchronous half."""

import asyncio

from websockets.asyncio.client import ClientConnection

sleep = asyncio.sleep


async def receive(ws: ClientConnection, timeout: float | None) -> str | bytes:
    """The next message; TimeoutError where none comes in time."""
    async with asyncio.timeout(timeout):
        return await ws.recv()
