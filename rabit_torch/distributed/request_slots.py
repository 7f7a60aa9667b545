"""Lines: names and prepared requests for operations that a process group repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rabit
from rabit_torch.distributed.call_order import CallOrder

__all__ = ["MESSAGE", "Lines"]

MESSAGE = "message"  # what the key of a message begins with: only two ranks know of it

_SLOTS = 8
_PREPARED_MAX = 1024


class _Line:
    """Operations of one kind, shape and type; up to `_SLOTS` of them are in flight at a time."""

    __slots__ = ("batches", "handles", "started")

    def __init__(self) -> None:
        self.started = 0
        self.batches: list[tuple[Any, rabit.Batch] | None] = [None] * _SLOTS
        self.handles: list[rabit.Handle | None] = [None] * _SLOTS


class Lines:
    """Gives the n-th operation of a kind the name of the (n - 8)-th, which the engine knows.

    Ranks that issue the same operations in the same order use the same names.  One thread at a
    time, as torch.distributed asks of the callers of a group.
    """

    def __init__(self, engine: rabit.Engine, prefix: str, order: CallOrder) -> None:
        self._engine = engine
        self._prefix = prefix
        self._order = order
        self._lines: dict[tuple[Any, ...], _Line] = {}
        self._prepared = 0
        self._joins = engine.joins

    def submit(
        self,
        key: tuple[Any, ...],
        variant: Any,
        make: Callable[[str], rabit.Request],
        pointers: tuple[int, int, int] | None,
        keepalive: Any,
    ) -> rabit.Handle:
        """Starts an operation; returns at once unless eight of its kind are in flight.

        key: what names the operation: equal on all ranks.
        variant: whatever else tells requests apart but for their memory; ranks that disagree about
            it get an error from the engine, because the name is the same.
        make: makes the request with a name.  pointers: its input, output and stream; None: the request is
        not kept, because it differs from call to call.
        """
        batch, place = self._next(key, variant, make, pointers)
        (handle,) = batch.submit(keepalive=[keepalive])
        self._keep(place, handle)
        return handle

    def finish(
        self,
        key: tuple[Any, ...],
        variant: Any,
        make: Callable[[str], rabit.Request],
        pointers: tuple[int, int, int] | None,
        keepalive: Any,
    ) -> list[rabit.Handle]:
        """Like `submit`, for a caller that waits next: this thread does the engine's work for a while.

        What is still to be waited for; nothing if it has succeeded.
        """
        batch, place = self._next(key, variant, make, pointers)
        handle = batch.finish(keepalive)
        self._keep(place, handle)
        return [] if handle is None else [handle]

    def _next(
        self,
        key: tuple[Any, ...],
        variant: Any,
        make: Callable[[str], rabit.Request],
        pointers: tuple[int, int, int] | None,
    ) -> tuple[rabit.Batch, tuple[_Line, int]]:
        """The next request of a kind, and its place."""
        if self._order.mismatch:
            self._order.refuse(str(key[0]))
        if self._joins != self._engine.joins:
            self._start_again()
        if key[0] != MESSAGE:
            self._order.note(key)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        slot = line.started % _SLOTS
        line.started += 1
        before = line.handles[slot]
        if before is not None and not before.done():
            self._wait_before(before)
        kept = line.batches[slot]
        if kept is not None and pointers is not None and kept[0] == variant:
            batch = kept[1]
            batch.set_pointers(0, *pointers)
        else:
            label = ".".join(str(each) for each in key)
            batch = self._engine.prepare([make(f"{self._prefix}.{label}.{slot}")])
            if pointers is not None and (kept is not None or self._prepared < _PREPARED_MAX):
                self._prepared += kept is None
                line.batches[slot] = variant, batch
        return batch, (line, slot)

    def _start_again(self) -> None:
        """A join() has ended, and ranks that had joined missed operations: all count alike from here on."""
        self._joins = self._engine.joins
        self._order.start_again(self._joins)
        for key, line in self._lines.items():
            if key[0] != MESSAGE:  # Of messages none was missed.
                line.started = 0

    @staticmethod
    def _keep(place: tuple[_Line, int], handle: rabit.Handle | None) -> None:
        line, slot = place
        line.handles[slot] = handle

    def _wait_before(self, handle: rabit.Handle) -> None:
        try:
            self._order.wait(handle, None)
        except rabit.RabitError:
            if not handle.done():  # Otherwise it reports to who waits for it.
                raise
