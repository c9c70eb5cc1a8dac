"""Forks of a running sandbox."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from .. import models
from .. import operations as op
from ..errors import NotFound
from ._transport import AsyncTransport

if TYPE_CHECKING:
    from ._sandbox import AsyncSandbox


class AsyncFork(list["AsyncSandbox"]):
    """The children of a fork: those that run and those that failed."""

    def __init__(self, forked: models.Forked, children: list[AsyncSandbox]) -> None:
        super().__init__(children)
        self.failed = forked.failed
        """children that failed to start"""
        self.pause_ms = forked.pause_ms
        """how long the parent was paused"""


class AsyncForkTree:
    """Children that continue where their parent was, independently of each other.

    As a context manager it deletes them at the end, except a promoted one.
    """

    def __init__(self, transport: AsyncTransport, forked: models.ForkedTree, children: list[AsyncSandbox]) -> None:
        self._transport = transport
        self.tree_id = forked.tree_id
        self.parent_id = forked.parent_id
        self.children = children
        self.failed = forked.failed
        """children that failed to start"""
        self.pause_ms = forked.pause_ms
        """how long the parent was paused"""
        self.stored = forked.stored
        """whether the capture is in the snapshot store"""
        self.promoted: AsyncSandbox | None = None

    async def promote(self, child: AsyncSandbox, *, cleanup_siblings: bool = False) -> AsyncSandbox:
        """Keeps the child and, with `cleanup_siblings`, deletes the others at once."""
        answer = await self._transport.call(
            op.promote(child.id, models.Promote(tree_id=self.tree_id, cleanup_siblings=cleanup_siblings))
        )
        child.info = answer.promoted
        self.promoted = child
        self.children = [c for c in self.children if c.id not in answer.deleted]
        return child

    async def __aenter__(self) -> AsyncForkTree:
        return self

    async def __aexit__(
        self, of: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        for child in self.children:
            if child is self.promoted:
                continue
            try:
                await child.delete()
            except NotFound:
                pass
