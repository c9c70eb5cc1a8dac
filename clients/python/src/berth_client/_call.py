"""Calls as data: what is to be sent and how its answer is read.

Nothing here waits, so the synchronous and the asynchronous client share it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Body = bytes | Iterable[bytes] | AsyncIterable[bytes]
"""Bytes to send: at once, or piece by piece (asynchronously in the async client alone)."""


@dataclass(kw_only=True)
class Request:
    """One HTTP request, the address and the credential apart."""

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
        """Whether doing it twice is the same as doing it once."""
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
    """A request whose answer says nothing but its status."""


@dataclass(kw_only=True)
class Stream(Request):
    """A request whose answer is read as it comes."""


@dataclass(kw_only=True)
class Socket(Request):
    """A request to open a WebSocket."""


def query(parameters: dict[str, object]) -> dict[str, str]:
    """The parameters that were given, as they stand in a URL."""
    out = {}
    for name, value in parameters.items():
        if value is None:
            continue
        if isinstance(value, datetime):
            out[name] = value.isoformat()
        else:
            out[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return out
