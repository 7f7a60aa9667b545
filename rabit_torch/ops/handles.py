"""Handles of torch operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import rabit
from rabit import GroupHandle
from rabit.framework import Task


class TorchHandle:
    """One asynchronous operation, or a group of them; `wait()` returns what the sync form returns."""

    __slots__ = ("_finish", "_handles", "_result")

    def __init__(
        self,
        handles: Sequence[rabit.Handle | GroupHandle | Task],
        finish: Callable[[], Any] | None,
        result: Any = None,
    ) -> None:
        """finish: gives the result when all `handles` have finished; does not block.  None: it is `result`."""
        self._handles = handles  # none are left when they have been waited for
        self._finish = finish  # None: it has been called as well
        self._result = result

    @property
    def engine_handles(self) -> list[Any]:
        """What has to finish first: operations of the engine, or tasks, which are waited for alike."""
        found: list[Any] = []
        for each in self._handles:
            if isinstance(each, GroupHandle):
                found.extend(each.handles)
            else:
                found.append(each)
        return found

    def __call__(self) -> Any:
        """The same as `wait()`: sparse_allreduce_async of Horovod returns a callable."""
        return self.wait()

    def done(self) -> bool:
        """True when `wait` will not block."""
        return all(handle.done() for handle in self._handles)

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the operation is finished and returns its result; may be called again.

        timeout: seconds; TimedOut leaves the operation in flight.  Raises Mismatch, PeerLost, ….
        """
        for handle in self._handles:
            handle.wait(timeout)
        if self._finish is not None:
            self._result = self._finish()
            self._finish = None
        self._handles = ()
        return self._result


def poll(handle: TorchHandle) -> bool:
    """Returns True when `synchronize(handle)` will not block."""
    return handle.done()


def synchronize(handle: TorchHandle) -> Any:
    """Blocks until the operation of `handle` has finished; returns its result or raises its error."""
    return handle.wait()
