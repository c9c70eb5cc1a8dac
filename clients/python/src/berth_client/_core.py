"""What both clients decide without waiting: settings, headers and retries."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx

from ._call import Request
from .errors import BerthError, retry_after

try:
    VERSION = version("berth-client")
except PackageNotFoundError:
    VERSION = "devel"

CONNECT_TIMEOUT = 5.0
"""seconds; short, because another replica may answer"""
READ_TIMEOUT = 300.0
"""seconds without a byte of an answer; a large fork takes a while"""
STREAM_TIMEOUT = 60.0
"""seconds without a byte of a stream, which has a ping every 15"""
PATIENCE = 120.0
"""seconds, the longest that a call waits because an answer says so; its caller knows better what to do in an hour"""
CHUNK = 256 << 10
"""bytes of a file that are sent at once"""
MESSAGE = 48 << 10
"""bytes of input in one message; as JSON well below the service's limit, 1 MiB, whatever they are"""
CONNECTIONS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
"""without a limit: a long call must not keep others waiting"""
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""failures before anything was sent"""


@dataclass(frozen=True)
class Config:
    urls: tuple[str, ...]
    token: str
    retries: int

    @classmethod
    def of(cls, url: str | Sequence[str] | None, token: str | None, retries: int) -> Config:
        if url is None:
            url = os.environ.get("BERTH_URLS") or os.environ.get("BERTH_URL") or ""
        if isinstance(url, str):
            url = url.split(",")
        urls = tuple(u.strip().rstrip("/") for u in url if u.strip())
        if not urls:
            raise BerthError("no URL: give one, or set BERTH_URL")
        for u in urls:
            parts = urlsplit(u)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise BerthError(f"URL {u!r}: want http://host:port or https://host")
        if token is None:
            token = os.environ.get("BERTH_TOKEN", "")
        if not token:
            raise BerthError("no token: give one, or set BERTH_TOKEN")
        return cls(urls, token, retries)

    def headers(self, request: Request) -> dict[str, str]:
        out = {"Authorization": f"Bearer {self.token}", "User-Agent": f"berth-python/{VERSION}"}
        if request.idempotency_key:
            out["Idempotency-Key"] = request.idempotency_key
        if request.content is not None:
            out["Content-Type"] = "application/octet-stream"
            if request.content_length is not None:
                out["Content-Length"] = str(request.content_length)
        return out


R = TypeVar("R", bound=Request)


def prepared(request: R) -> R:
    """The request as it is sent. The caller's may be sent again, as another one."""
    out = replace(request)
    if out.idempotent and out.idempotency_key is None:
        out.idempotency_key = uuid.uuid4().hex
    if out.method == "POST" and out.json is None and out.content is None:
        out.json = {}  # a POST without a body is refused
    return out


def pieces(data: bytes | str) -> Iterator[bytes | str]:
    """Input in pieces that fit into a message; the code points of a text stay whole."""
    if isinstance(data, str):
        step = MESSAGE // 4  # a code point has up to four bytes
        yield from (data[at : at + step] for at in range(0, len(data), step))
    else:
        yield from byte_pieces(data)


def byte_pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + MESSAGE] for at in range(0, len(data), MESSAGE))


class Attempts:
    """Where and when a call is tried again, until it is given up.

    After a refused connection the next replica is tried at once: nothing was
    sent. A call that is safe to repeat is also tried again after a broken
    connection, 502, 507, and 503 with Retry-After. After a rate limit (429 with
    Retry-After) every call waits and is repeated, because it had no effect. A
    quota is an error, because waiting does not help, and so is what asks for more
    than two minutes.
    """

    def __init__(self, config: Config, request: Request, first: int) -> None:
        self._config = config
        self._request = request
        self._failed = 0
        self.at = first % len(config.urls)

    @property
    def url(self) -> str:
        return self._config.urls[self.at]

    def after_break(self, sent: bool) -> float | None:
        """Seconds to wait after a failed connection; None: give up."""
        if sent and not self._request.safe:
            return None
        return self._next(None)

    def after_answer(self, status: int, headers: Mapping[str, str]) -> float | None:
        """Seconds to wait after a refusal; None: the refusal is the answer."""
        wait = retry_after(headers)
        if status == 429:
            again = wait is not None and self._request.replayable
        elif status == 503:
            again = wait is not None and self._request.safe
        else:
            again = status in (502, 507) and self._request.safe
        if not again or (wait or 0) > PATIENCE:
            return None
        return self._next(wait)

    def _next(self, wait: float | None) -> float | None:
        self._failed += 1
        if self._failed > max(self._config.retries, len(self._config.urls) - 1 if wait is None else 0):
            return None
        self.at = (self.at + 1) % len(self._config.urls)
        if wait is not None:
            return wait + random.uniform(0, 0.25)
        if self._failed < len(self._config.urls):
            return 0.0
        return backoff(self._failed - len(self._config.urls))


def backoff(failures: int) -> float:
    """Seconds to wait after that many failures: half a second, doubled up to 8, with jitter."""
    return min(0.5 * 2.0 ** max(failures, 0), 8.0) * random.uniform(0.75, 1.25)


def next_cursor(link: str | None) -> str | None:
    """The cursor in a Link header with rel="next"."""
    for one in (link or "").split(","):
        target, _, parameters = one.partition(";")
        if 'rel="next"' in parameters.replace(" ", ""):
            found = parse_qs(urlsplit(target.strip().strip("<>")).query).get("cursor")
            return found[0] if found else None
    return None


def short(sandbox_id: str) -> str:
    """The beginning of a sandbox's id. The complete id is a credential."""
    return sandbox_id[:6] + "…"
