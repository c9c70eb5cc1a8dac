# Generated from _async/_sandbox.py by `make clients`. Do not edit.
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
from ._commands import Commands
from ._files import Files
from ._forks import Fork, ForkTree
from ._sockets import LanguageServer, Process, Pty
from ._streams import Feed, event_feed, exec_output, log_feed
from ._transport import Transport

LogStream = Literal["stdout", "stderr", "both", "console"]


class Sandbox:
    """A microVM. As a context manager, it is deleted at the end."""

    def __init__(self, transport: Transport, info: models.Sandbox) -> None:
        self._transport = transport
        self.info = info
        """its last known record; see refresh"""
        self.commands = Commands(transport, info.id)
        self.files = Files(transport, info.id)
        self.ports = Ports(transport, info.id)

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

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, of: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            self.delete()
        except NotFound:
            pass

    def refresh(self) -> Sandbox:
        """Reads its record again."""
        self.info = self._transport.call(op.get_sandbox(self.id))
        return self

    def delete(self) -> None:
        """Deletes it, with its memory and its disk."""
        self._transport.nothing(op.delete_sandbox(self.id))

    # Commands.

    def exec(
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
        result = ExecResult.of(self._transport.call(op.exec(self.id, body), patience))
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
    ) -> Feed[Output]:
        """Runs a command and iterates over its output and then its Exit. Leaving the iteration kills it."""
        body = exec_of(cmd, cwd, env, user, stdin, timeout_seconds)
        return Feed(exec_output(self._transport, self.id, body))

    def process(
        self,
        cmd: Command,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout_seconds: int | None = None,
    ) -> Process:
        """Runs a command whose input stays open. A context manager."""
        return Process(self._transport, self.id, exec_of(cmd, cwd, env, user, None, timeout_seconds))

    def pty(
        self,
        cmd: str | None = None,
        *,
        cols: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        user: str | None = None,
    ) -> Pty:
        """Opens a terminal with a shell or another program. A context manager."""
        call = op.open_terminal(self.id, cmd=cmd, cols=cols, rows=rows, cwd=cwd, user=user)
        return Pty(self._transport, call)

    def language_server(self, lang: str) -> LanguageServer:
        """Connects to the template's language server for lang. A context manager."""
        return LanguageServer(self._transport, op.open_language_server(self.id, lang))

    # Logs and events.

    def logs(self, *, stream: LogStream | None = None, tail: int | None = None) -> str:
        """Reads the output of the template's start command or, with stream="console", of the guest's console."""
        with self._transport.stream(op.logs(self.id, stream=stream, tail=tail)) as response:
            return (response.read()).decode(errors="replace")

    def follow_logs(self, *, stream: LogStream | None = None, tail: int | None = None) -> Feed[LogLine]:
        """Iterates over existing lines and then new ones."""
        return Feed(log_feed(self._transport, op.follow_logs(self.id, stream=stream, tail=tail)))

    def events(self, *, tail: int | None = None, since: datetime | None = None) -> list[models.Event]:
        """Reads its events, oldest first."""
        return self._transport.call(op.events(self.id, tail=tail, since=since))

    def follow_events(self, *, tail: int | None = None, since: datetime | None = None) -> Feed[models.Event]:
        """Iterates over existing events and then new ones, until the sandbox is deleted.

        A broken connection is replaced, without gaps or duplicates.
        """
        return Feed(event_feed(self._transport, self.id, since, tail))

    # Lifecycle.

    def pause(self) -> Sandbox:
        """Stops its CPUs and keeps its memory."""
        self.info = self._transport.call(op.pause_sandbox(self.id))
        return self

    def resume(self) -> Sandbox:
        """Resumes it after a pause, or after a warm fork of it."""
        self.info = self._transport.call(op.resume_sandbox(self.id))
        return self

    def hibernate(self) -> Sandbox:
        """Writes its memory to disk and frees it. The next command wakes it."""
        self.info = self._transport.call(op.hibernate_sandbox(self.id))
        return self

    def wake(self) -> Sandbox:
        """Wakes it from hibernation."""
        self.info = self._transport.call(op.wake_sandbox(self.id))
        return self

    def lifecycle(self) -> models.Lifecycle:
        """Reads when it expires, and what happens then."""
        return self._transport.call(op.get_lifecycle(self.id))

    def set_lifecycle(
        self, *, ttl_seconds: int | Unset | None = UNSET, persistent: bool | None = None
    ) -> models.Lifecycle:
        """Changes when it expires. ttl_seconds counts from now; None means never."""
        body = models.PatchLifecycle(ttl_seconds=ttl_seconds, persistent=persistent)
        return self._transport.call(op.patch_lifecycle(self.id, body))

    # Snapshots and forks.

    def snapshot(self, name: str | None = None) -> models.Snapshot:
        """Saves its memory and disk as they are now; see from_snapshot of create."""
        return self._transport.call(op.create_snapshot(self.id, models.CreateSnapshot(name=name)))

    def fork(self, count: int = 1, *, mode: models.ForkMode = "cold") -> Fork:
        """Creates children with its disk, freshly booted. Returns a list of those
        that run; its attribute failed has the others.

        Warm: creates one child that also has its memory, in its place on the
        network. This sandbox is then paused until it is resumed.
        """
        forked = self._transport.call(op.fork_sandbox(self.id, models.Fork(count=count, mode=mode)))
        return Fork(forked, [Sandbox(self._transport, child) for child in forked.children])

    def fork_tree(self, count: int = 2, *, metadata: dict[str, Any] | None = None) -> ForkTree:
        """Creates children with its disk and its memory, in which its processes continue."""
        body = models.ForkTree(count=count, metadata=metadata)
        forked = self._transport.call(op.fork_tree(self.id, body))
        children = [Sandbox(self._transport, child) for child in forked.children]
        return ForkTree(self._transport, forked, children)

    # Ports.

    def preview_url(self, port: int) -> str:
        """Returns the URL of one of its ports."""
        return self.info.preview_url.replace("{port}", str(port))

    def preview_token(self, *, port: int | None = None, ttl_seconds: int | None = None) -> models.PreviewAccess:
        """Creates a token for the previews of a sandbox created with preview="token": for one port, or for all."""
        body = models.CreatePreviewToken(port=port, ttl_seconds=ttl_seconds)
        return self._transport.call(op.create_preview_token(self.id, body))


PortList = list[models.Port]


class Ports:
    """The ports of a sandbox. Every port is reachable, registered or not."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self._id = sandbox_id

    def add(self, port: int, label: str | None = None) -> models.Port:
        """Registers a port with a label."""
        return self._transport.call(op.add_port(self._id, models.AddPort(port=port, label=label)))

    def remove(self, port: int) -> None:
        """Unregisters a port."""
        self._transport.nothing(op.remove_port(self._id, port=port))

    def list(self) -> PortList:
        """Lists listening and registered ports."""
        return self._transport.call(op.list_ports(self._id))
