"""The state of an optimizer of which each rank has its slices: saved by name, and loaded in a job of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import rabit
from rabit import InvalidArgument
from rabit.checkpoint import Part
from rabit.sharding import Levels, joined
from rabit_torch.ops.operations import WAITED
from rabit_torch.sharding.flats import flattened
from rabit_torch.sharding.forms import whole_of
from rabit_torch.sharding.states import LATE, Place, States

__all__ = ["DividedState"]


class DividedState:
    """Reads and writes the state of `optimizer`, whose groups hold the slices of `places`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        states: States,
        places: Sequence[Place],
        levels: Levels,
        prefix: str,
    ) -> None:
        self._optimizer = optimizer
        self._states = states
        self._places = places
        self._levels = levels
        self._prefix = prefix

    def saved(self, whole: bool) -> dict[str, Any]:
        """See ShardedOptimizer.state_dict."""
        state = {place.name: self._state_of(place) for place in self._places}
        if whole:
            state = {place.name: self._whole(place, state[place.name]) for place in self._places}
        return {"state": state, "param_groups": list(map(self._options_of, range(len(self._optimizer.param_groups))))}

    def _options_of(self, number: int) -> dict[str, Any]:
        """A group without its tensors. "params" comes last, as in torch: a group that was loaded has it there."""
        group = self._optimizer.param_groups[number]
        options = {key: value for key, value in group.items() if key != "params"}
        return {**options, "params": [place.name for place in self._places if place.group == number]}

    def load(self, state_dict: Mapping[str, Any]) -> None:
        """See ShardedOptimizer.load_state_dict."""
        given = state_dict["state"]
        differ = set(given) ^ {place.name for place in self._places}
        if differ:
            raise InvalidArgument(
                f"load_state_dict on rank {rabit.rank()}: the state and this optimizer differ in "
                f"{', '.join(sorted(differ))}"
            )
        self._take_options(state_dict["param_groups"])
        for place in self._places:
            values = dict(given[place.name])
            if LATE in values and not self._states.is_late:
                late = values.pop(LATE)
                with torch.no_grad():
                    place.parameter.copy_(self._joined(place, LATE, late) if isinstance(late, Part) else late)
            self._states.set(place, {key: self._own(place, key, value) for key, value in values.items()})

    def gather_commit(self, commits: Sequence[Mapping[str, Any]], prefix: str) -> None:
        """Takes what the ranks have of one commit, of any number of ranks; collective.

        commits: what `saved` gave on this rank, and on ranks whose copies are here; none on a rank that has just come.
        """
        self._prefix = prefix
        have = rabit.allgather_object(bool(commits), f"{prefix}.commits", self._levels.everyone)
        if not any(have):
            return
        own = {"state": {}, "param_groups": []} if not commits else commits[0]
        shape = {
            "param_groups": own["param_groups"],
            "state": {
                name: {key: _without_values(value) for key, value in values.items()}
                for name, values in own["state"].items()
            },
        }
        root = have.index(True)
        described = rabit.broadcast_object(shape, root, f"{prefix}.commit", self._levels.everyone)
        self._take_options(described["param_groups"])
        for place in self._places:  # Of one parameter at a time a state is whole.
            found = {}
            for key, value in described["state"].get(place.name, {}).items():
                if isinstance(value, Part):
                    parts = [commit["state"][place.name][key] for commit in commits]
                    value = self._assembled(place, key, parts, value)
                found[key] = self._own(place, key, value)
            self._states.set(place, found)

    def _take_options(self, given: Sequence[Mapping[str, Any]]) -> None:
        for group, options in zip(self._optimizer.param_groups, given, strict=True):
            group.update({key: value for key, value in options.items() if key != "params"})

    def _state_of(self, place: Place) -> dict[str, Any]:
        return {
            key: self._levels.part(value.detach().cpu(), place.interval.start, place.parameter.numel())
            if isinstance(value, torch.Tensor) and value.dim()
            else value
            for key, value in self._states.get(place).items()
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

    def _assembled(
        self, place: Place, key: str, parts: Sequence[Part], like: Part
    ) -> torch.Tensor:
        """As `_joined`, where a rank has several parts or none."""
        elements = whole_of(
            f"{self._prefix}.commit.{place.name}.{key}",
            f"{key!r} of {place.name!r}",
            parts,
            like.value,
            like.length,
            self._levels.everyone,
        )
        return elements.as_strided(place.parameter.shape, place.strides)

    def _joined(self, place: Place, key: str, part: Part) -> torch.Tensor:
        """A state tensor that lies on the ranks in parts, in the shape of its parameter."""
        label = f"{self._prefix}.join.{place.name}.{key}"
        elements: torch.Tensor = joined(
            WAITED, label, f"{key!r} of {place.name!r}", part, self._levels.everyone
        )
        return elements.as_strided(place.parameter.shape, place.strides)


def _without_values(value: Any) -> Any:
    return Part(value.value[:0].clone(), 0, value.length) if isinstance(value, Part) else value
