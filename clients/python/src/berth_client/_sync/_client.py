# Generated from _async/_client.py by `make clients`. Do not edit.
"""The client, the entry point of the package."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import httpx

from .. import models
from .. import operations as op
from .._call import Call, Nothing, Page, Stream
from .._core import Config, backoff
from ..errors import BerthError, BuildFailed
from . import _io
from ._app import Apps
from ._database import Databases
from ._sandbox import Sandbox
from ._streams import Feed, build_feed
from ._transport import Transport

T = TypeVar("T")

_END = ("ready", "failed")


class Berth:
    """A client of the service, with one URL or one per replica.

    Without arguments it reads BERTH_URLS or BERTH_URL, and BERTH_TOKEN. If a
    replica does not answer, the next is called; the README says what is tried
    again. It is a context manager; one client is enough for a program.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        *,
        retries: int = 4,
        http: httpx.Client | None = None,
    ) -> None:
        self._transport = Transport(Config.of(url, token, retries), http)
        self.sandboxes = Sandboxes(self._transport)
        self.snapshots = Snapshots(self._transport)
        self.templates = Templates(self._transport)
        self.volumes = Volumes(self._transport)
        self.databases = Databases(self._transport)
        self.apps = Apps(self._transport)

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def __enter__(self) -> Berth:
        return self

    def __exit__(
        self, of: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def version(self) -> models.VersionInfo:
        """Returns the version of a replica."""
        return self._transport.call(op.version())

    # Calls of any operation of the module operations.

    def call(self, call: Call[T]) -> T:
        """Makes any call that answers with JSON."""
        return self._transport.call(call)

    def run(self, call: Nothing) -> None:
        """Makes any call that answers without a body."""
        self._transport.nothing(call)

    def pages(self, call: Page[T]) -> Iterator[T]:
        """Iterates over every element of any list."""
        return self._transport.pages(call)

    def stream(self, call: Stream) -> AbstractContextManager[httpx.Response]:
        """Opens any call whose answer is a stream."""
        return self._transport.stream(call)


class Sandboxes:
    """The workspace's sandboxes."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        template: str | None = None,
        *,
        ttl_seconds: int | None = None,
        metadata: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        from_snapshot: str | models.Snapshot | None = None,
        volumes: dict[str, str] | None = None,
        persistent: bool | None = None,
        preview: models.PreviewMode | None = None,
        boot: models.Boot | None = None,
        idempotency_key: str | None = None,
    ) -> Sandbox:
        """Creates a sandbox and waits until it runs.

        The default template is base, or that of the Snapshot. volumes are
        mount paths by the volume's name.
        """
        if isinstance(from_snapshot, models.Snapshot):
            template, from_snapshot = template or from_snapshot.template, from_snapshot.id
        mounts = [models.VolumeMount(name=n, mount_path=p) for n, p in (volumes or {}).items()]
        body = models.CreateSandbox(
            template=template or "base",
            ttl_seconds=ttl_seconds,
            metadata=metadata,
            env=env,
            from_snapshot=from_snapshot,
            volumes=mounts or None,
            persistent=persistent,
            preview=preview,
            boot=boot,
        )
        call = op.create_sandbox(body, idempotency_key=idempotency_key)
        return Sandbox(self._transport, self._transport.call(call))

    def get(self, sandbox_id: str) -> Sandbox:
        return Sandbox(self._transport, self._transport.call(op.get_sandbox(sandbox_id)))

    def list(self) -> Iterator[Sandbox]:
        """Iterates over all, newest first."""
        for info in self._transport.pages(op.list_sandboxes()):
            yield Sandbox(self._transport, info)


class Snapshots:
    """The workspace's snapshots."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, snapshot_id: str) -> models.Snapshot:
        return self._transport.call(op.get_snapshot(snapshot_id))

    def delete(self, snapshot_id: str) -> None:
        self._transport.nothing(op.delete_snapshot(snapshot_id))

    def list(self, *, sandbox_id: str | None = None) -> Iterator[models.Snapshot]:
        """Iterates over all, or over those of one sandbox, newest first."""
        return self._transport.pages(op.list_snapshots(sandbox_id=sandbox_id))


class Volumes:
    """The workspace's volumes."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, *, size_mb: int | None = None) -> models.Volume:
        return self._transport.call(op.create_volume(models.CreateVolume(name=name, size_mb=size_mb)))

    def get(self, name: str) -> models.Volume:
        return self._transport.call(op.get_volume(name))

    def delete(self, name: str) -> None:
        self._transport.nothing(op.delete_volume(name))

    def list(self) -> Iterator[models.Volume]:
        """Iterates over all, newest first."""
        return self._transport.pages(op.list_volumes())


class Templates:
    """The workspace's templates, from which sandboxes are created."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def build(self, name: str, from_: str, **more: Any) -> Build:
        """Starts to build a template from another template or from an OCI image.

        more are the other fields of models.BuildTemplate. Use logs and wait of the
        returned build.
        """
        body = models.BuildTemplate(name=name, from_=from_, **more)
        return Build(self._transport, self._transport.call(op.build_template(body)))

    def get(self, name: str) -> models.Template:
        return self._transport.call(op.get_template(name))

    def delete(self, name: str) -> None:
        self._transport.nothing(op.delete_template(name))

    def builds(self, name: str) -> Iterator[models.Build]:
        """The builds of a template, newest first."""
        return self._transport.pages(op.list_builds(name))

    def list(self) -> Iterator[models.Template]:
        return self._transport.pages(op.list_templates())


class Build:
    """One build of a template."""

    def __init__(self, transport: Transport, info: models.Build) -> None:
        self._transport = transport
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    def logs(self) -> Feed[str]:
        """Iterates over the lines of the build's log until the build ends."""
        return Feed(build_feed(self._transport, self.id))

    def wait(self, timeout: float | None = 1800) -> models.Template:
        """Waits until the template is built and returns it; BuildFailed if the build fails."""
        deadline = None if timeout is None else time.monotonic() + timeout
        polls = 0
        while self.info.status not in _END:
            if deadline is not None and time.monotonic() > deadline:
                raise BerthError(f"the build took longer than {timeout} seconds")
            _io.sleep(min(backoff(polls), 2.0))
            polls += 1
            self.info = self._transport.call(op.get_build(self.id))
        if self.info.status == "failed":
            raise BuildFailed(self.info.error or "the build failed")
        return self._transport.call(op.get_template(self.info.template))
