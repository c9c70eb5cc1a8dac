"""Parses server-sent events from a stream of bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One event."""

    event: str
    data: str

    def json(self) -> dict[str, Any]:
        """The data of an event of the service, which is a JSON object."""
        value = json.loads(self.data)
        return value if isinstance(value, dict) else {}


class Decoder:
    """Keeps incomplete lines, and the lines of an incomplete event. Calls ping for each comment."""

    def __init__(self, ping: Callable[[], None] = lambda: None) -> None:
        self._ping = ping
        self._rest = b""
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Message]:
        """The events that the chunk completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        out = []
        for raw in lines:
            message = self._line(raw.removesuffix(b"\r").decode(errors="replace"))
            if message:
                out.append(message)
        return out

    def _line(self, line: str) -> Message | None:
        if not line:
            message = Message(self._event or "message", "\n".join(self._data)) if self._data else None
            self._event, self._data = "", []
            return message
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif not name:
            self._ping()
        return None
