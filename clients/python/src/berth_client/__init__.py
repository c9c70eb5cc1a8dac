"""Client of Berth: sandboxes that start in a moment and can be forked with their memory."""

from . import models, operations
from ._async._client import AsyncBerth, AsyncBuild
from ._async._files import AsyncFiles
from ._async._forks import AsyncFork, AsyncForkTree
from ._async._sandbox import AsyncSandbox
from ._async._sockets import AsyncLanguageServer, AsyncProcess, AsyncPty
from ._async._streams import AsyncFeed
from ._core import VERSION as __version__
from ._sync._client import Berth, Build
from ._sync._files import Files
from ._sync._forks import Fork, ForkTree
from ._sync._sandbox import Sandbox
from ._sync._sockets import LanguageServer, Process, Pty
from ._sync._streams import Feed
from ._unset import UNSET
from .errors import (
    APIError,
    BadRequest,
    BerthError,
    BuildFailed,
    CommandFailed,
    Conflict,
    ConnectionFailed,
    Forbidden,
    InsufficientCapacity,
    LimitExceeded,
    NotFound,
    PaymentRequired,
    ServerError,
    StreamBroken,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from .types import Command, ExecResult, Exit, LogLine, Output, Progress, Stderr, Stdout

__all__ = [
    "UNSET",
    "APIError",
    "AsyncBerth",
    "AsyncBuild",
    "AsyncFeed",
    "AsyncFiles",
    "AsyncFork",
    "AsyncForkTree",
    "AsyncLanguageServer",
    "AsyncProcess",
    "AsyncPty",
    "AsyncSandbox",
    "BadRequest",
    "Berth",
    "BerthError",
    "Build",
    "BuildFailed",
    "Command",
    "CommandFailed",
    "Conflict",
    "ConnectionFailed",
    "ExecResult",
    "Exit",
    "Feed",
    "Files",
    "Forbidden",
    "Fork",
    "ForkTree",
    "InsufficientCapacity",
    "LanguageServer",
    "LimitExceeded",
    "LogLine",
    "NotFound",
    "Output",
    "PaymentRequired",
    "Process",
    "Progress",
    "Pty",
    "Sandbox",
    "ServerError",
    "Stderr",
    "Stdout",
    "StreamBroken",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "__version__",
    "models",
    "operations",
]
