# Generated from _async/_forks.py by `make clients`. Do not edit.
"""Forks of a running sandbox."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from .. import models
from .. import operations as op
from ..errors import NotFound
from ._transport import Transport

if TYPE_CHECKING:
    from ._sandbox import Sandbox


class Fork(list["Sandbox"]):
    """The children of a fork: those that run and those that failed."""

    def __init__(self, forked: models.Forked, children: list[Sandbox]) -> None:
        super().__init__(children)
        self.failed = forked.failed
        """children that failed to start"""
        self.pause_ms = forked.pause_ms
        """how long the parent was paused"""


class ForkTree:
    """Children that continue where their parent was, independently of each other.

    As a context manager it deletes them at the end, except a promoted one.
    """

    def __init__(self, transport: Transport, forked: models.ForkedTree, children: list[Sandbox]) -> None:
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
        self.promoted: Sandbox | None = None

    def promote(self, child: Sandbox, *, cleanup_siblings: bool = False) -> Sandbox:
        """Keeps the child and, with `cleanup_siblings`, deletes the others at once."""
        answer = self._transport.call(
            op.promote(child.id, models.Promote(tree_id=self.tree_id, cleanup_siblings=cleanup_siblings))
        )
        child.info = answer.promoted
        self.promoted = child
        self.children = [c for c in self.children if c.id not in answer.deleted]
        return child

    def __enter__(self) -> ForkTree:
        return self

    def __exit__(
        self, of: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        for child in self.children:
            if child is self.promoted:
                continue
            try:
                child.delete()
            except NotFound:
                pass
