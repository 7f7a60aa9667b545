"""NativeEngine: the C engine, its lifetime, and what outlives the Python objects that use it."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rabit._native import address_of_pointer, check, ffi, last_error, load, load_calls
from rabit.engine.interruptible import interruptible
from rabit.engine.pool import Pool
from rabit.errors import NotInitialized

__all__ = ["NativeEngine"]

# How many sweeps may stop at an operation that has not finished: a device has hundreds in flight.
_THOROUGH_EVERY = 16
_REASON_MAX = 2000  # characters; what the other ranks print in one message


class NativeEngine:
    """Owns one rabit_engine.  Shared by an Engine, its handles and its batches; thread-safe.

    The C object is freed when the last of them is gone, so a result may outlive its Engine.  A
    forked child owns nothing: the threads and connections belong to the parent.
    """

    def __init__(self, options: str, library_path: str, pool: Pool | None = None) -> None:
        """pool: whose connections it uses, and gives back when it stops; None: its own."""
        self.library: Any = load(library_path)
        start = functools.partial(_start, self.library, options, pool)
        self._pointer: Any = interruptible(f"start\n{library_path}\n{options}", start)
        # Bound once: looking a function up in the library takes as long as calling it.
        self.run: Any = self.library.rabit_run
        self.run_ordered: Any = self.library.rabit_run_ordered
        # For calls that cannot afford `open_pointer`: NULL when it would raise, which the library
        # refuses; `fail` then says why.
        self.work_pointer: Any = self._pointer
        # Of groups whose operations run elsewhere than on the default backend, its number.
        self.group_backends: dict[int, int] = {}
        # The calls of the extension module; None: it is not there.
        self.calls: Any = self._make_calls(library_path)
        # (handle, milliseconds) -> code.  After `live_pointer`, which knows a forked child.
        self.wait: Callable[[int, int], int] = (
            functools.partial(self.library.rabit_wait, self._pointer)
            if self.calls is None
            else self.calls.wait
        )
        # (handle, stream, milliseconds) -> code.
        self.wait_on_stream: Callable[[int, int, int], int] = (
            functools.partial(self.library.rabit_wait_on_stream, self._pointer)
            if self.calls is None
            else self.calls.wait_on_stream
        )
        self._release: Any = self.library.rabit_release
        self._pid = os.getpid()
        self._done = ffi.typeof("int32_t*")
        # Operations whose handle was dropped while they were in flight, with their tensors.
        self.orphans: list[tuple[int, Any]] = []
        self._sweeps = 0
        self.is_closed = False
        self.is_foreign = False  # In a child that was forked; asking the kernel each time is dear.
        _engines.add(self)
        self._finalizer = weakref.finalize(self, _free, self.library, self._pointer, self._pid)
        # At exit init()'s own handler closes the engine; freeing it earlier would pull it away.
        self._finalizer.atexit = False
        self.rank, self.size = self.topology(0)

    def _make_calls(self, library_path: str) -> Any:
        module = load_calls(library_path)
        if module is None:
            return None
        functions = (
            "run",
            "run_ordered",
            "submit",
            "wait",
            "wait_on_stream",
            "release",
            "output",
        )
        addresses = (ffi.addressof(self.library, f"rabit_{function}") for function in functions)
        return module.Calls(*map(address_of_pointer, (*addresses, self._pointer)))

    def live_pointer(self) -> Any:
        """The C pointer.  Raises NotInitialized in a forked child."""
        if self.is_foreign:
            raise NotInitialized(
                f"the engine of process {self._pid} is used in process {os.getpid()}, which was "
                "forked from it: its threads and connections stay with the parent. Call "
                "rabit.init() in processes that are started with the 'spawn' method, or do the "
                "communication in the parent."
            )
        return self._pointer

    def open_pointer(self) -> Any:
        """The C pointer, for new work.  Raises NotInitialized after close as well."""
        if self.is_closed:
            raise NotInitialized(
                "the engine has been shut down and takes no more work. Call rabit.init() again, "
                "or make a new Engine."
            )
        return self._pointer if not self.is_foreign else self.live_pointer()

    def topology(self, group: int) -> tuple[int, int]:
        """(rank of this process in the group or -1, number of ranks in the group)."""
        rank, size = ffi.new("int32_t*"), ffi.new("int32_t*")
        check(self.library, self.library.rabit_topology(self.live_pointer(), group, rank, size))
        return rank[0], size[0]

    def fail(self, code: int) -> NoReturn:
        """Raises what made the call that returned `code` fail.  Call it right after that call."""
        self.open_pointer()  # Of an engine that takes no work this is the better reason.
        raise last_error(self.library, code)

    def refuse_work(self) -> None:
        """Makes every call fail that takes the pointer as it is."""
        self.work_pointer = ffi.NULL
        if self.calls is not None:
            self.calls.refuse_work()

    def is_done(self, value: int) -> bool:
        done = ffi.new(self._done)
        check(self.library, self.library.rabit_is_done(self.live_pointer(), value, done))
        return bool(done[0])

    def release(self, value: int, keepalive: Any) -> None:
        """Frees a handle.  keepalive: not None if the operation may still be in flight."""
        if self.is_foreign or not self._finalizer.alive:
            return
        if keepalive is not None and not self.is_done(value):
            self.orphans.append((value, keepalive))
            return
        self._release(self._pointer, value)

    def drop(self, values: Sequence[int], keepalive: Any) -> None:
        """What an exception in a wait leaves behind: handles that no caller has received; 0 stands for none.

        keepalive: what their operations may still use.
        """
        for value in values:
            if value:
                self.release(value, keepalive)

    def release_several(self, values: list[int]) -> None:
        """Frees handles of operations that have finished."""
        if not self.is_foreign and self._finalizer.alive:
            self.calls.release_several(values)

    def sweep(self) -> None:
        """Frees orphans that have finished: the oldest, which end first, and sometimes all."""
        self._sweeps += 1
        orphans, self.orphans = self.orphans, []
        is_thorough = self.is_closed or self._sweeps % _THOROUGH_EVERY == 0
        for index, (value, keepalive) in enumerate(orphans):
            before = len(self.orphans)
            self.release(value, keepalive)
            if len(self.orphans) > before and not is_thorough:
                self.orphans.extend(orphans[index + 1 :])
                break

    def stop(self, timeout: float) -> None:
        """Stops the engine, and waits at most `timeout` seconds for the other ranks to do so."""
        if self.is_closed:
            return
        pointer = self.live_pointer()
        self.is_closed = True
        self.refuse_work()
        try:
            check(self.library, self.library.rabit_stop(pointer, int(timeout * 1000)))
        finally:
            self.sweep()

    def abort(self, reason: str, timeout: float) -> None:
        """Tells the other ranks that this one ends because of `reason`, and waits for that.

        Nothing happens to an engine that is closed, or in a forked child.
        """
        if self.is_closed or self.is_foreign:
            return
        text = reason[:_REASON_MAX].replace("\0", " ").encode(errors="backslashreplace")
        check(self.library, self.library.rabit_abort(self._pointer, text, int(timeout * 1000)))


def _start(library: Any, options: str, pool: Pool | None) -> Any:
    """The pointer of an engine that is connected to all ranks."""
    slot, text = ffi.new("rabit_engine**"), options.encode("utf-8")
    if pool is None:
        check(library, library.rabit_start(text, slot))
    else:
        check(library, library.rabit_start_over(pool.pointer, text, slot))
    return slot[0]


_engines: weakref.WeakSet[NativeEngine] = weakref.WeakSet()


def _disown() -> None:
    for engine in _engines:
        engine.is_foreign = True
        engine.refuse_work()


os.register_at_fork(after_in_child=_disown)


def _free(library: Any, pointer: Any, pid: int) -> None:
    if os.getpid() == pid:
        library.rabit_free(pointer)
