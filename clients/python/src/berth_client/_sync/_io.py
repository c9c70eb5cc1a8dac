"""What waiting is in the synchronous half."""

import time

from websockets.sync.client import ClientConnection

sleep = time.sleep


def receive(ws: ClientConnection, timeout: float | None) -> str | bytes:
    """The next message; TimeoutError where none comes in time."""
    return ws.recv(timeout)
