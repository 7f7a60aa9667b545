"""The tensors in which parameters lie, and the gradients on their way to their owners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rabit import Average, ProcessSet
from rabit.sharding import Flat, FlatLayout, Interval
from rabit_torch.ops.collected import allgather_async, reducescatter_async

__all__ = ["FlatStorage"]


class FlatStorage:
    """One flat: the values of its parameters, this rank's part, and its exchanges. One thread at a time.

    parameters: in the order of `flat.entries`. Their values move into the flat and keep their strides.
    """

    def __init__(
        self,
        layout: FlatLayout,
        flat: Flat,
        parameters: list[torch.Tensor],
        rank: int,
        process_set: ProcessSet,
        passes: int,
    ) -> None:
        self._name = f"sharded.{flat.name}"
        self._layout = layout
        self._flat = flat
        self._parameters = parameters
        self._rank = rank
        self._set = process_set
        self._rows: Interval = layout.part(flat, rank)
        first = parameters[0]
        self._values = torch.zeros(
            (flat.rows, layout.block), dtype=first.dtype, device=first.device
        )
        self._strides = [_dense_strides(parameter) for parameter in parameters]
        for place, parameter in enumerate(parameters):
            view = self._view(self._values, place)
            view.copy_(parameter.detach())
            parameter.data = view
        self.passes = passes
        self.part: torch.Tensor | None = None  # of the averaged gradient: rows of this rank
        self._gradients: torch.Tensor | None = None
        self._arrived = [False] * len(parameters)
        self._handle: Any = None
        self._sent = 0

    def slices(self) -> Iterator[tuple[int, torch.nn.Parameter]]:
        """(place of the parameter, its elements that this rank owns), which share the flat's memory."""
        own = self._own().flatten()
        for place, begin, length in self._owned():
            yield place, torch.nn.Parameter(own[begin : begin + length])

    def gradient_slices(self) -> dict[int, torch.Tensor]:
        """This rank's slices of the averaged gradients, by the place of the parameter, after `wait`."""
        assert self.part is not None
        own = self.part.flatten()
        return {place: own[begin : begin + length] for place, begin, length in self._owned()}

    def take(self, place: int) -> None:
        """Copies `.grad` of a parameter, and sends the flat once it has those of all."""
        if self._gradients is None:
            self._gradients = torch.zeros_like(self._values)
        gradient = self._parameters[place].grad
        assert gradient is not None
        self._view(self._gradients, place).copy_(gradient)
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
                self._gradients = torch.zeros_like(self._values)
            self._send()

    def wait(self) -> None:
        """Blocks until this rank's part of the averaged gradient is in `part`."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        found = handle.wait()
        self.part = found if self.part is None else self.part.add_(found)

    def gather(self) -> Any:
        """Starts to collect the updated values of all ranks; `finish` waits for them."""
        name = f"{self._name}.gather"
        return allgather_async(self._own(), name=name, process_set=self._set)

    def finish(self, handle: Any) -> None:
        with torch.no_grad():
            self._values.copy_(handle.wait())

    def forget(self) -> None:
        """The step is over."""
        self.wait()
        self.part = self._gradients = None
        self._arrived = [False] * len(self._parameters)
        self._sent = 0

    def whole(self, place: int) -> torch.Tensor:
        """The values of a parameter in its shape; shares memory."""
        return self._view(self._values, place)

    def _send(self) -> None:
        # One exchange of this name at a time; an earlier pass has had a backward pass of time.
        self.wait()
        gradients, self._gradients = self._gradients, None
        assert gradients is not None
        self._arrived = [False] * len(self._parameters)
        self._sent += 1
        name = f"{self._name}.scatter"
        self._handle = reducescatter_async(gradients, name=name, op=Average, process_set=self._set)

    def _own(self) -> torch.Tensor:
        return self._values[self._rows.start : self._rows.start + self._rows.length]

    def _owned(self) -> Iterator[tuple[int, int, int]]:
        """(place, where its elements begin in the part, how many they are)."""
        places = {entry.name: place for place, entry in enumerate(self._flat.entries)}
        for entry, owned, begin in self._layout.slices_of(self._flat, self._rank):
            yield places[entry.name], begin, owned.length

    def _view(self, values: torch.Tensor, place: int) -> torch.Tensor:
        entry = self._flat.entries[place]
        return values.as_strided(entry.shape, self._strides[place], self._flat.starts[place])


def _dense_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Those of the parameter if it fills its memory, as in channels_last; else those of a contiguous one."""
    return torch.empty_like(parameter, device="meta").stride()
