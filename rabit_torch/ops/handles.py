"""Handles of torch operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import rabit
from rabit import GroupHandle
from rabit.framework import Task, no_handle


class TorchHandle(ABC):
    """An asynchronous operation, or several; `wait()` returns what the sync form returns."""

    __slots__ = ()

    @property
    @abstractmethod
    def engine_handles(self) -> list[Any]:
        """What has to finish first: operations of the engine, or tasks, which are waited for alike."""

    def __call__(self) -> Any:
        """The same as `wait()`: sparse_allreduce_async of Horovod returns a callable."""
        return self.wait()

    @abstractmethod
    def done(self) -> bool:
        """True when `wait` will not block."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the operation is finished and returns its result; may be called again.

        timeout: seconds; TimedOut leaves the operation in flight.  Raises Mismatch, PeerLost, ….
        """


class TensorHandle(rabit.Handle, TorchHandle):
    """One operation of the engine whose result is known before: a single object, for gradients come often."""

    __slots__ = ()

    @property
    def engine_handles(self) -> list[Any]:
        return [self]


class JoinedHandle(TorchHandle):
    """Whatever finishes when all of its handles have finished.  Its result is made once, by the first wait."""

    __slots__ = ("_finish", "_handles", "_result")

    def __init__(
        self,
        handles: Sequence[rabit.Handle | GroupHandle | Task],
        finish: Callable[..., Any] | None = None,
    ) -> None:
        """finish: gives the result when all `handles` have finished; does not block.  None: it is what the only
        one of them returns from `wait`."""
        self._handles = handles  # empty when they have been waited for
        self._finish = finish
        self._result: Any = None

    @property
    def engine_handles(self) -> list[Any]:
        found: list[Any] = []
        for handle in self._handles:
            if isinstance(handle, GroupHandle):
                found.extend(handle.handles)
            else:
                found.append(handle)
        return found

    def done(self) -> bool:
        return all(handle.done() for handle in self._handles)

    def wait(self, timeout: float | None = None) -> Any:
        if self._handles:
            results = [handle.wait(timeout) for handle in self._handles]
            self._result = results[0] if self._finish is None else self._finish()
            self._handles = ()
        return self._result


def poll(handle: TorchHandle) -> bool:
    """Returns True when `synchronize(handle)` will not block."""
    try:
        done = handle.done
    except AttributeError:
        raise no_handle(handle, "poll") from None
    return done()


def synchronize(handle: TorchHandle) -> Any:
    """Blocks until the operation of `handle` has finished; returns its result or raises its error."""
    try:
        wait = handle.wait
    except AttributeError:
        raise no_handle(handle, "synchronize") from None
    return wait()
