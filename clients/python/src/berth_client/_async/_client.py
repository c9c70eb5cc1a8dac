"""The client, the entry point of the package."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

import httpx

from .. import models
from .. import operations as op
from .._call import Call, Nothing, Page, Stream
from .._core import Config, backoff
from ..errors import BerthError, BuildFailed
from . import _io
from ._app import AsyncApps
from ._database import AsyncDatabases
from ._sandbox import AsyncSandbox
from ._streams import AsyncFeed, build_feed
from ._transport import AsyncTransport

T = TypeVar("T")

_END = ("ready", "failed")


class AsyncBerth:
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
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._transport = AsyncTransport(Config.of(url, token, retries), http)
        self.sandboxes = AsyncSandboxes(self._transport)
        self.snapshots = AsyncSnapshots(self._transport)
        self.templates = AsyncTemplates(self._transport)
        self.volumes = AsyncVolumes(self._transport)
        self.databases = AsyncDatabases(self._transport)
        self.apps = AsyncApps(self._transport)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> AsyncBerth:
        return self

    async def __aexit__(
        self, of: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def version(self) -> models.VersionInfo:
        """Returns the version of a replica."""
        return await self._transport.call(op.version())

    # Calls of any operation of the module operations.

    async def call(self, call: Call[T]) -> T:
        """Makes any call that answers with JSON."""
        return await self._transport.call(call)

    async def run(self, call: Nothing) -> None:
        """Makes any call that answers without a body."""
        await self._transport.nothing(call)

    def pages(self, call: Page[T]) -> AsyncIterator[T]:
        """Iterates over every element of any list."""
        return self._transport.pages(call)

    def stream(self, call: Stream) -> AbstractAsyncContextManager[httpx.Response]:
        """Opens any call whose answer is a stream."""
        return self._transport.stream(call)


class AsyncSandboxes:
    """The workspace's sandboxes."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
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
    ) -> AsyncSandbox:
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
        return AsyncSandbox(self._transport, await self._transport.call(call))

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        return AsyncSandbox(self._transport, await self._transport.call(op.get_sandbox(sandbox_id)))

    async def list(self) -> AsyncIterator[AsyncSandbox]:
        """Iterates over all, newest first."""
        async for info in self._transport.pages(op.list_sandboxes()):
            yield AsyncSandbox(self._transport, info)


class AsyncSnapshots:
    """The workspace's snapshots."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def get(self, snapshot_id: str) -> models.Snapshot:
        return await self._transport.call(op.get_snapshot(snapshot_id))

    async def delete(self, snapshot_id: str) -> None:
        await self._transport.nothing(op.delete_snapshot(snapshot_id))

    def list(self, *, sandbox_id: str | None = None) -> AsyncIterator[models.Snapshot]:
        """Iterates over all, or over those of one sandbox, newest first."""
        return self._transport.pages(op.list_snapshots(sandbox_id=sandbox_id))


class AsyncVolumes:
    """The workspace's volumes."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, name: str, *, size_mb: int | None = None) -> models.Volume:
        return await self._transport.call(op.create_volume(models.CreateVolume(name=name, size_mb=size_mb)))

    async def get(self, name: str) -> models.Volume:
        return await self._transport.call(op.get_volume(name))

    async def delete(self, name: str) -> None:
        await self._transport.nothing(op.delete_volume(name))

    def list(self) -> AsyncIterator[models.Volume]:
        """Iterates over all, newest first."""
        return self._transport.pages(op.list_volumes())


class AsyncTemplates:
    """The workspace's templates, from which sandboxes are created."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def build(self, name: str, from_: str, **more: Any) -> AsyncBuild:
        """Starts to build a template from another template or from an OCI image.

        more are the other fields of models.BuildTemplate. Use logs and wait of the
        returned build.
        """
        body = models.BuildTemplate(name=name, from_=from_, **more)
        return AsyncBuild(self._transport, await self._transport.call(op.build_template(body)))

    async def get(self, name: str) -> models.Template:
        return await self._transport.call(op.get_template(name))

    async def delete(self, name: str) -> None:
        await self._transport.nothing(op.delete_template(name))

    def builds(self, name: str) -> AsyncIterator[models.Build]:
        """The builds of a template, newest first."""
        return self._transport.pages(op.list_builds(name))

    def list(self) -> AsyncIterator[models.Template]:
        return self._transport.pages(op.list_templates())


class AsyncBuild:
    """One build of a template."""

    def __init__(self, transport: AsyncTransport, info: models.Build) -> None:
        self._transport = transport
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    def logs(self) -> AsyncFeed[str]:
        """Iterates over the lines of the build's log until the build ends."""
        return AsyncFeed(build_feed(self._transport, self.id))

    async def wait(self, timeout: float | None = 1800) -> models.Template:
        """Waits until the template is built and returns it; BuildFailed if the build fails."""
        deadline = None if timeout is None else time.monotonic() + timeout
        polls = 0
        while self.info.status not in _END:
            if deadline is not None and time.monotonic() > deadline:
                raise BerthError(f"the build took longer than {timeout} seconds")
            await _io.sleep(min(backoff(polls), 2.0))
            polls += 1
            self.info = await self._transport.call(op.get_build(self.id))
        if self.info.status == "failed":
            raise BuildFailed(self.info.error or "the build failed")
        return await self._transport.call(op.get_template(self.info.template))
