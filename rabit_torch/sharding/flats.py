"""The tensors in which parameters lie, and the gradients on their way to their owners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

import rabit
from rabit import Average, Kind, ProcessSet, ReduceOp, Request, TimedOut
from rabit.framework import engine_for_work
from rabit.sharding import Flat, FlatLayout, Interval, Levels
from rabit_torch.ops.arguments import group_of
from rabit_torch.ops.collectives import allreduce_async_, broadcast_async_, reducescatter_async
from rabit_torch.sharding.expected import arrived, expect
from rabit_torch.sharding.relay import Relay
from rabit_torch.sharding.slots import SlotPool
from rabit_torch.tensors import view

__all__ = ["Backlog", "FlatStorage", "PartStorage", "Storage", "flattened"]

_BACKLOG_FLATS = 1  # next to the one that is sent: while it travels, the next is filled
_BACKLOG_SECONDS = 5.0
# A gather is waited for; a scatter only frees memory.
_GATHER_PRIORITY = 1


class Backlog:
    """Gradients on their way: a backward pass waits for an older flat, so that few are in memory.

    It waits for seconds at most: a rank whose backward pass takes another way may send that flat at its end.
    waits: False where ranks take other ways by design, so that all gradients of a pass may be in memory.
    """

    def __init__(self, waits: bool = True) -> None:
        self._sent: deque[Any] = deque()
        self._waits = waits
        self.memory = SlotPool()  # of whole gradients

    def add(self, handle: Any) -> None:
        """A flat has been sent. Blocks until the one before it has arrived."""
        if not self._waits:
            return
        self._sent.append(handle)
        while len(self._sent) > _BACKLOG_FLATS:
            oldest = self._sent.popleft()
            try:
                oldest.wait(_BACKLOG_SECONDS)
            except TimedOut:
                return

    def forget(self) -> None:
        """What is on its way will not arrive."""
        self._sent.clear()


class Storage(ABC):
    """One flat: this rank's part of its values, and its gradients. One thread at a time.

    parameters: in the order of `flat.entries`; each keeps its strides. passes: backward passes of a step whose
    gradients are sent.
    """

    def __init__(
        self,
        layout: FlatLayout,
        flat: Flat,
        parameters: Sequence[torch.Tensor],
        levels: Levels,
        prefix: str,
        passes: int = 1,
    ) -> None:
        self.levels = levels
        self.flat = flat
        self._parameters = parameters
        self._dtype = parameters[0].dtype
        self.device = parameters[0].device
        self._shape = (flat.rows, layout.block)
        self.strides = [_dense_strides(parameter) for parameter in parameters]
        self.passes = passes
        self.backlog: Backlog | None = None
        self.relay: Relay | None = None
        self._divide(layout, prefix)

    def _divide(self, layout: FlatLayout, prefix: str) -> None:
        """This rank's part is that of `layout` from now on; nothing is on its way."""
        self.prefix = prefix
        self._name = f"{prefix}.{self.flat.name}"
        self.layout = layout
        self.rank = self.levels.shards.rank()
        self._rows: Interval = self.rows_of(self.rank)
        places = {entry.name: place for place, entry in enumerate(self.flat.entries)}
        self._spans = {
            places[entry.name]: Interval(begin, owned.length)
            for entry, owned, begin in layout.slices_of(self.flat, self.rank)
        }
        self.part: torch.Tensor | None = None  # of the averaged gradient: rows of this rank
        self._kept: torch.Tensor | None = None  # memory of `part`
        self._gradients: torch.Tensor | None = None
        self._arrived = [False] * len(self._parameters)
        self._handle: Any = None  # of the mean over parts
        self._relayed: Any = None  # and of that over copies
        self._sent = 0

    def divide_again(self, prefix: str) -> None:
        """The process set has other ranks: what was on its way is lost, and this rank owns other rows."""
        layout = self.layout
        if self.backlog is not None:
            self.backlog.forget()
        self._divide(FlatLayout(layout.entries, self.levels.shards.size(), layout.block), prefix)

    def rows_of(self, rank: int) -> Interval:
        """The rows that a rank of the process set owns."""
        return self.layout.part(self.flat, rank)

    @abstractmethod
    def own(self) -> torch.Tensor:
        """The values of this rank's rows; shares memory."""

    def interval(self, place: int) -> Interval:
        """The elements that this rank owns of a parameter, which is flattened in the order of its memory."""
        return self.layout.slice_of(self.flat.entries[place].name, self.rank)

    def elements(self, place: int) -> torch.Tensor:
        """The values of `interval`, 1-D; shares memory. Empty where this rank owns nothing."""
        return self._slice(self.own().detach(), place)

    def span(self, place: int) -> Interval:
        """Where `elements` lie in this rank's part."""
        return self._spans.get(place, Interval(0, 0))

    @property
    def has_master(self) -> bool:
        """Whether the optimizer has a copy in 32 bits, which is rounded after each update: in 16, small ones vanish."""
        return self._dtype in (torch.bfloat16, torch.float16)

    def slice_of(self, place: int) -> torch.Tensor:
        """What the optimizer updates: `elements`, or a copy of them in 32 bits."""
        own = self.elements(place)
        return own.float() if self.has_master else own

    def gradient(self, place: int) -> torch.Tensor:
        """The same as `elements` of the averaged gradient, after `wait`."""
        assert self.part is not None
        return self._slice(self.part, place)

    def take(self, place: int) -> None:
        """Copies `.grad` of a parameter, and sends the flat once it has those of all."""
        if self._gradients is None:
            self._gradients = self._zeros(self._memory)
        gradient = self._parameters[place].grad
        assert gradient is not None
        self.view(self._gradients, place).copy_(gradient)
        self._arrived[place] = True
        if all(self._arrived):
            self._send()

    def has(self, place: int) -> bool:
        """Whether every gradient of the parameter in this step has been taken."""
        is_last = self._sent == self.passes - 1
        return self._sent >= self.passes or (is_last and self._arrived[place])

    def send_rest(self) -> None:
        """Sends what has not been sent in this step; a parameter without a gradient counts as zeros."""
        while self._sent < self.passes:
            if self._gradients is None:
                self._gradients = self._zeros(self._memory)
            self._send()

    def wait(self) -> None:
        """Blocks until this rank's part of the averaged gradient is in `part`."""
        self.relays(waits=True)
        if self._relayed is not None:
            relayed, self._relayed = self._relayed, None
            relayed.wait()

    def relays(self, waits: bool) -> bool:
        """Takes the mean over parts and starts that over copies after the last pass; False if it has not arrived.

        waits: until it has.
        """
        if self._handle is None:
            return True
        if not waits and not self._handle.done():
            return False
        handle, self._handle = self._handle, None
        found = handle.wait()
        self.part = found if self.part is None else self.part.add_(found)
        copies = self.levels.copies
        if copies is not None and self._sent == self.passes:
            name = f"{self._name}.copies"
            self._relayed = allreduce_async_(self.part, name=name, op=Average, process_set=copies)
        return True

    @abstractmethod
    def finish(self) -> None:
        """Blocks until the values are those of the last step."""

    def forget(self) -> None:
        """The step is over."""
        self.wait()
        self.part = self._gradients = None
        self._arrived = [False] * len(self._parameters)
        self._sent = 0

    def view(self, values: torch.Tensor, place: int) -> torch.Tensor:
        """A parameter in its shape, of all `values` of the flat; shares memory."""
        entry = self.flat.entries[place]
        start = values.storage_offset() + self.flat.starts[place]
        return values.as_strided(entry.shape, self.strides[place], start)

    def _gather_of(
        self, own: torch.Tensor, values: torch.Tensor, group: ProcessSet | None = None, what: str = "gather"
    ) -> Request:
        """To collect the parts of all ranks, or of a group, in `values`; `own` may be in it."""
        name = f"{self._name}.{what}"
        return Request(
            kind=Kind.ALLGATHER,
            name=name,
            input=view(own, name),
            output=view(values, name),
            group=group_of(group or self.levels.shards),
            priority=_GATHER_PRIORITY,
        )

    def start_gather(
        self, own: torch.Tensor, values: torch.Tensor, group: ProcessSet | None = None, what: str = "gather"
    ) -> rabit.Handle:
        """Starts what `_gather_of` describes."""
        (handle,) = engine_for_work().submit((self._gather_of(own, values, group, what),))
        return handle

    def _send(self) -> None:
        # One exchange of this name at a time; an earlier pass has had a backward pass of time.
        self.wait()
        gradients, self._gradients = self._gradients, None
        assert gradients is not None
        self._arrived = [False] * len(self._parameters)
        self._sent += 1
        name = f"{self._name}.scatter"
        self._handle = self._start_scatter(gradients, name)
        if self.backlog is not None:
            self.backlog.add(self._handle)
        if self.relay is not None and self._sent == self.passes:
            self.relay.add(self)

    def _start_scatter(self, gradients: torch.Tensor, name: str) -> Any:
        """Starts the mean of a flat; `wait()` of the handle gives this rank's rows."""
        if self._sent > 1:  # To be added to those of the passes before.
            return reducescatter_async(gradients, name=name, op=Average, process_set=self.levels.shards)
        # In memory of its own from step to step: between whole gradients that come and go, small parts that stay
        # would leave holes.
        if self._kept is None:
            self._kept = gradients.new_empty((self._rows.length, self._shape[1]))
        kept = self._kept
        request = Request(
            kind=Kind.REDUCESCATTER,
            name=name,
            input=view(gradients, name),
            output=view(kept, name),
            op=ReduceOp(Average),
            group=group_of(self.levels.shards),
            finish=lambda _: kept,
        )
        (handle,) = engine_for_work().submit((request,))
        return handle

    @property
    def bytes(self) -> int:
        """Of all values."""
        return self._shape[0] * self._shape[1] * self._dtype.itemsize

    def _zeros(self, memory: SlotPool | None = None) -> torch.Tensor:
        if memory is None or not self.bytes:
            return torch.zeros(self._shape, dtype=self._dtype, device=self.device)
        return memory.take(self.bytes, self.device).view(self._dtype).view(self._shape).zero_()

    @property
    def _memory(self) -> SlotPool | None:
        return None if self.backlog is None else self.backlog.memory

    def _slice(self, part: torch.Tensor, place: int) -> torch.Tensor:
        begin, length = self.span(place)
        return part.flatten()[begin : begin + length]


class FlatStorage(Storage):
    """A flat whose values are whole on every rank. The values of the parameters move into it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._values = self._allocated()
        self._take_values()
        self._gather: Any = None

    def divide_again(self, prefix: str) -> None:
        self._gather = None
        for parameter in self._parameters:
            arrived(parameter)
        super().divide_again(prefix)

    def own(self) -> torch.Tensor:
        return self._values[self._rows.start : self._rows.start + self._rows.length]

    def gather(self, crosses: bool) -> None:
        """Starts to collect the updated values of all ranks; `finish` waits for them.

        crosses: the first read of a parameter does so, too.
        """
        self._gather = self.start_gather(self.own(), self._values)
        if crosses:
            for parameter in self._parameters:
                expect(parameter, self.finish)

    def finish(self) -> None:
        if self._gather is None:
            return
        handle, self._gather = self._gather, None
        for parameter in self._parameters:
            arrived(parameter)
        handle.wait()

    def _allocated(self) -> torch.Tensor:
        return self._zeros()

    def _take_values(self) -> None:
        """Moves the values of the parameters into the flat."""
        for place, parameter in enumerate(self._parameters):
            view = self.view(self._values, place)
            view.copy_(parameter.detach())
            parameter.data = view


class PartStorage(Storage):
    """A flat of which a rank keeps its part. The values are those of the first rank of the process set.

    Blocks until every rank makes it, unless it `joins` ranks that have theirs. The parameters are as they were
    afterwards.
    """

    def __init__(
        self,
        layout: FlatLayout,
        flat: Flat,
        parameters: Sequence[torch.Tensor],
        levels: Levels,
        prefix: str,
        joins: bool = False,
    ) -> None:
        super().__init__(layout, flat, parameters, levels, prefix)
        self._own: torch.Tensor | None = None
        whole = self._zeros()
        for place, parameter in enumerate(self._parameters):
            self.view(whole, place).copy_(parameter.detach())
        everyone = levels.everyone
        if everyone.size() > 1 and not joins:
            root = everyone.ranks[0] if everyone.ranks else 0
            broadcast_async_(whole, root, f"{self._name}.start", everyone).wait()
        self.take_own(whole)

    def divide_again(self, prefix: str) -> None:
        super().divide_again(prefix)
        # Nobody has the new rows as they are: a commit has them, and what reads before gets no number that looks right.
        self._own = self.own().new_full((self._rows.length, self.layout.block), float("nan"))

    def own(self) -> torch.Tensor:
        assert self._own is not None
        return self._own

    def finish(self) -> None:
        """Whole values are gathered by their unit."""

    def typed(self, memory: torch.Tensor) -> torch.Tensor:
        """`bytes` of uint8 as all values of the flat; shares memory."""
        return memory.view(self._dtype).view(self._shape)

    def fetch(self) -> None:
        """Has this rank's part ready for the next gather. Does not block."""

    def gather(self, values: torch.Tensor) -> Any:
        """Starts to collect all values in `values`, as `typed` gives it; returns what is waited for."""
        return self.start_gather(self.own(), values)

    def take_own(self, values: torch.Tensor) -> None:
        """Copies this rank's part from all values of the flat."""
        rows = self._rows
        self._keep(values[rows.start : rows.start + rows.length])

    def write(self, place: int, value: torch.Tensor) -> None:
        """Copies this rank's elements from the whole `value` of a parameter."""
        self.elements(place).copy_(self.own_of(place, value))

    def own_of(self, place: int, value: torch.Tensor) -> torch.Tensor:
        """This rank's elements of the whole `value` of a parameter."""
        own = self.interval(place)
        elements = flattened(value, self.strides[place], self._dtype)
        return elements[own.start : own.start + own.length]

    def _keep(self, own: torch.Tensor) -> None:
        """`own` are the values of this rank's rows; copies them."""
        if self._own is None:
            self._own = own.clone()
        else:
            self._own.copy_(own)


def flattened(
    value: torch.Tensor, strides: tuple[int, ...], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The elements of `value` in the order that they have in a dense tensor of these strides."""
    dense = value.new_empty_strided(value.shape, strides, dtype=dtype or value.dtype)
    dense.copy_(value)
    return dense.as_strided((dense.numel(),), (1,))


def _dense_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Those of the parameter if it fills its memory, as in channels_last; else those of a contiguous one."""
    return torch.empty_like(parameter, device="meta").stride()
