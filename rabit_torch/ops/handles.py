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

    __slots__ = ("given",)

    given: Any  # the result; set by who starts it

    @property
    def engine_handles(self) -> list[Any]:
        return [self]

    def wait(self, timeout: float | None = None) -> Any:
        rabit.Handle.wait(self, timeout)
        return self.given

    result = wait


class JoinedHandle(TorchHandle):
    """What is over when all of its handles are; the result may be made then."""

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
        found: list[Any] = []
        for each in self._handles:
            if isinstance(each, GroupHandle):
                found.extend(each.handles)
            else:
                found.append(each)
        return found

    def done(self) -> bool:
        return all(handle.done() for handle in self._handles)

    def wait(self, timeout: float | None = None) -> Any:
        for handle in self._handles:
            handle.wait(timeout)
        if self._finish is not None:
            self._result = self._finish()
            self._finish = None
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


def waited_for(start: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The result of what `start` begins; the engine knows from the start that somebody waits."""
    with rabit.default_engine().waiting():
        handle = start(*arguments, **named)
    return handle.wait()
