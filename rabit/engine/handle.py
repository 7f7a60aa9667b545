"""Handle: one operation in flight."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from rabit._native import check, ffi, last_error
from rabit.errors import InvalidArgument, TimedOut

if TYPE_CHECKING:
    from rabit.engine.native_engine import NativeEngine
    from rabit.engine.tensor import TensorView

__all__ = ["Finish", "Handle", "begun", "no_handle", "output_array"]

# A wait returns to the interpreter this often, so that Ctrl-C works.
SLICE_MS = 100
_TIMED_OUT = 5


class Handle:
    """One operation in flight; keeps its tensors alive until it has finished.

    Thread-safe.  A handle that is dropped lets its operation finish.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_finish",
        "_is_done",
        "_keepalive",
        "_native",
        "_value",
        "consumer",
        "name",
    )

    def __init__(
        self,
        native: NativeEngine,
        value: int,
        name: str,
        keepalive: Any,
        finish: Callable[[Handle], Any] | None = None,
        code: int = _TIMED_OUT,
        consumer: Callable[[], int] | None = None,
    ) -> None:
        """code: what a wait that was made already has returned; called right after it.
        consumer: gives the stream of a device that a thread continues with; None: the host waits."""
        self._native = native
        self._value = value
        self._keepalive = keepalive
        self._finish = finish
        self._is_done = False
        self._error: BaseException | None = None
        self.name = name
        self.consumer = consumer
        # The wait's own time may be over, or the operation's: only the engine can tell.
        if code != _TIMED_OUT:
            self._settle(code)

    def __repr__(self) -> str:
        return f"<rabit.Handle {self.name!r}, {'done' if self._is_done else 'in flight'}>"

    def __del__(self) -> None:
        native = getattr(self, "_native", None)
        if native is not None:
            native.release(self._value, None if self._is_done else self._keepalive)

    @property
    def has_succeeded(self) -> bool:
        """True when a wait for it has returned and raised nothing."""
        return self._is_done and self._error is None

    def done(self) -> bool:
        """True when the operation has finished, well or not.  Returns at once."""
        return self._is_done or self._native.is_done(self._value)

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the operation has finished, at most `timeout` seconds; returns what `result` returns.

        Of a torch tensor on a device, until only the device is left to wait for: what this thread's
        current stream gets from here on comes after the result.  What fails there later is raised by
        `wait_done`, and by the next operation.

        Of a request that was submitted by itself it returns None.
        Raises what went wrong; TimedOut after `timeout` leaves the operation in flight.
        """
        self._wait_well(timeout)
        return None if self._finish is None else self._finish(self)

    def _wait_well(self, timeout: float | None = None) -> None:
        """Waits, and raises what went wrong."""
        if not self._is_done:
            self._wait(timeout, None if self.consumer is None else self.consumer())
        if self._error is not None:
            raise self._error

    def wait_done(self, timeout: float | None = None) -> None:
        """The same, until `done()` is true: blocks where `wait` leaves it to a stream."""
        if not self._is_done:
            self._wait(timeout, None)
        if self._error is not None:
            raise self._error

    def _wait(self, timeout: float | None, stream: int | None) -> None:
        native, value = self._native, self._value
        native.live_pointer()
        wait = native.wait
        if stream is not None:
            wait = functools.partial(_wait_on_stream, native, stream)
        deadline = None if timeout is None else _deadline(timeout, self.name)
        # Below zero: the engine knows that this thread does nothing else until the operation is over.
        slice_ms = -SLICE_MS if stream is None else SLICE_MS
        while True:
            if deadline is not None:
                left_ms = (deadline - time.monotonic()) * 1000
                slice_ms = max(0, min(SLICE_MS, int(left_ms + 0.999)))
            code = wait(value, slice_ms)
            if code != _TIMED_OUT:
                break
            if native.is_done(value):  # The operation has finished; this gives its own status.
                code = wait(value, 0)
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise TimedOut(
                    f"'{self.name}' on rank {native.rank} has not finished after {timeout:g} s and "
                    "is still in flight. Wait again, or look for the rank that did not submit it."
                )
        if stream is None:
            self._settle(code)
        elif code:
            error = last_error(native.library, code)
            if not native.is_done(value):  # It continues: this stream cannot wait for it.
                raise error
            self._error, self._is_done, self._keepalive = error, True, None

    def set_succeeded(self) -> None:
        """Somebody has waited for it, and it has ended well."""
        self._settle(0)

    def _settle(self, code: int) -> None:
        if code:
            self._error = last_error(self._native.library, code)
        self._is_done = True
        self._keepalive = None

    def wait_news(self, seen: int, timeout: float) -> int:
        """Blocks until more operations of the engine than `seen` have finished; how many have.

        seen: 0, or what it returned before, on any handle.  At most `timeout` seconds.
        """
        native = self._native
        which, news = ffi.new("int32_t*"), ffi.new("uint64_t*", seen)
        pointer, limit_ms = native.live_pointer(), int(timeout * 1000)
        wait_any = native.library.rabit_wait_any
        code = wait_any(pointer, ffi.NULL, 0, limit_ms, which, news)
        if code != _TIMED_OUT:
            check(native.library, code)
        return int(news[0])

    def result(self, timeout: float | None = None) -> Any:
        """Waits, then returns what the operation produced.

        Where the engine allocated the output this is a NumPy array over its memory, without a
        copy (bfloat16 as uint16 bits); the array keeps the handle alive.
        """
        self._wait_well(timeout)
        if self._finish is not None:
            return self._finish(self)
        return output_array(self)

    def output_view(self) -> TensorView:
        """The output as a view of the engine's memory, which the view keeps alive.  Waits."""
        self._wait_well()
        view: TensorView = _outputs().output_view(self._native, self._value, self)
        return view

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output.  Waits."""
        self._wait_well()
        shape: tuple[int, ...] = _outputs().read_output(self._native, self._value)[1]
        return shape

    @property
    def received_splits(self) -> tuple[int, ...]:
        """alltoall: the rows that came from each rank of the group.  Waits."""
        self._wait_well()
        splits: tuple[int, ...] = _outputs().read_output(self._native, self._value, True)[2]
        return splits


def _deadline(timeout: float, name: str) -> float | None:
    """The time of the clock `timeout` seconds from now; None: never."""
    try:
        if timeout == timeout:  # not NaN
            return None if timeout == math.inf else time.monotonic() + timeout
    except TypeError:
        pass
    raise InvalidArgument(
        f"wait for '{name}': timeout is {timeout!r}; pass a number of seconds, or None to wait without a limit"
    )


def no_handle(given: Any, caller: str) -> InvalidArgument:
    """The error of a function that takes a handle."""
    return InvalidArgument(
        f"{caller}: {given!r} of type {type(given).__name__} is no handle; pass what an operation whose name "
        "holds _async has returned"
    )


def output_array(handle: Handle) -> Any:
    """The output of a finished handle over the engine's own memory; None if it has none."""
    return _outputs().output_array(handle._native, handle._value, handle)


@functools.cache
def _outputs() -> ModuleType:
    """Loaded with the first output: NumPy takes longer to load than all else that an engine needs."""
    from rabit.engine import output

    return output


Finish = Callable[[Handle], Any]  # turns a finished handle into what its `result` returns
_Kind = TypeVar("_Kind", bound=Handle)
_new = object.__new__


def begun(
    kind: type[_Kind],
    native: NativeEngine,
    value: int,
    name: str,
    keepalive: Any,
    finish: Callable[[Handle], Any] | None,
    consumer: Callable[[], int] | None,
) -> _Kind:
    """kind(...) of an operation in flight, in half the time: no __init__ is looked up and called."""
    handle = _new(kind)
    handle._native = native
    handle._value = value
    handle._keepalive = keepalive
    handle._finish = finish
    handle._is_done = False
    handle._error = None
    handle.name = name
    handle.consumer = consumer
    return handle


def _wait_on_stream(native: NativeEngine, stream: int, value: int, timeout_ms: int) -> int:
    return native.wait_on_stream(value, stream, timeout_ms)


def wait_any(native: NativeEngine, handles: Sequence[Handle], timeout: float | None) -> int:
    """See `Engine.wait_any`."""
    values = ffi.new("rabit_handle[]", [handle._value for handle in handles])
    which = ffi.new("int32_t*")
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = SLICE_MS
        if deadline is not None:
            left = max(0, min(SLICE_MS, int((deadline - time.monotonic()) * 1000 + 0.999)))
        pointer = native.live_pointer()
        code = native.library.rabit_wait_any(pointer, values, len(handles), left, which, ffi.NULL)
        if code != _TIMED_OUT or (deadline is not None and time.monotonic() >= deadline):
            check(native.library, code)
            return int(which[0])
