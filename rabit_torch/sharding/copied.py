"""Copies of this rank's part of the parameters: what an update writes before they get it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from rabit import InvalidArgument
from rabit.sharding import Flat, Interval
from rabit_torch.sharding.flats import Storage
from rabit_torch.sharding.states import Place, States

__all__ = ["CopiedPart", "HostStates", "copies_of"]

_ROWS = 4096  # that are added up at once, in 8 bytes for each 4


class CopiedPart:
    """This rank's part of a flat once more, in host memory; to a Place it is where its slice lies."""

    def __init__(self, source: Storage | CopiedPart) -> None:
        self._source = source
        self.flat: Flat = source.flat
        self.has_master: bool = source.has_master
        self._values = _on_host(source.own())
        self._gradient: torch.Tensor | None = None
        self._seen = self._sums()

    def own(self) -> torch.Tensor:
        return self._values

    def span(self, place: int) -> Interval:
        return self._source.span(place)

    def elements(self, place: int) -> torch.Tensor:
        return self._slice(self._values, place)

    def slice_of(self, place: int) -> torch.Tensor:
        return self.elements(place).float() if self.has_master else self.elements(place)

    def gradient(self, place: int) -> torch.Tensor:
        """Of the average that `take_gradient` has copied."""
        assert self._gradient is not None
        return self._slice(self._gradient, place)

    def take_gradient(self, part: torch.Tensor) -> None:
        """part: this rank's rows of the averaged gradient."""
        if self._gradient is None:
            self._gradient = _on_host(part)
        else:
            self._gradient.copy_(part)

    def publish(self) -> None:
        """Gives the values to the source."""
        self._source.own().detach().copy_(self._values)
        self._seen = self._sums()

    def refresh(self) -> None:
        """Takes the source's values if they were written since the last of these calls."""
        if self.written() is not None:
            self._values.copy_(self._source.own().detach())
            self._seen = self._sums()

    def written(self) -> str | None:
        """A parameter of which the source has other values than after the last `publish` or `refresh`."""
        rows = (self._sums() != self._seen).nonzero()
        if not len(rows):
            return None
        first = int(rows[0]) * self._values.shape[1]
        spans = [self.span(place) for place in range(len(self.flat.entries))]
        place = next(place for place, (begin, length) in enumerate(spans) if begin <= first < begin + length)
        name: str = self.flat.entries[place].name
        return name

    def _sums(self) -> torch.Tensor:
        """Of the bits of each row of the source, weighted by their place: a 32nd of its memory, on its device."""
        words = self._source.own().detach().view(torch.int32)
        weights = (words.new_ones(words.shape[1], dtype=torch.int64).cumsum(0) * 2 - 1) ** 3
        return torch.cat([(rows * weights).sum(1) for rows in torch.split(words, _ROWS)])

    def _slice(self, part: torch.Tensor, place: int) -> torch.Tensor:
        begin, length = self.span(place)
        return part.flatten()[begin : begin + length]


class HostStates:
    """Of parameters on a device: `states` of their copies in host memory, where the optimizer steps.

    Source: Ren et al., ZeRO-Offload (2021).
    """

    def __init__(self, states: States, copies: Iterable[CopiedPart]) -> None:
        self._states = states
        self._copies = list(copies)
        self.is_late = states.is_late

    def step(self) -> None:
        self._between_copies(self._states.step)

    def publish(self) -> None:
        self._between_copies(self._states.publish)

    def refusal(self) -> InvalidArgument | None:
        for copy in self._copies if self.is_late else ():
            copy.refresh()
        return self._states.refusal()

    def get(self, place: Place) -> dict[str, Any]:
        return self._states.get(place)

    def set(self, place: Place, state: dict[str, Any]) -> None:
        place.values.refresh()
        self._states.set(place, state)

    def close(self) -> None:
        self._states.close()

    def _between_copies(self, update: Callable[[], None]) -> None:
        """Copies down what was written on the device, and up what `update` gives."""
        for copy in self._copies:
            copy.refresh()
        update()
        for copy in self._copies:
            copy.publish()


def copies_of(places: Iterable[Place]) -> dict[CopiedPart, Storage]:
    """Where the slices of `places` lie apart from their storages."""
    return {place.values: place.storage for place in places if place.values is not place.storage}


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory; pinned, so that later ones go at the speed of the bus, where there is one."""
    is_pinned = tensor.is_cuda and torch.cuda.is_available()
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=is_pinned)
    return made.copy_(tensor.detach())
