"""Tests against the Berth that BERTH_URL and BERTH_TOKEN name."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from berth_client import Berth, Sandbox

TTL = 900
"""seconds until the remains of a killed test run expire"""


@pytest.fixture(scope="session")
def client() -> Iterator[Berth]:
    with Berth() as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(client: Berth) -> Iterator[Sandbox]:
    with client.sandboxes.create("base", ttl_seconds=TTL, env={"GREETING": "hello"}) as sandbox:
        yield sandbox


def look(url: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """Requests a preview, even if this machine does not resolve names under .localhost."""
    parts = urlsplit(url)
    host = "127.0.0.1" if (parts.hostname or "").endswith(".localhost") else parts.hostname
    target = parts._replace(netloc=f"{host}:{parts.port}" if parts.port else str(host)).geturl()
    return httpx.get(target, headers={"Host": parts.netloc, **(headers or {})}, timeout=60)
