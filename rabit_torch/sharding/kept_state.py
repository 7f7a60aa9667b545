"""What a divided optimizer keeps: its state by name, in checkpoints and in elastic jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import rabit
from rabit.sharding import Levels
from rabit_torch.sharding.flats import FlatStorage, Storage
from rabit_torch.sharding.forms import named
from rabit_torch.sharding.state import DividedState
from rabit_torch.sharding.states import Place
from rabit_torch.tensors import is_by_name

__all__ = ["KeptState", "divide_again"]


class KeptState:
    """The part of ShardedOptimizer that saves and loads."""

    _rabit_inner: torch.optim.Optimizer
    _rabit_places: list[Place]
    _rabit_storages: list[Storage]
    _rabit_names: list[list[str]]  # of all parameters of each group
    _rabit_prefix: str
    _rabit_state: DividedState
    _rabit_levels: Levels

    def flush(self) -> None:
        """Blocks until the parameters have the values of the last step()."""
        for storage in self._rabit_storages:
            storage.finish()

    def state_dict(self, whole: bool = False) -> dict[str, Any]:
        """The optimizer's state by name of the parameter.

        {"state": {name: {key: value}}, "param_groups": [...]}. By default this rank's own part, without
        communication: tensors of a parameter's size are rabit.checkpoint.Part, elements of the flattened tensor,
        which Checkpoint saves once and a job of any size loads. whole: every rank gets whole tensors; blocks until
        every rank has called it.
        """
        self.flush()
        return self._rabit_state.saved(whole)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave, whole or in parts, in a job of any size, or that of an optimizer of torch.

        Of a delayed update the parameters get what is late, so load the model before. Blocks if it holds parts, which
        the ranks exchange. Raises InvalidArgument for other names.
        """
        self.flush()
        if not is_by_name(state_dict):
            trained = [place.name for place in self._rabit_places]
            state_dict = named(state_dict, self._rabit_names, trained)
        self._rabit_state.load(state_dict)

    def broadcast_options(self, root_rank: int) -> None:
        """Gives every rank the hyper-parameters of `root_rank`, such as learning rates. Blocks until all call it."""
        groups = self._rabit_inner.param_groups
        own = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        found = rabit.broadcast_object(own, root_rank, "sharded.options", self._rabit_levels.everyone)
        for group, options in zip(groups, found, strict=True):
            group.update(options)

    def rabit_take_commits(self, commits: Sequence[Mapping[str, Any]]) -> None:
        """Goes on from what the ranks of an elastic job have of one commit: `state_dict` here and on lost ranks.

        Collective. Raises InvalidArgument if elements are on no rank.
        """
        self._rabit_state.gather_commit(commits, self._rabit_prefix)


def divide_again(optimizer: torch.optim.Optimizer, places: list[Place], prefix: str) -> None:
    """The process set has other ranks: the optimizer gets the slices that this one has now, without a state."""
    for storage in {id(place.storage): place.storage for place in places}.values():
        if isinstance(storage, FlatStorage):  # A model that is divided divides its own.
            storage.divide_again(prefix)
    for place in places:
        place.renew()
        place.parameter.grad = None
    for number, group in enumerate(optimizer.param_groups):
        group["params"] = [place.slice for place in places if place.group == number]
    optimizer.state.clear()
