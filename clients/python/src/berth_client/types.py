"""Results of streams and commands, in addition to the types in models."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from . import models
from .errors import CommandFailed

Command = str | list[str]
"""A string runs under sh -c; a list is a program with its arguments."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes transferred and, if known, their total."""


@dataclass(frozen=True, slots=True)
class Stdout:
    """A piece of a command's standard output."""

    data: bytes
    offset: int = 0
    """of its first byte in the output of a detached command; 0 otherwise"""

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Stderr:
    """A piece of a command's standard error."""

    data: bytes
    offset: int = 0
    """of its first byte in the output of a detached command; 0 otherwise"""

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended; always last."""

    exit_code: int
    """128+n when signal n ended it"""
    duration_ms: int = 0
    timed_out: bool = False


Output = Stdout | Stderr | Exit


@dataclass(frozen=True, slots=True)
class Gap:
    """Output of a detached command that is not kept any more."""

    offset: int
    """where the output goes on"""


CommandOutput = Stdout | Stderr | Gap | Exit


@dataclass(frozen=True, slots=True)
class ExecResult:
    """A command's end and its output, up to 8 MiB per stream."""

    exit_code: int
    """128+n when signal n ended it"""
    stdout: str
    stderr: str
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration_ms: int
    timed_out: bool
    truncated: bool
    """a stream exceeded 8 MiB and the rest was dropped"""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out

    def check(self) -> ExecResult:
        """Returns this result, or throws CommandFailed if the command failed."""
        if not self.ok:
            raise CommandFailed(self)
        return self

    @classmethod
    def of(cls, r: models.ExecResult) -> ExecResult:
        return cls(
            exit_code=r.exit_code,
            stdout=r.stdout,
            stderr=r.stderr,
            stdout_bytes=r.stdout.encode() if r.stdout_base64 is None else r.stdout_base64,
            stderr_bytes=r.stderr.encode() if r.stderr_base64 is None else r.stderr_base64,
            duration_ms=r.duration_ms,
            timed_out=r.timed_out,
            truncated=r.truncated,
        )


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log."""

    stream: str
    """stdout, stderr or console"""
    line: str
    ts: datetime | None = None
    """when it was written, if known"""
    partial: bool = False
    """the line is very long and continues in the next one"""
    instance: str = ""
    """the app's instance that wrote it; empty in other logs"""


def output_of(kind: str, raw: dict[str, Any]) -> Output | None:
    """A frame or event of a command; None for an unknown kind."""
    if kind == "exit":
        return Exit(raw["exit_code"], raw.get("duration_ms", 0), raw.get("timed_out", False))
    if kind not in ("stdout", "stderr"):
        return None
    text = raw.get("data", "")
    data = b64decode(text) if raw.get("encoding") == "base64" else text.encode()
    return Stdout(data) if kind == "stdout" else Stderr(data)


def command_output_of(kind: str, raw: dict[str, Any]) -> CommandOutput | None:
    """An event of a detached command's output; None for an unknown kind."""
    if kind == "gap":
        return Gap(raw["offset"])
    piece = output_of(kind, raw)
    return piece if piece is None or isinstance(piece, Exit) else replace(piece, offset=raw["offset"])


def exec_of(
    cmd: Command,
    cwd: str | None,
    env: dict[str, str] | None,
    user: str | None,
    stdin: str | bytes | None,
    timeout_seconds: int | None,
) -> models.Exec:
    """The body of a command."""
    return models.Exec(
        cmd=cmd,
        cwd=cwd,
        env=env,
        user=user,
        stdin=stdin if isinstance(stdin, str) else None,
        stdin_base64=stdin if isinstance(stdin, bytes) else None,
        timeout_seconds=timeout_seconds,
    )
