"""Client of Berth: sandboxes that start in a moment and can be forked with their memory."""

from . import models, operations
from ._async._app import AsyncApp, AsyncApps, AsyncDeployment
from ._async._client import AsyncBerth, AsyncBuild
from ._async._commands import AsyncCommands, AsyncDetachedCommand
from ._async._database import AsyncDatabase, AsyncDatabases
from ._async._files import AsyncFiles
from ._async._forks import AsyncFork, AsyncForkTree
from ._async._sandbox import AsyncSandbox
from ._async._sockets import AsyncLanguageServer, AsyncProcess, AsyncPty
from ._async._streams import AsyncFeed
from ._core import VERSION as __version__
from ._sync._app import App, Apps, Deployment
from ._sync._client import Berth, Build
from ._sync._commands import Commands, DetachedCommand
from ._sync._database import Database, Databases
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
    DatabaseFailed,
    DeploymentFailed,
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
from .types import Command, CommandOutput, ExecResult, Exit, Gap, LogLine, Output, Progress, Stderr, Stdout
from .webhooks import InvalidSignature, verify_webhook

__all__ = [
    "UNSET",
    "APIError",
    "App",
    "Apps",
    "AsyncApp",
    "AsyncApps",
    "AsyncBerth",
    "AsyncBuild",
    "AsyncCommands",
    "AsyncDatabase",
    "AsyncDatabases",
    "AsyncDeployment",
    "AsyncDetachedCommand",
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
    "CommandOutput",
    "Commands",
    "Conflict",
    "ConnectionFailed",
    "Database",
    "DatabaseFailed",
    "Databases",
    "Deployment",
    "DeploymentFailed",
    "DetachedCommand",
    "ExecResult",
    "Exit",
    "Feed",
    "Files",
    "Forbidden",
    "Fork",
    "ForkTree",
    "Gap",
    "InsufficientCapacity",
    "InvalidSignature",
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
    "verify_webhook",
]
