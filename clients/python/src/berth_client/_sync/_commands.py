# Generated from _async/_commands.py by `make clients`. Do not edit.
"""Detached commands of a sandbox."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Callable

from .. import models
from .. import operations as op
from .._call import Stream
from .._core import backoff
from ..errors import ConnectionFailed, StreamBroken
from ..types import Command, CommandOutput, Exit, Gap, command_output_of, exec_of
from . import _io
from ._streams import Feed, said
from ._transport import Transport


class DetachedCommand:
    """A command that goes on without its caller."""

    def __init__(self, transport: Transport, sandbox_id: str, info: models.SandboxCommand) -> None:
        self._transport = transport
        self._sandbox = sandbox_id
        self.info = info
        """its last known record; see refresh"""

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def status(self) -> str:
        return self.info.status

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128+n when signal n ended it"""
        return self.info.exit_code

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.status}>"

    def refresh(self) -> DetachedCommand:
        """Reads its record again."""
        self.info = self._transport.call(op.get_command(self._sandbox, self.id))
        return self

    def output(self, *, since: int = 0) -> Feed[CommandOutput]:
        """Iterates over what it has written since an offset: Stdout and Stderr, a Gap where output
        is not kept any more, and its Exit if it has ended."""
        return Feed(_output(self._transport, op.command_output(self._sandbox, self.id, since=since)))

    def follow(self, *, since: int = 0) -> Feed[CommandOutput]:
        """Iterates over what it has written since an offset and what it writes, until its Exit.

        A broken connection is replaced, without gaps or duplicates, unless the sandbox was
        stopped: to follow again would wake it. Leaving the iteration does not end the command.
        """
        return Feed(_followed(self._transport, self._sandbox, self.id, since))

    def wait(self) -> Exit:
        """Waits for its end. A code other than 0 is no error."""
        self.refresh()
        with self.follow(since=self.info.output_bytes) as pieces:
            for piece in pieces:
                if isinstance(piece, Exit):
                    self.refresh()
                    return piece
        raise StreamBroken("the stream ended before the command")

    def input(self, data: str | bytes, *, eof: bool = False) -> None:
        """Writes to its input. With eof nothing follows."""
        raw = data.encode() if isinstance(data, str) else data
        self._transport.nothing(op.write_command(self._sandbox, self.id, _input(raw, eof)))

    def signal(self, name: str) -> None:
        """Sends a signal, such as "INT", to its process group."""
        self._transport.nothing(op.signal_command(self._sandbox, self.id, models.CommandSignal(signal=name)))

    def delete(self) -> None:
        """Kills it with everything it started, and forgets it."""
        self._transport.nothing(op.delete_command(self._sandbox, self.id))


CommandList = list[DetachedCommand]


class Commands:
    """The commands that belong to a sandbox and not to who started them.

    They go on through hibernation and wake, and in the children of a fork tree. Asking for
    them wakes a hibernated sandbox.
    """

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self._id = sandbox_id

    def start(
        self,
        cmd: Command,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        timeout_seconds: int | None = None,
        idempotency_key: str | None = None,
    ) -> DetachedCommand:
        """Starts a command. It has no timeout unless one is given. Its input stays open, unless
        stdin is given, which is then all of it."""
        body = exec_of(cmd, cwd, env, user, stdin, timeout_seconds)
        call = op.start_command(self._id, body, idempotency_key=idempotency_key)
        return DetachedCommand(self._transport, self._id, self._transport.call(call))

    def get(self, command_id: str) -> DetachedCommand:
        """Finds a command by its id."""
        info = self._transport.call(op.get_command(self._id, command_id))
        return DetachedCommand(self._transport, self._id, info)

    def list(self) -> CommandList:
        """Lists the commands that run and the last 100 that have ended, newest first."""
        found = self._transport.call(op.list_commands(self._id))
        return [DetachedCommand(self._transport, self._id, info) for info in found]


def _input(raw: bytes, eof: bool) -> models.CommandInput:
    try:
        return models.CommandInput(data=raw.decode(), eof=eof)
    except UnicodeDecodeError:
        return models.CommandInput(data=b64encode(raw).decode(), encoding="base64", eof=eof)


def _output(
    transport: Transport, call: Stream, ping: Callable[[], None] = lambda: None
) -> Iterator[CommandOutput]:
    """One stream of output. Each comment calls ping."""
    with transport.stream(call) as response:
        for message in transport.messages(response, ping):
            if message.event == "error":
                raise StreamBroken(said(message.json()))
            piece = command_output_of(message.event, message.json())
            if piece is not None:
                yield piece
            if isinstance(piece, Exit):
                return


def _followed(transport: Transport, sandbox_id: str, id: str, since: int) -> Iterator[CommandOutput]:
    failures = 0

    def alive() -> None:
        nonlocal failures
        failures = 0

    while True:
        try:
            for piece in _output(transport, op.follow_command_output(sandbox_id, id, since=since), alive):
                if isinstance(piece, Exit):
                    yield piece
                    return
                since = piece.offset if isinstance(piece, Gap) else piece.offset + len(piece.data)
                failures = 0
                yield piece
        except (ConnectionFailed, StreamBroken):
            if failures >= transport.config.retries:
                raise
        failures += 1
        _io.sleep(backoff(failures))
        status = (transport.call(op.get_sandbox(sandbox_id))).status
        if status in ("hibernated", "paused"):
            raise StreamBroken(f"the sandbox is {status}: its commands go on when it does")
