"""What waiting is in the synchronous half."""

import os
import time

from websockets.sync.client import ClientConnection

sleep = time.sleep


def here() -> object:
    """The process in which this runs."""
    return os.getpid()


def receive(ws: ClientConnection, timeout: float | None) -> str | bytes:
    """The next message; TimeoutError where none comes in time."""
    return ws.recv(timeout)
