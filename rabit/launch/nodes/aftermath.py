"""Aftermath: where the ranks of one host write when their launcher is gone."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

from rabit.printable import printable

__all__ = ["Aftermath"]


class Aftermath:
    """A file in `directory`, or where temporary files are if that cannot be written.  One thread only.

    It takes whole lines, each with its rank in front, as rabitrun writes them.
    """

    def __init__(self, directory: str, host: str) -> None:
        name = f"rabitrun.{re.sub('[^A-Za-z0-9.-]', '_', host)}.{os.getpid()}.log"
        self._partial: dict[tuple[int, int], bytes] = {}
        self._descriptor = -1
        for folder in (directory, tempfile.gettempdir()):
            with contextlib.suppress(OSError):
                path = Path(folder) / name
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                return

    def note(self, text: str) -> None:
        """Of the agent itself."""
        self._write(f"rabitrun: {printable(text)}\n".encode())

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """What `rank` has written, not necessarily whole lines."""
        *lines, rest = (self._partial.pop((rank, stream), b"") + data).split(b"\n")
        if rest:
            self._partial[rank, stream] = rest
        self._write(b"".join(b"[%d] %s\n" % (rank, line) for line in lines))

    def close(self) -> None:
        """Writes what has no end of line, too."""
        for (rank, _), rest in self._partial.items():
            self._write(b"[%d] %s\n" % (rank, rest))
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, data: bytes) -> None:
        # A disk that is full, or no file at all, must not end ranks that need neither.
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, data)
