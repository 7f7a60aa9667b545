"""Sink: writes to a descriptor without ever making the launcher wait for its reader."""

from __future__ import annotations

import errno
import os
import select
import selectors
import stat
import time
from collections import deque
from collections.abc import Callable

from rabit.descriptors import is_ready
from rabit.printable import printable_lines

__all__ = ["Sink"]

_FULL_BYTES = 4 << 20
# A pipe that polls writable takes this much without blocking, whatever its mode; the mode itself
# must stay as it is, because other processes share the open file.
_PIECE_BYTES = 4096
# Of a reader that is there: what is written later may find room again.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Sink:
    """One thread only.  `is_broken` once the reader is gone; later output is then dropped.

    What finds a disk full is dropped too, counted in `lost_bytes`, and reported once to `on_loss`.
    """

    def __init__(self, descriptor: int, selector: selectors.BaseSelector) -> None:
        self._descriptor = descriptor
        self._selector = selector
        self._waiting: deque[memoryview] = deque()
        self._bytes = 0
        self._is_registered = False
        self.is_broken = False
        self.lost_bytes = 0
        self.on_loss: Callable[[str], None] | None = None
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:
            self.is_broken = True  # The launcher was started with this stream closed.
            self.is_closed = True
        else:
            self.is_closed = False
            self._is_file = stat.S_ISREG(mode)

    @property
    def is_full(self) -> bool:
        return self._bytes >= _FULL_BYTES

    @property
    def is_empty(self) -> bool:
        return self._bytes == 0

    def write(self, data: bytes) -> None:
        """Takes `data`; writes now what can be written without waiting."""
        if self.is_broken or not data:
            return
        self._waiting.append(memoryview(data))
        self._bytes += len(data)
        if not self._is_registered:
            self._pump()

    def write_text(self, text: str) -> None:
        """Like `write`, for what the launcher itself says; what a terminal would obey is shown as its code.

        What ranks say of themselves may hold such characters, and the name of a file that is not UTF-8.
        """
        self.write(printable_lines(text).encode())

    def flush(self, longest_s: float) -> None:
        """Writes everything, waiting for the reader at most `longest_s` seconds."""
        deadline = time.monotonic() + longest_s
        while not self.is_empty and not self.is_broken:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if not self._is_file:
                self._is_writable(left)
            self._pump()

    def _pump(self) -> None:
        try:
            while self._waiting and (self._is_file or self._is_writable()):
                first = self._waiting[0]
                piece = first if self._is_file else first[:_PIECE_BYTES]
                written = os.write(self._descriptor, piece)
                self._bytes -= written
                if written == len(first):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = first[written:]
        except BlockingIOError:
            pass  # Someone else made the file non-blocking: the selector tells when to continue.
        except OSError as error:
            if error.errno in _FULL:
                self._lose(error)
            else:
                self._break()
        self._register(bool(self._waiting))

    def _is_writable(self, longest_s: float = 0) -> bool:
        return is_ready(self._descriptor, select.POLLOUT, longest_s)

    def _lose(self, error: OSError) -> None:
        is_first = self.lost_bytes == 0
        self.lost_bytes += self._bytes
        self._drop()
        if is_first and self.on_loss is not None:
            self.on_loss(str(error.strerror))

    def _break(self) -> None:
        self.is_broken = True
        self._drop()

    def _drop(self) -> None:
        self._waiting.clear()
        self._bytes = 0

    def _register(self, wanted: bool) -> None:
        if wanted == self._is_registered or self._is_file:
            return
        if wanted:
            self._selector.register(self._descriptor, selectors.EVENT_WRITE, self._pump)
        else:
            self._selector.unregister(self._descriptor)
        self._is_registered = wanted
