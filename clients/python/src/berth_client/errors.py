"""Errors. Everything that the package itself raises is a BerthError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .types import ExecResult


class BerthError(Exception):
    """Base class of all errors of this package.

    args are the parameters of __init__, or one that is raised in another process
    could not be read.
    """


class ConnectionFailed(BerthError):
    """No replica could be reached, or the connection broke."""


class StreamBroken(BerthError):
    """A stream broke off. The command or build behind it may continue."""


class CommandFailed(BerthError):
    """A checked command failed; see result."""

    def __init__(self, result: ExecResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        how = "timed out" if self.result.timed_out else f"ended with code {self.result.exit_code}"
        return f"the command {how}: {self.result.stderr[-500:].strip()}".rstrip(": ")


class BuildFailed(BerthError):
    """A template could not be built; the message says why."""


class DatabaseFailed(BerthError):
    """A database could not be made, restored or woken; the message says why."""


class DeploymentFailed(BerthError):
    """A version of an app could not be brought into service; the message says why."""


class APIError(BerthError):
    """The service refused. Branch on the class or on status: texts may change."""

    def __init__(
        self,
        status: int,
        error: str,
        detail: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        fields: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(status, error, detail, request_id, retry_after, fields)
        self.status = status
        self.error = error
        self.detail = detail
        self.request_id = request_id
        """quote it in a problem report"""
        self.retry_after = retry_after
        """seconds to wait, according to the service"""
        self.fields = fields or {}
        """other members of the body, such as max and active of a quota"""

    def __str__(self) -> str:
        text = self.error + (f": {self.detail}" if self.detail else "") + f" (status {self.status}"
        return text + (f", request {self.request_id})" if self.request_id else ")")


class BadRequest(APIError):
    """400: the request is wrong; do not repeat it unchanged."""


class Unauthorized(APIError):
    """401: no credential, or not a valid one."""


class PaymentRequired(APIError):
    """402: the workspace's credit or subscription has ended."""


class Forbidden(APIError):
    """403: the credential does not permit this."""


class NotFound(APIError):
    """404: it does not exist, or belongs to another workspace."""


class Conflict(APIError):
    """409: its current state does not allow this."""


class LimitExceeded(APIError):
    """429: a rate limit (with retry_after) or a quota (with fields)."""


class ServerError(APIError):
    """500 and above: not the caller's fault."""


class Unreachable(ServerError):
    """502: no host could take the request, or the host did not answer."""


class Unavailable(ServerError):
    """503: temporarily unavailable, for example while a leader is elected."""


class InsufficientCapacity(ServerError):
    """507: the hosts lack memory or storage."""


_CLASSES: dict[int, type[APIError]] = {
    400: BadRequest,
    401: Unauthorized,
    402: PaymentRequired,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: LimitExceeded,
    502: Unreachable,
    503: Unavailable,
    507: InsufficientCapacity,
}


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> APIError:
    """The exception for an answer with status 400 or above, from the service or a proxy."""
    fields: dict[str, Any] = {}
    try:
        parsed = json.loads(body)
        if isinstance(parsed, dict):
            fields = parsed
    except ValueError:
        pass
    error, detail = fields.pop("error", None), fields.pop("detail", None)
    if not isinstance(error, str) or not error:
        try:
            error = HTTPStatus(status).phrase.lower()
        except ValueError:
            error = f"status {status}"
    of = _CLASSES.get(status, ServerError if status >= 500 else APIError)
    return of(
        status,
        error,
        detail if isinstance(detail, str) else None,
        headers.get("x-request-id"),
        retry_after(headers),
        fields,
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of a Retry-After header; its other form, a date, is not used here."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < 1e6 else None
