from __future__ import annotations

from collections.abc import Iterator

import pytest

from berth_client import Berth, Sandbox

from .fake import SANDBOX, Answer, Fake, serve


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serve() as fake:
        yield fake


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses are recorded instead of waited for."""
    waits: list[float] = []
    for module in ("berth_client._sync._io", "berth_client._async._io"):
        monkeypatch.setattr(f"{module}.sleep", _kept(waits, "_async" in module))
    return waits


def _kept(waits: list[float], asynchronous: bool) -> object:
    async def later(seconds: float) -> None:
        waits.append(seconds)

    return later if asynchronous else waits.append


@pytest.fixture
def client(fake: Fake) -> Iterator[Berth]:
    with Berth(fake.url, "brt_test_key") as client:
        yield client


@pytest.fixture
def sandbox(client: Berth, fake: Fake) -> Sandbox:
    fake.say(Answer(201, SANDBOX))
    sandbox = client.sandboxes.create("base")
    fake.asked.clear()
    return sandbox
