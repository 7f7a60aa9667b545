"""Mailbox: what threads have for the one thread of a selector."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
from collections.abc import Callable

__all__ = ["Mailbox"]


class Mailbox:
    """`put` is thread-safe; what was put is called in the selector's thread.  The rest: one thread only."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        selector.register(self._read, selectors.EVENT_READ, self._empty)
        self._is_open = True

    def put(self, call: Callable[[], None]) -> None:
        """Has the selector's thread make this call soon."""
        self._calls.append(call)
        with contextlib.suppress(OSError):  # A full pipe wakes as well; a closed one has no reader.
            os.write(self._write, b"\0")

    def _empty(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 1 << 12)
        while self._calls:
            self._calls.popleft()()

    def close(self) -> None:
        """The remaining calls are dropped."""
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._read)
            os.close(self._read)
            os.close(self._write)
