"""The state of an optimizer of which each rank has its slices: saved by name, and loaded in a job of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.checkpoint import Part
from rabit.sharding import Entry, FlatLayout
from rabit_torch.ops.collected import allgather_async
from rabit_torch.sharding.flats import FlatStorage

__all__ = ["DividedState", "Place"]


class Place:
    """A trained parameter: where it lies, and this rank's slice of it if there is one."""

    def __init__(
        self, parameter: torch.Tensor, entry: Entry, storage: FlatStorage, place: int
    ) -> None:
        self.parameter = parameter
        self.name = entry.name
        self.group = entry.group
        self.storage = storage
        self.place = place
        self.slice: torch.nn.Parameter | None = None
        self.passes = 0  # of the backward pass in this step
        self.is_used = False


class DividedState:
    """Reads and writes the state of `optimizer`, whose groups hold the slices of `places`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        places: Sequence[Place],
        layout: FlatLayout,
        process_set: ProcessSet,
    ) -> None:
        self._optimizer = optimizer
        self._places = places
        self._layout = layout
        self._set = process_set

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
            if place.slice is None:
                continue
            self._optimizer.state.pop(place.slice, None)
            if found:
                self._optimizer.state[place.slice] = found

    def _state_of(self, place: Place) -> dict[str, Any]:
        state = self._optimizer.state
        own = {} if place.slice is None else state.get(place.slice, {})
        # A rank that owns nothing of a tensor names what other ranks have of it, as an empty part.
        slices = [other.slice for other in self._places if other.slice is not None]
        keys = own or next((state[part] for part in slices if part in state), {})
        interval = self._layout.slice_of(place.name, self._set.rank())
        found: dict[str, Any] = {}
        for key, value in keys.items():
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                found[key] = value
                continue
            values = own[key].detach().cpu() if own else value.new_empty(0).cpu()
            found[key] = Part(values, interval.start, place.parameter.numel())
        return found

    def _whole(self, place: Place, values: Mapping[str, Any]) -> dict[str, Any]:
        shape = place.parameter.shape
        return {
            key: self._joined(place, key, value).view(shape) if isinstance(value, Part) else value
            for key, value in values.items()
        }

    def _own(self, place: Place, key: str, value: Any) -> Any:
        """This rank's slice of a state tensor that was saved whole or in parts."""
        if isinstance(value, Part):
            value = self._joined(place, key, value)
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or place.slice is None:
            return value
        interval = self._layout.slice_of(place.name, self._set.rank())
        own = value.reshape(-1)[interval.start : interval.start + interval.length]
        return own.to(place.slice.device, copy=True)

    def _joined(self, place: Place, key: str, part: Part) -> torch.Tensor:
        """All elements of a tensor that lies on the ranks in parts."""
        label = f"sharded.join.{place.name}.{key}"
        where = torch.tensor([[part.start, len(part.value)]])
        starts = allgather_async(where, name=f"{label}.where", process_set=self._set).wait()
        pieces = allgather_async(part.value, name=f"{label}.values", process_set=self._set).wait()
        if int(starts[:, 1].sum()) != part.length:
            raise InvalidArgument(
                f"load_state_dict: the ranks have {int(starts[:, 1].sum())} of the {part.length} elements of {key!r} "
                f"of {place.name!r}. Load on every rank what Checkpoint.restore gave it"
            )
        whole: torch.Tensor = pieces.new_empty(part.length)
        begin = 0
        for start, length in starts.tolist():
            whole[start : start + length] = pieces[begin : begin + length]
            begin += length
        return whole
