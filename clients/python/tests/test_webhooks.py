"""Verification of webhooks, by the cases that the Go client has too."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest

import berth_client as berth
from berth_client import models

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "controlplane/api/testdata/webhooks.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_verify(case: dict[str, Any]) -> None:
    headers = {"x-service-signature": case["signature"]}
    body = case["body"].encode()
    if not case["valid"]:
        with pytest.raises(berth.InvalidSignature):
            berth.verify_webhook(case["secret"], headers, body, now=case["now"])
        return
    event = berth.verify_webhook(case["secret"], headers, body, now=case["now"])
    assert event.id == "wd_k7m2qz4xw3v5n6a2j7p4t5r6sd"
    assert event.type == "endpoint.test"
    assert event.created_at.isoformat() == "2026-11-20T13:05:09.412000+00:00"
    assert models.WebhookTest.from_json(event.data).endpoint_id == "we-k7m2"


def test_it_is_compared_with_the_time_of_now() -> None:
    case = CASES[0]
    body = case["body"].encode()
    signed_at = int(time.time())
    mac = hmac.new(case["secret"].encode(), f"{signed_at}.".encode() + body, hashlib.sha256).hexdigest()
    berth.verify_webhook(case["secret"], {"X-Service-Signature": f"t={signed_at},v1={mac}"}, body)


def test_no_secret() -> None:
    with pytest.raises(berth.BerthError, match="no secret"):
        berth.verify_webhook("", {}, b"{}")
