"""Elastic jobs with PyTorch: models, optimizers and samplers that survive lost ranks.

    state = rabit_torch.elastic.TorchState(model, optimizer, step=0)

    @rabit_torch.elastic.run
    def train(state):
        while state.step < 1000:
            ...
            state.step += 1
            state.commit()

`rabit.elastic` has what does not depend on a framework.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

import rabit.elastic
from rabit import Internal, allgather_object, broadcast_object, rank, size
from rabit.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    batches,
    run,
)
from rabit_torch.state import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "batches",
    "run",
]


class TorchState(ObjectState):
    """A model, an optimizer and other values; all of them as attributes.

    model, optimizer: torch.nn.Module and torch.optim.Optimizer (a DistributedOptimizer too); values
    may hold further ones.  Commits are copies in this process's memory, on the device of the tensors.
    With a strategy what the method keeps is committed too: each rank goes on with its own residual and, where
    they differ between exchanges, with its own parameters.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        self._tensors = {name: each for name, each in given.items() if _holds_tensors(each)}
        self._copies: dict[str, Any] = {}
        self._methods: dict[str, Any] = {}  # what the strategies keep, by the name of their optimizer
        self._size = 0  # ranks at the commit
        self._before: tuple[Any, ...] = ()  # the commit before the last
        self.is_local = any(_has_strategy(each) for each in self._tensors.values())
        for name, each in self._tensors.items():
            setattr(self, name, each)
        super().__init__(**{name: each for name, each in values.items() if name not in self._tensors})

    def save(self) -> None:
        if self.is_local:
            self._before = (self._copies, self._methods, self._size, self._saved)
            self._methods = {
                name: copy.deepcopy(each.strategy_state_dict())
                for name, each in self._tensors.items()
                if _has_strategy(each)
            }
            self._size = size()
        self._copies = {
            name: copy.deepcopy(each.state_dict()) for name, each in self._tensors.items()
        }
        super().save()

    def step_back(self, commits: int) -> None:
        if commits != 1 or not self._before:
            raise Internal(
                f"TorchState on rank {rank()} is {commits} commits ahead of another rank: call commit() after the "
                "same steps on all ranks."
            )
        self._copies, self._methods, self._size, self._saved = self._before
        self.restore()

    def take_own(self, has_own: bool) -> None:
        """The strategies are new ones, of the new ranks, and go on from the commit."""
        counts = allgather_object((has_own, self._size), "rabit.elastic.own")
        owners = [number for number, (is_owner, _) in enumerate(counts) if is_owner]
        if not owners:
            return  # Nobody has committed yet: the strategies begin.
        if len(owners) < len(counts):
            found = broadcast_object(self._methods, owners[0], "rabit.elastic.methods")
            self._methods = self._methods if has_own else found
        if has_own:
            self.restore()
        for name, saved in self._methods.items():
            optimizer = self._tensors[name]
            optimizer.load_strategy_state_dict(copy.deepcopy(saved))
            optimizer._rabit_resize_strategy(counts[owners[0]][1], is_new=not has_own)

    def restore(self) -> None:
        for name, each in self._tensors.items():
            # An optimizer takes the tensors that it is given for its own.
            each.load_state_dict(copy.deepcopy(self._copies[name]))
        super().restore()

    def broadcast(self, root_rank: int) -> None:
        for each in self._tensors.values():
            if isinstance(each, torch.nn.Module):
                broadcast_parameters(each.state_dict(), root_rank)
            else:
                broadcast_optimizer_state(each, root_rank)
        super().broadcast(root_rank)


class ElasticSampler(rabit.elastic.ElasticSampler, torch.utils.data.Sampler[int]):
    """rabit.elastic.ElasticSampler, as a sampler of torch.utils.data.DataLoader."""

    def __iter__(self) -> Iterator[int]:
        return super().__iter__()


def _has_strategy(value: Any) -> bool:
    return getattr(value, "_rabit_fresh_strategy", None) is not None


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, torch.nn.Module | torch.optim.Optimizer)
