"""When the units of a model are whole: gathered before they are read, in an order that the first step shows.

A gather of all ranks carries the name of its unit, and a unit is gathered on all ranks or on none: ranks that run
different modules get a Mismatch, which the engine finds when they wait for each other. Where values are pulled from
their owners, each rank gathers what it runs, in an order of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import torch

from rabit_torch.sharding.flats import PartStorage
from rabit_torch.sharding.slots import SlotPool
from rabit_torch.sharding.sources import Source
from rabit_torch.tensors import keep_for_stream

__all__ = ["Gathers", "Unit"]


class _Mark(Enum):
    """Where forward passes begin and end in an order of use."""

    START = 0
    END = 1


class Unit:
    """Parameters that are whole together, between `start` and `release`. One thread at a time."""

    def __init__(self, name: str, storages: Sequence[PartStorage], source: Source) -> None:
        self.name = name
        self.storages = storages
        self._source = source
        self.bytes = sum(storage.bytes for storage in storages)
        self.version = 0  # of the values: how often they were written
        self.is_read = False  # since it was gathered
        self.scopes = 0  # forward passes, and contexts, that hold it
        self._memory: torch.Tensor | None = None
        self._values: list[torch.Tensor] = []
        self._handles: list[Any] = []
        self._gathered = 0  # version of the values, before they were changed in place

    @property
    def is_gathered(self) -> bool:
        """Whether the values are whole, or on their way."""
        return self._memory is not None

    def fetch(self) -> None:
        """Has this rank's part ready for `start`. Does not block."""
        self._source.fetch(self.version, self.storages)

    def start(self, pool: SlotPool) -> None:
        """Starts to gather the values. Does not block."""
        memory = pool.take(self.bytes, self.storages[0].device)
        values, begin = [], 0
        for storage in self.storages:
            values.append(storage.typed(memory[begin : begin + storage.bytes]))
            begin += storage.bytes
        self._handles = self._source.gather(self.name, self.version, self.storages, values)
        self._memory, self._values, self._gathered = memory, values, self.version

    def wait(self) -> None:
        """Blocks until the values are whole. On a device the current stream waits for them, and may read them."""
        for handle in self._handles:
            handle.wait()
        if self._memory is not None:
            keep_for_stream(self._memory)

    def release(self) -> None:
        """Forgets the whole values; tensors that share their memory keep it. Waits for a gather of all ranks."""
        if self._source.is_collective:
            self.wait()
        if self._values and self._gathered == self.version:
            self._source.let_go(self.version, self.storages, self._values)
        self._handles = []
        self._memory = None
        self._values = []
        self.is_read = False

    def forget(self) -> None:
        """What is on its way will not arrive, and nobody holds the unit."""
        self._handles, self._values, self.scopes = [], [], 0
        self.release()

    def view(self, storage: PartStorage, place: int) -> torch.Tensor:
        """The whole values of a parameter; shares the memory of the slot."""
        return storage.view(self._values[self.storages.index(storage)], place)

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        """Where `tensor` begins in the slot, in its elements, whichever storage it has; None: elsewhere."""
        if self._memory is None:
            return None
        offset, rest = divmod(tensor.data_ptr() - self._memory.data_ptr(), tensor.element_size())
        return offset if not rest and 0 <= offset * tensor.element_size() < self.bytes else None

    def tensor(
        self, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: int
    ) -> torch.Tensor:
        """A tensor over the memory of the slot; `offset` in elements."""
        assert self._memory is not None
        return self._memory.view(dtype).as_strided(size, stride, offset)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A context in which the parts of this rank change, as on every rank."""
        self._source.close(self.storages)
        try:
            yield
        finally:
            self.version += 1
            self._source.open(self.storages, self.version)

    def write_back(self) -> None:
        """Takes this rank's part of the whole values, which have been changed."""
        with self.writing():
            for storage, values in zip(self.storages, self._values, strict=True):
                storage.take_own(values)


class Gathers:
    """Gathers units ahead of their use, by (order of use, window) alone, so that all ranks gather alike.

    window: bytes of units that are whole at a time; a unit that is needed is gathered in any case. The order is
    that of the step before it: in a step without one each read waits, so the ranks have the same.
    """

    def __init__(self, units: Sequence[Unit], window: int, source: Source) -> None:
        self.units = units
        self.window = window
        self.source = source
        self.pool = SlotPool()
        self.passes = 0  # forward passes that run
        self.is_lost = False  # the step does not follow the order
        self.started = 0  # gathers
        self.late = 0  # those that nothing had started before the read
        self.has_steps = False  # an optimizer calls `end_step`
        self._order: list[Unit | _Mark] | None = None
        self._place = 0  # in the order: what comes next
        self._seen: list[Unit | _Mark] = []
        self._is_seeing = True

    def start_over(self) -> None:
        """The ranks are others: those that come know no order, and nothing is whole."""
        for unit in self.units:
            unit.forget()
        self.passes, self._place, self.is_lost = 0, 0, False
        self._order, self._seen, self._is_seeing = None, [], True

    # --- what a step does, in this order ----------------------------------------------------------

    def begin_pass(self) -> None:
        """A forward pass of the whole model begins."""
        self.passes += 1
        if self.passes > 1:
            return
        if not self.has_steps:
            self.end_step(self.wants_order)
        self._is_seeing = torch.is_grad_enabled() or not self.has_steps
        self._see(_Mark.START)
        if self._order is not None:
            following = self._order[self._place : self._place + 1]
            self._place = (self._place if following == [_Mark.START] else 0) + 1
            self._gather_ahead()

    def end_pass(self) -> None:
        """A forward pass of the whole model has ended, or failed."""
        self.passes -= 1
        if self.passes:
            return
        self._see(_Mark.END)
        self._is_seeing = True
        if self._order is not None:
            self._skip_to(_Mark.END)

    def read(self, unit: Unit) -> None:
        """Blocks until `unit` is whole: it is used now."""
        if not unit.is_read:
            self._see(unit)
            self._follow(unit)
            for other in self.units:
                if other.is_read and not other.scopes:
                    self._let_go(other)
            if not unit.is_gathered:
                self.late += 1
                self._start(unit)
            unit.is_read = True
            self._gather_ahead()
        unit.wait()

    def enter(self, unit: Unit) -> None:
        """The module of `unit` begins its forward pass."""
        self.read(unit)
        unit.scopes += 1

    def leave(self, unit: Unit) -> None:
        """The module of `unit` has ended its forward pass, or failed."""
        unit.scopes -= 1
        if not unit.scopes and unit.is_read:
            self._let_go(unit)
            self._gather_ahead()

    def hold(self, units: Iterable[Unit], is_written: bool) -> None:
        """Makes `units` whole until `give_back`, outside of the order. Blocks."""
        held = list(units)
        for unit in held:
            unit.scopes += 1
            if not unit.is_gathered:
                self._start(unit)
            unit.is_read = True
        for unit in held:
            unit.wait()
        if is_written:
            self.source.meet()

    def give_back(self, units: Iterable[Unit], is_written: bool) -> None:
        """Ends `hold`."""
        for unit in units:
            if is_written:
                unit.write_back()
            unit.scopes -= 1
            if not unit.scopes:
                unit.release()

    @contextlib.contextmanager
    def writing(self, units: Iterable[Unit]) -> Iterator[None]:
        """A context in which the parts of this rank change, as on every rank. Forgets whole values."""
        with contextlib.ExitStack() as stack:
            for unit in units:
                unit.release()
                stack.enter_context(unit.writing())
            yield

    def end_step(self, adopts: bool) -> None:
        """The parts are updated. adopts: the next step follows the order of this one; the same on all ranks.

        Where a rank gathers by itself, that is its own affair.
        """
        if adopts if self.source.is_collective else self.wants_order:
            self._order = self._seen or None
        self._seen, self._place, self.is_lost = [], 0, False
        self._gather_ahead()

    def leave_out_step(self) -> None:
        """The parts stay as they are, on every rank, and the next step begins."""
        for unit in self.units:
            unit.release()
        self.end_step(adopts=False)

    @property
    def wants_order(self) -> bool:
        return self._order is None or self.is_lost

    def _start(self, unit: Unit) -> None:
        self.started += 1
        unit.start(self.pool)

    # --- the order --------------------------------------------------------------------------------

    def _see(self, used: Unit | _Mark) -> None:
        if self._is_seeing:
            self._seen.append(used)

    def _follow(self, unit: Unit) -> None:
        """Finds `unit` in the order; lets go what was gathered for units that are left out."""
        if self._order is None or self.is_lost:
            return
        try:
            found = self._order.index(unit, self._place)
        except ValueError:
            self.is_lost = True
            return
        skipped = {id(used) for used in self._order[self._place : found] if used is not unit}
        self._place = found + 1
        for other in self.units:
            if id(other) in skipped and not other.is_read and other.is_gathered:
                other.release()

    def _skip_to(self, mark: _Mark) -> None:
        assert self._order is not None
        if mark in self._order[self._place :]:
            self._place = self._order.index(mark, self._place) + 1

    def _let_go(self, unit: Unit) -> None:
        """It is not read for now: it stays if it is what comes next."""
        if self._is_next(unit):
            unit.is_read = False
        else:
            unit.release()

    def _is_next(self, unit: Unit) -> bool:
        return next(iter(self._coming()), None) is unit

    def _coming(self) -> list[Unit]:
        """The units of the order from here on; those of the forward pass alone if no backward pass follows it."""
        if self._order is None or self.is_lost:
            return []
        coming: list[Unit] = []
        for used in self._order[self._place :]:
            if isinstance(used, Unit):
                coming.append(used)
            elif used is _Mark.END and self.passes and not self._is_seeing:
                break
        return coming

    def _gather_ahead(self) -> None:
        whole = sum(unit.bytes for unit in self.units if unit.is_gathered)
        fetched = 0  # What follows is read from disk meanwhile: of a window too, and a part of it is on this rank.
        for unit in self._coming():
            if unit.is_gathered:
                continue
            if not fetched and not (whole and whole + unit.bytes > self.window):
                self._start(unit)
                whole += unit.bytes
            elif fetched and fetched + unit.bytes > self.window:
                return
            else:
                unit.fetch()
                fetched += unit.bytes
