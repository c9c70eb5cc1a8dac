"""Verification of the webhooks that Berth sends."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping

from .errors import BerthError
from .models import WebhookEvent

SIGNATURE_HEADER = "X-Service-Signature"
TOLERANCE = 300
"""seconds that the time of a signature may be from the receiver's"""


class InvalidSignature(BerthError):
    """A webhook that is not from the service, or not of now. Refuse it."""


def verify_webhook(secret: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> WebhookEvent:
    """Reads a webhook whose signature is right and at most 5 minutes old.

    body is the request's, byte for byte, before anything has parsed it. headers
    may have names in any case. The id of the event is the same at each attempt:
    keep those that were acted on. Raises InvalidSignature.
    """
    if not secret:
        raise BerthError("no secret")
    signed_at, signatures = _parse(_header(headers, SIGNATURE_HEADER))
    try:
        age = (time.time() if now is None else now) - int(signed_at)
    except (ValueError, OverflowError):
        raise InvalidSignature("want t=<unix seconds>,v1=<hex>") from None
    if abs(age) > TOLERANCE:
        raise InvalidSignature("it is of another time")
    want = hmac.new(secret.encode(), signed_at.encode() + b"." + body, hashlib.sha256).hexdigest().encode()
    if not any(hmac.compare_digest(s.encode(errors="replace"), want) for s in signatures):
        raise InvalidSignature("it does not match")
    return WebhookEvent.from_json(json.loads(body))


def _header(headers: Mapping[str, str], name: str) -> str:
    for key, value in headers.items():
        if key.lower() == name.lower():
            return value
    return ""


def _parse(header: str) -> tuple[str, list[str]]:
    """The time and the signatures of version 1."""
    signed_at, signatures = "", []
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name == "t":
            signed_at = value
        elif name == "v1":
            signatures.append(value)
    return signed_at, signatures
