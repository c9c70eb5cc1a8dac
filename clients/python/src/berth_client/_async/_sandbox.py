"""One sandbox."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Any, Literal

from .. import models
from .. import operations as op
from .._core import READ_TIMEOUT, short
from .._unset import UNSET, Unset
from ..errors import NotFound
from ..types import Command, ExecResult, LogLine, Output, exec_of
from ._commands import AsyncCommands
from ._files import AsyncFiles
from ._forks import AsyncFork, AsyncForkTree
from ._sockets import AsyncLanguageServer, AsyncProcess, AsyncPty
from ._streams import AsyncFeed, event_feed, exec_output, log_feed
from ._transport import AsyncTransport

LogStream = Literal["stdout", "stderr", "both", "console"]


class AsyncSandbox:
    """A microVM. As a context manager, it is deleted at the end."""

    def __init__(self, transport: AsyncTransport, info: models.Sandbox) -> None:
        self._transport = transport
        self.info = info
        """its last known record; see refresh"""
        self.commands = AsyncCommands(transport, info.id)
        self.files = AsyncFiles(transport, info.id)
        self.ports = AsyncPorts(transport, info.id)

    @property
    def id(self) -> str:
        """A credential: anyone who has it can reach the sandbox's public ports."""
        return self.info.id

    @property
    def status(self) -> models.SandboxStatus:
        return self.info.status

    @property
    def metadata(self) -> dict[str, Any]:
        return self.info.metadata

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {short(self.id)} {self.info.template} {self.info.status}>"

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, of: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self.delete()
        except NotFound:
            pass

    async def refresh(self) -> AsyncSandbox:
        """Reads its record again."""
        self.info = await self._transport.call(op.get_sandbox(self.id))
        return self

    async def delete(self) -> None:
        """Deletes it, with its memory and its disk."""
        await self._transport.nothing(op.delete_sandbox(self.id))

    # Commands.

    async def exec(
        self,
        cmd: Command,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        timeout_seconds: int | None = None,
        check: bool = False,
    ) -> ExecResult:
        """Runs a command and waits for its end. With check, a command that fails raises CommandFailed."""
        body = exec_of(cmd, cwd, env, user, stdin, timeout_seconds)
        patience = READ_TIMEOUT + (60 if timeout_seconds is None else timeout_seconds)
        result = ExecResult.of(await self._transport.call(op.exec(self.id, body), patience))
        return result.check() if check else result

    def stream(
        self,
        cmd: Command,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        timeout_seconds: int | None = None,
    ) -> AsyncFeed[Output]:
        """Runs a command and iterates over its output and then its Exit. Leaving the iteration kills it."""
        body = exec_of(cmd, cwd, env, user, stdin, timeout_seconds)
        return AsyncFeed(exec_output(self._transport, self.id, body))

    def process(
        self,
        cmd: Command,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout_seconds: int | None = None,
    ) -> AsyncProcess:
        """Runs a command whose input stays open. A context manager."""
        return AsyncProcess(self._transport, self.id, exec_of(cmd, cwd, env, user, None, timeout_seconds))

    def pty(
        self,
        cmd: str | None = None,
        *,
        cols: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        user: str | None = None,
    ) -> AsyncPty:
        """Opens a terminal with a shell or another program. A context manager."""
        call = op.open_terminal(self.id, cmd=cmd, cols=cols, rows=rows, cwd=cwd, user=user)
        return AsyncPty(self._transport, call)

    def language_server(self, lang: str) -> AsyncLanguageServer:
        """Connects to the template's language server for lang. A context manager."""
        return AsyncLanguageServer(self._transport, op.open_language_server(self.id, lang))

    # Logs and events.

    async def logs(self, *, stream: LogStream | None = None, tail: int | None = None) -> str:
        """Reads the output of the template's start command or, with stream="console", of the guest's console."""
        async with self._transport.stream(op.logs(self.id, stream=stream, tail=tail)) as response:
            return (await response.aread()).decode(errors="replace")

    def follow_logs(self, *, stream: LogStream | None = None, tail: int | None = None) -> AsyncFeed[LogLine]:
        """Iterates over existing lines and then new ones."""
        return AsyncFeed(log_feed(self._transport, op.follow_logs(self.id, stream=stream, tail=tail)))

    async def events(self, *, tail: int | None = None, since: datetime | None = None) -> list[models.Event]:
        """Reads its events, oldest first."""
        return await self._transport.call(op.events(self.id, tail=tail, since=since))

    def follow_events(self, *, tail: int | None = None, since: datetime | None = None) -> AsyncFeed[models.Event]:
        """Iterates over existing events and then new ones, until the sandbox is deleted.

        A broken connection is replaced, without gaps or duplicates.
        """
        return AsyncFeed(event_feed(self._transport, self.id, since, tail))

    # Lifecycle.

    async def pause(self) -> AsyncSandbox:
        """Stops its CPUs and keeps its memory."""
        self.info = await self._transport.call(op.pause_sandbox(self.id))
        return self

    async def resume(self) -> AsyncSandbox:
        """Resumes it after a pause, or after a warm fork of it."""
        self.info = await self._transport.call(op.resume_sandbox(self.id))
        return self

    async def hibernate(self) -> AsyncSandbox:
        """Writes its memory to disk and frees it. The next command wakes it."""
        self.info = await self._transport.call(op.hibernate_sandbox(self.id))
        return self

    async def wake(self) -> AsyncSandbox:
        """Wakes it from hibernation."""
        self.info = await self._transport.call(op.wake_sandbox(self.id))
        return self

    async def lifecycle(self) -> models.Lifecycle:
        """Reads when it expires, and what happens then."""
        return await self._transport.call(op.get_lifecycle(self.id))

    async def set_lifecycle(
        self, *, ttl_seconds: int | Unset | None = UNSET, persistent: bool | None = None
    ) -> models.Lifecycle:
        """Changes when it expires. ttl_seconds counts from now; None means never."""
        body = models.PatchLifecycle(ttl_seconds=ttl_seconds, persistent=persistent)
        return await self._transport.call(op.patch_lifecycle(self.id, body))

    # Snapshots and forks.

    async def snapshot(self, name: str | None = None) -> models.Snapshot:
        """Saves its memory and disk as they are now; see from_snapshot of create."""
        return await self._transport.call(op.create_snapshot(self.id, models.CreateSnapshot(name=name)))

    async def fork(self, count: int = 1, *, mode: models.ForkMode = "cold") -> AsyncFork:
        """Creates children with its disk, freshly booted. Returns a list of those
        that run; its attribute failed has the others.

        Warm: creates one child that also has its memory, in its place on the
        network. This sandbox is then paused until it is resumed.
        """
        forked = await self._transport.call(op.fork_sandbox(self.id, models.Fork(count=count, mode=mode)))
        return AsyncFork(forked, [AsyncSandbox(self._transport, child) for child in forked.children])

    async def fork_tree(self, count: int = 2, *, metadata: dict[str, Any] | None = None) -> AsyncForkTree:
        """Creates children with its disk and its memory, in which its processes continue."""
        body = models.ForkTree(count=count, metadata=metadata)
        forked = await self._transport.call(op.fork_tree(self.id, body))
        children = [AsyncSandbox(self._transport, child) for child in forked.children]
        return AsyncForkTree(self._transport, forked, children)

    # Ports.

    def preview_url(self, port: int) -> str:
        """Returns the URL of one of its ports."""
        return self.info.preview_url.replace("{port}", str(port))

    async def preview_token(self, *, port: int | None = None, ttl_seconds: int | None = None) -> models.PreviewAccess:
        """Creates a token for the previews of a sandbox created with preview="token": for one port, or for all."""
        body = models.CreatePreviewToken(port=port, ttl_seconds=ttl_seconds)
        return await self._transport.call(op.create_preview_token(self.id, body))


PortList = list[models.Port]


class AsyncPorts:
    """The ports of a sandbox. Every port is reachable, registered or not."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._id = sandbox_id

    async def add(self, port: int, label: str | None = None) -> models.Port:
        """Registers a port with a label."""
        return await self._transport.call(op.add_port(self._id, models.AddPort(port=port, label=label)))

    async def remove(self, port: int) -> None:
        """Unregisters a port."""
        await self._transport.nothing(op.remove_port(self._id, port=port))

    async def list(self) -> PortList:
        """Lists listening and registered ports."""
        return await self._transport.call(op.list_ports(self._id))
