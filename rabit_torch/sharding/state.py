"""The state of an optimizer of which each rank has its slices: saved by name, and loaded in a job of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.checkpoint import Part
from rabit.sharding import Interval
from rabit_torch.sharding.flats import Storage, flattened
from rabit_torch.sharding.parts import joined

__all__ = ["DividedState", "Place"]

_MASTER = "master"  # of a parameter in 16 bits: its values in float32


class Place:
    """A trained parameter: where it lies, and this rank's slice of it.

    A slice may be empty: the optimizer keeps counts for it as the owners do.
    """

    def __init__(
        self, parameter: torch.Tensor, name: str, group: int, storage: Storage, place: int
    ) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group  # of the optimizer
        self.storage = storage
        self.place = place
        own = storage.elements(place)
        # In 16 bits, small updates vanish: the optimizer has a copy in 32, which is rounded after each update.
        self.has_master = own.dtype in (torch.bfloat16, torch.float16)
        self.slice = torch.nn.Parameter(own.float() if self.has_master else own)
        self.passes = 0  # of the backward pass in this step
        self.is_used = False

    def set_gradient(self, is_used: bool) -> None:
        """Gives the slice its part of the averaged gradient; None for a parameter that no rank has used."""
        gradient = self.storage.gradient(self.place) if is_used else None
        if gradient is not None and self.has_master:
            gradient = gradient.float()
        self.slice.grad = gradient

    def refresh_master(self) -> None:
        """Before an update: takes what has been written into the parameter since the last one."""
        if self.has_master:
            own, master = self.storage.elements(self.place), self.slice.data
            torch.where(master.to(own.dtype) == own, master, own.float(), out=master)

    def round_master(self) -> None:
        """After an update."""
        if self.has_master:
            self.storage.elements(self.place).copy_(self.slice.detach())

    @property
    def interval(self) -> Interval:
        """The elements of the slice."""
        return self.storage.interval(self.place)

    @property
    def strides(self) -> tuple[int, ...]:
        return self.storage.strides[self.place]


class DividedState:
    """Reads and writes the state of `optimizer`, whose groups hold the slices of `places`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        places: Sequence[Place],
        process_set: ProcessSet,
        prefix: str,
    ) -> None:
        self._optimizer = optimizer
        self._places = places
        self._set = process_set
        self._prefix = prefix

    def saved(self, whole: bool) -> dict[str, Any]:
        """See ShardedOptimizer.state_dict."""
        state = {place.name: self._state_of(place) for place in self._places}
        if whole:
            state = {place.name: self._whole(place, state[place.name]) for place in self._places}
        groups = [
            {**group, "params": [place.name for place in self._places if place.group == number]}
            for number, group in enumerate(self._optimizer.param_groups)
        ]
        return {"state": state, "param_groups": groups}

    def load(self, state_dict: Mapping[str, Any]) -> None:
        """See ShardedOptimizer.load_state_dict."""
        given = state_dict["state"]
        differ = set(given) ^ {place.name for place in self._places}
        if differ:
            raise InvalidArgument(
                f"load_state_dict on rank {rabit.rank()}: the state and this optimizer differ in "
                f"{', '.join(sorted(differ))}"
            )
        for group, options in zip(
            self._optimizer.param_groups, state_dict["param_groups"], strict=True
        ):
            group.update({key: value for key, value in options.items() if key != "params"})
        for place in self._places:
            found = {key: self._own(place, key, value) for key, value in given[place.name].items()}
            master = found.pop(_MASTER, None)
            if place.has_master:
                values = place.storage.elements(place.place) if master is None else master
                place.slice.data.copy_(values)
            self._optimizer.state.pop(place.slice, None)
            if found:
                self._optimizer.state[place.slice] = found

    def _state_of(self, place: Place) -> dict[str, Any]:
        state = dict(self._optimizer.state.get(place.slice, {}))
        if place.has_master:
            state[_MASTER] = place.slice
        return {
            key: Part(value.detach().cpu(), place.interval.start, place.parameter.numel())
            if isinstance(value, torch.Tensor) and value.dim()
            else value
            for key, value in state.items()
        }

    def _whole(self, place: Place, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: self._joined(place, key, value) if isinstance(value, Part) else value
            for key, value in values.items()
        }

    def _own(self, place: Place, key: str, value: Any) -> Any:
        """This rank's slice of a state tensor that was saved whole or in parts."""
        if isinstance(value, Part):
            value = self._joined(place, key, value)
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            return value
        start, length = place.interval
        own = flattened(value, place.strides)[start : start + length]
        return own.to(place.slice.device, copy=True)

    def _joined(self, place: Place, key: str, part: Part) -> torch.Tensor:
        """A state tensor that lies on the ranks in parts, in the shape of its parameter."""
        label = f"{self._prefix}.join.{place.name}.{key}"
        elements = joined(label, f"{key!r} of {place.name!r}", part, self._set)
        return elements.as_strided(place.parameter.shape, place.strides)
