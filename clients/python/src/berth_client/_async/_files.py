"""The files of a sandbox."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from .. import models
from .. import operations as op
from .._call import Body, Nothing
from .._core import CHUNK
from ..errors import NotFound, StreamBroken
from ..types import Progress
from ._transport import AsyncTransport

Entries = list[models.FileStat]


class AsyncFiles:
    """Paths are absolute."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._id = sandbox_id

    async def read(self, path: str) -> bytes:
        """Reads a complete file; for a large one use stream or download."""
        async with self._transport.stream(op.read_file(self._id, path=path)) as response:
            return await response.aread()

    async def read_text(self, path: str) -> str:
        """Reads a complete file as UTF-8 text."""
        return (await self.read(path)).decode()

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """Reads a file in pieces."""
        async with self._transport.stream(op.read_file(self._id, path=path)) as response:
            async for chunk in response.aiter_bytes(CHUNK):
                yield chunk

    async def download(self, path: str, to: str | os.PathLike[str], *, progress: Progress | None = None) -> int:
        """Copies a file of the sandbox to a local file, which appears once complete. Returns the number of bytes."""
        target = Path(to)
        part = target.with_name(target.name + ".part")
        done = 0
        try:
            async with self._transport.stream(op.read_file(self._id, path=path)) as response:
                length = response.headers.get("content-length")
                total = None if length is None else int(length)
                with part.open("wb") as f:
                    async for chunk in response.aiter_bytes(CHUNK):
                        f.write(chunk)
                        done += len(chunk)
                        if progress:
                            progress(done, total)
            if total is not None and done != total:
                raise StreamBroken(f"{done} of {total} bytes came")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return done

    async def write(self, path: str, data: str | Body, *, mode: str | None = None) -> None:
        """Writes a file, also from pieces. Creates parent directories. mode is octal, by default "0644"."""
        content = data.encode() if isinstance(data, str) else data
        await self._transport.nothing(op.write_file(self._id, content, path=path, mode=mode))

    async def upload(
        self,
        local: str | os.PathLike[str],
        path: str,
        *,
        mode: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Copies a local file into the sandbox, where it appears when it is complete. Returns the number of bytes."""
        with open(local, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            call: Nothing = op.write_file(self._id, _pieces(f, size, progress), path=path, mode=mode)
            call.content_length = size
            await self._transport.nothing(call)
        return size

    async def stat(self, path: str) -> models.FileStat:
        """Describes what is at a path; a link is described itself."""
        return await self._transport.call(op.stat_file(self._id, path=path))

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except NotFound as e:
            if e.error == "no such file or directory":
                return False
            raise
        return True

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Deletes a file or a directory; with recursive, also one that is not empty."""
        await self._transport.nothing(op.remove_file(self._id, path=path, recursive=recursive or None))

    async def mkdir(self, path: str) -> None:
        """Creates a directory and its parents."""
        await self._transport.nothing(op.make_dir(self._id, path=path))

    async def list(self, path: str) -> Entries:
        """Lists a directory, sorted by name."""
        return (await self._transport.call(op.list_dir(self._id, path=path))).entries


async def _pieces(f: BinaryIO, size: int, progress: Progress | None) -> AsyncIterator[bytes]:
    done = 0
    while chunk := f.read(CHUNK):
        yield chunk
        done += len(chunk)
        if progress:
            progress(done, size)
