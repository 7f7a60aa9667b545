"""Completion: torch futures that complete when operations of an engine do.

Code in C++ waits for such futures (DDP's reducer, the autograd engine), so somebody has to complete
them: one thread for each engine, which sleeps in the engine with the GIL released.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

import rabit

__all__ = ["Completion", "completion_of"]

# How long the thread sleeps for the oldest operation before it looks at the others.
_SLICE_S = 0.02


class _Waiting:
    """One future, and how to find out that it is due."""

    __slots__ = ("finish", "future", "handles")

    def __init__(self, handles: list[rabit.Handle], finish: Callable[[], Any], future: Any) -> None:
        self.handles = handles
        self.finish = finish
        self.future = future

    def is_due(self) -> bool:
        return all(handle.done() for handle in self.handles)

    def sleep(self) -> None:
        """Sleeps until it is due, at most a slice.  Errors belong to the future."""
        for handle in self.handles:
            with contextlib.suppress(rabit.RabitError):
                handle.wait(_SLICE_S)

    def complete(self) -> None:
        try:
            result = self.finish()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Completion:
    """The thread, started by the first future.  Thread-safe."""

    def __init__(self) -> None:
        self._arrivals: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._nested: Completion | None = None

    def future(self, handles: list[rabit.Handle], finish: Callable[[], Any]) -> Any:
        """A torch future with the result of `finish()`, called when all `handles` are done.

        finish: does not block; what it raises becomes the exception of the future.
        What runs when it completes may start operations and wait for them: these belong to another
        thread, because this one is then busy.
        """
        if threading.current_thread() is self._thread:
            self._nested = self._nested or Completion()
            return self._nested.future(handles, finish)
        future: Any = torch.futures.Future()
        waiting = _Waiting(handles, finish, future)
        if waiting.is_due():
            waiting.complete()
            return future
        self._start()
        self._arrivals.put(waiting)
        return future

    def stop(self) -> None:
        """Ends the thread after what is in flight; at most a second.  Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._arrivals.put(None)
            thread.join(1.0)
        if self._nested is not None:
            self._nested.stop()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="rabit completion", daemon=True
                )
                self._thread.start()
                atexit.register(self.stop)

    def _run(self) -> None:
        open_: deque[_Waiting] = deque()
        while True:
            while not open_ or not self._arrivals.empty():
                arrival = self._arrivals.get()
                if arrival is None:
                    return
                open_.append(arrival)
            if not open_[0].is_due():
                open_[0].sleep()
            due = [each for each in open_ if each.is_due()]
            for each in due:
                open_.remove(each)
                each.complete()


_completions: weakref.WeakKeyDictionary[rabit.Engine, Completion] = weakref.WeakKeyDictionary()


def completion_of(engine: rabit.Engine) -> Completion:
    """The completion thread of an engine, made at the first call."""
    found = _completions.get(engine)
    if found is None:
        found = _completions.setdefault(engine, Completion())
    return found
