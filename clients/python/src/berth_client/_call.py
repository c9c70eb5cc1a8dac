"""Calls as data: what to send and how to read the answer.

Nothing here waits, so the synchronous and the asynchronous client share it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Body = bytes | Iterable[bytes] | AsyncIterable[bytes]
"""Bytes to send: at once or in pieces (asynchronous pieces only in the async client)."""


@dataclass(kw_only=True)
class Request:
    """One HTTP request, without address and credential."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    json: Any = None
    content: Body | None = None
    content_length: int | None = None
    idempotent: bool = False
    """the operation takes an Idempotency-Key"""
    idempotency_key: str | None = None

    @property
    def replayable(self) -> bool:
        """Whether the body can be sent a second time."""
        return self.content is None or isinstance(self.content, bytes)

    @property
    def safe(self) -> bool:
        """Whether the call is safe to repeat."""
        once = self.method in ("GET", "HEAD", "PUT", "DELETE") or self.idempotency_key is not None
        return once and self.replayable


@dataclass(kw_only=True)
class Call(Request, Generic[T]):
    """A request whose answer is one JSON value."""

    decode: Callable[[Any], T]


@dataclass(kw_only=True)
class Page(Request, Generic[T]):
    """A request for one page of a list."""

    decode: Callable[[Any], T]


@dataclass(kw_only=True)
class Nothing(Request):
    """A request whose answer has no body."""


@dataclass(kw_only=True)
class Stream(Request):
    """A request whose answer is a stream."""


@dataclass(kw_only=True)
class Socket(Request):
    """A request to open a WebSocket."""


def query(parameters: dict[str, object]) -> dict[str, str]:
    """The given parameters, as they appear in a URL."""
    out = {}
    for name, value in parameters.items():
        if value is None:
            continue
        if isinstance(value, datetime):
            out[name] = value.isoformat()
        else:
            out[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return out
