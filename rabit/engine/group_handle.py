"""GroupHandle: several operations that were submitted together, with handles of their own or without."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rabit.engine.handle import SLICE_MS, Finish, Handle, begun

if TYPE_CHECKING:
    from rabit.engine.native_engine import NativeEngine

__all__ = ["GroupHandle", "Several"]

_making = threading.RLock()  # of the handles of a GroupHandle; a destructor may come in between


class Several:
    """Operations that nobody has asked for the handles of: waited for, and freed, in one call.  Any thread."""

    __slots__ = (
        "_consumer",
        "_finish",
        "_names",
        "_native",
        "_tensors",
        "_values",
        "has_ended",
        "results",
    )

    def __init__(
        self,
        native: NativeEngine,
        values: list[int],
        names: Sequence[str],
        tensors: Sequence[Any],
        finish: Callable[[Any], Finish | None] | None,
        results: Sequence[Any],
        consumer: Callable[[], int] | None,
    ) -> None:
        """tensors: are kept while they are in use.  finish: what a handle gives is finish(tensor)(handle);
        None: the handles give `results`."""
        self._native = native
        self._values = values
        self._names = names
        self._tensors = tensors
        self._finish = finish
        self._consumer = consumer
        self.results = results
        self.has_ended = False  # all of them, well

    def __len__(self) -> int:
        return len(self._values)

    @property
    def has_results(self) -> bool:
        """Whether `results` are what the handles give."""
        return self._finish is None

    def end(self) -> bool:
        """Waits for all; False: one has failed, or a stream waits in place of the host, and handles tell."""
        ended = 0
        while not self.has_ended and self._consumer is None:
            self._native.live_pointer()
            ended = self._native.calls.wait_several(self._values, ended, -SLICE_MS)
            self.has_ended = ended == len(self._values)
            # One that has run out of its own time says so like a wait that has.
            if ended < 0 or (not self.has_ended and self._native.is_done(self._values[ended])):
                return False
        return self.has_ended

    def release(self) -> None:
        """Frees them, which have ended and have no handles."""
        self._native.release_several(self._values)

    def handles(self) -> list[Handle]:
        """One for each, whose it is from now on."""
        finish = self._finish
        rows = zip(self._values, self._names, self._tensors, self.results, strict=True)
        made = [
            begun(
                Handle,
                self._native,
                value,
                name,
                (tensor, result),
                functools.partial(_given, result) if finish is None else finish(tensor),
                self._consumer,
            )
            for value, name, tensor, result in rows
        ]
        if self.has_ended:
            for each in made:
                each.set_succeeded()
        return made


def _given(result: Any, _: Handle) -> Any:
    return result


class GroupHandle:
    """Several operations that were submitted together.  Thread-safe."""

    __slots__ = ("_made", "_several")

    def __init__(self, handles: Sequence[Handle] = (), *, several: Several | None = None) -> None:
        """several: makes the handles when somebody first asks for one, which may be never; None: they
        are `handles`."""
        self._made = tuple(handles)
        self._several = several

    def __del__(self) -> None:
        several = getattr(self, "_several", None)
        if several is None:
            return
        if several.has_ended:
            several.release()
        else:
            _ = self.handles  # They let their operations finish.

    def __len__(self) -> int:
        several = self._several
        return len(self._made if several is None else several)

    def done(self) -> bool:
        """True when all have finished."""
        return all(handle.done() for handle in self.handles)

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Waits for all, at most `timeout` seconds; then raises the first error, if any.

        Returns what `wait` of each returns.
        """
        several = None if timeout is not None else self._ended()
        if several is not None and several.has_results:
            return list(several.results)
        results: list[Any] = self._each(timeout, Handle.wait)
        return results

    def result(self, timeout: float | None = None) -> list[Any]:
        """Waits for all and returns the list of their results."""
        several = None if timeout is not None else self._ended()
        if several is not None and several.has_results:
            return list(several.results)
        results: list[Any] = self._each(timeout, Handle.result)
        return results

    def _ended(self) -> Several | None:
        """What has ended well, all of it, without handles.  Waits for that."""
        several = self._several
        return several if several is not None and several.end() else None

    def _each(self, timeout: float | None, method: Callable[[Handle, float | None], Any]) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        results: list[Any] = []
        first: BaseException | None = None
        for handle in self.handles:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                results.append(method(handle, left))
            except RuntimeError as error:  # The others must finish before memory is reused.
                first = first or error
        if first is not None:
            raise first
        return results

    @property
    def handles(self) -> tuple[Handle, ...]:
        """One for each operation, in the order of the call."""
        if self._several is not None:
            with _making:
                several = self._several
                if several is not None:
                    self._made, self._several = tuple(several.handles()), None
        return self._made
