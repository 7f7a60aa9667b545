"""Completion: torch futures that complete when operations of an engine do.

Code in C++ waits for such futures (DDP's reducer, the autograd engine), so somebody has to complete
them: one thread for each engine, which sleeps in the engine with the GIL released.  In a backward
pass nobody is woken for that: its own thread waits for the operations at its end, and completes the
futures before DDP looks at them.  It needs the thread only where Python asks for one earlier.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

import rabit

__all__ = ["Completion", "completion_of", "future_of", "raise_after_backward"]

_WAIT_S = 1.0  # at a time, so that the thread notices that it is to end


class _Failure:
    """What a promise holds in place of a result."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _result_of(promise: Any) -> Any:
    held = promise.value()
    if isinstance(held, _Failure):
        raise held.error
    return held


def _devices_of(outputs: Any) -> list[int | str | torch.device] | None:
    """Of tensors in nested lists: a future has to know on which devices its value will lie."""
    if isinstance(outputs, torch.Tensor):
        return [outputs.device] if outputs.is_cuda else None
    found: set[Any] = {device for output in outputs for device in _devices_of(output) or ()}
    return sorted(found, key=str) or None


def _on_the_first_of(
    devices: list[int | str | torch.device] | None,
) -> contextlib.AbstractContextManager[None]:
    """Inside, the device of the outputs is the current one of this thread.

    A future that completes remembers the current device for its callbacks. In a thread of its own that would be
    device 0, on which every rank of a host would then have a context.
    """
    return torch.cuda.device(devices[0]) if devices else contextlib.nullcontext()


class _Waiting:
    """One promise of a result, and how to find out that it is due.

    `future` is what the promise becomes.  A future that Python fails by `set_exception` has, for who
    reads it in C++, the exception as its value, which DDP's reducer takes for a list of tensors.
    What a callback raises fails the future that follows in C++ too.
    """

    __slots__ = ("_devices", "_promise", "finish", "future", "handles")

    def __init__(
        self, handles: list[rabit.Handle], finish: Callable[[], Any], outputs: Any
    ) -> None:
        self.handles = handles
        self.finish = finish
        self._devices = _devices_of(outputs)
        self._promise: Any = torch.futures.Future(devices=self._devices)
        self.future: Any = self._promise.then(_result_of)

    def is_due(self) -> bool:
        return all(handle.done() for handle in self.handles)

    def complete(self) -> None:
        with _on_the_first_of(self._devices):
            try:
                held = self.finish()
            except BaseException as error:
                held = _Failure(error)
            self._promise.set_result(held)


class _AwaitedFuture(torch.futures.Future[Any]):
    """Completed at the end of a backward pass, or by the completion thread once Python asks for it."""

    def __init__(
        self,
        completion: Completion,
        handles: list[rabit.Handle],
        finish: Callable[[], Any],
        outputs: Any,
    ) -> None:
        """finish: gives the result, which is `outputs`, when all handles are done; it does not block
        then."""
        self._devices = _devices_of(outputs)
        super().__init__(devices=self._devices)
        self._completion = completion
        self._handles = handles
        self._lock = threading.Lock()
        self._is_asked_for = False
        self._is_settled = False
        self._finish = finish

    def settle(self) -> None:
        """Completes it, once.  All handles are done."""
        with self._lock:
            if self._is_settled:
                return
            self._is_settled = True
        with _on_the_first_of(self._devices):
            try:
                result = self._finish()
            except BaseException as error:
                self.set_exception(error)
            else:
                self.set_result(result)

    def done(self) -> bool:
        self._ask()
        return super().done()

    def wait(self) -> Any:
        self._ask()
        return super().wait()

    def value(self) -> Any:
        self._ask()
        return super().value()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        self._ask()
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._ask()
        super().add_done_callback(callback)

    def _ask(self) -> None:
        with self._lock:
            is_first, self._is_asked_for = not self._is_asked_for, True
            if not is_first or self._is_settled:
                return
        self._completion.future(self._handles, self.settle)


class Completion:
    """The thread, started by the first future.  Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: list[_Waiting] = []
        self._thread: threading.Thread | None = None
        self._nested: Completion | None = None

    def future(
        self, handles: list[rabit.Handle], finish: Callable[[], Any], outputs: Any = ()
    ) -> Any:
        """A torch future with the result of `finish()`, called when all `handles` are done.

        outputs: the tensors that are the result, in lists of any depth.
        finish: does not block; what it raises fails the future, as a RuntimeError with its text.
        What runs when it completes may start operations and wait for them: these belong to another
        thread, because this one is then busy.
        """
        if threading.current_thread() is self._thread:
            self._nested = self._nested or Completion()
            return self._nested.future(handles, finish, outputs)
        waiting = _Waiting(handles, finish, outputs)
        with self._changed:
            self._start()
            self._open.append(waiting)
            self._changed.notify()
        # The thread may sleep already, for news that came before this future.
        if waiting.is_due():
            self._complete([waiting])
        return waiting.future

    def stop(self) -> None:
        """Ends the thread after what is in flight; at most a second.  Idempotent."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join(1.0)
        if self._nested is not None:
            self._nested.stop()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rabit completion", daemon=True)
            self._thread.start()
            atexit.register(self.stop)

    def _run(self) -> None:
        seen = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._open or self._thread is None)
                if not self._open:
                    return
                handle = next((handle for every in self._open for handle in every.handles), None)
            # What finishes after this look is news: none is missed, whatever is added meanwhile.
            if handle is not None:
                seen = handle.wait_news(seen, _WAIT_S)
            with self._changed:
                due = [each for each in self._open if each.is_due()]
            self._complete(due)

    def _complete(self, due: list[_Waiting]) -> None:
        """Completes those that nobody else has."""
        for each in due:
            with self._changed:
                if each not in self._open:
                    continue
                self._open.remove(each)
            each.complete()


_completions: weakref.WeakKeyDictionary[rabit.Engine, Completion] = weakref.WeakKeyDictionary()


def completion_of(engine: rabit.Engine) -> Completion:
    """The completion thread of an engine, made at the first call."""
    found = _completions.get(engine)
    if found is None:
        found = _completions.setdefault(engine, Completion())
    return found


def raise_after_backward(wait: Callable[[], Any]) -> None:
    """Has a backward pass that runs in this thread end with what `wait` raises, if it raises.

    The future of an operation tells DDP's reducer, which is C++, the text of an error and not its
    type.  Here the error itself leaves `backward()`, before the reducer looks at its futures, for
    which it waits in any case.  Without a backward pass this does nothing.
    """
    if torch._C._current_graph_task_id() != -1:
        torch.autograd.Variable._execution_engine.queue_callback(wait)


def future_of(
    engine: rabit.Engine,
    handles: list[rabit.Handle],
    finish: Callable[[], Any],
    wait: Callable[[], Any],
    outputs: Any = (),
) -> Any:
    """A torch future with the result of `finish()`, called when all `handles` are done.

    finish, outputs: as for `Completion.future`.  wait: waits for them, at the end of a backward pass, which
    then raises what it raises.
    """
    completion = completion_of(engine)
    # Without a node the pass is at its end, where callbacks run one after the other. The reducer of a static graph
    # starts its operations there, and waits for them before a callback that came later could complete them.
    if torch._C._current_autograd_node() is None:
        return completion.future(handles, finish, outputs)
    future = _AwaitedFuture(completion, handles, finish, outputs)

    def end() -> None:
        try:
            wait()
        finally:
            future.settle()

    raise_after_backward(end)
    return future
