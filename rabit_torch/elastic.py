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
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        self._tensors = {name: each for name, each in given.items() if _holds_tensors(each)}
        self._copies: dict[str, Any] = {}
        for name, each in self._tensors.items():
            setattr(self, name, each)
        super().__init__(**{name: each for name, each in values.items() if name not in self._tensors})

    def save(self) -> None:
        self._copies = {
            name: copy.deepcopy(each.state_dict()) for name, each in self._tensors.items()
        }
        super().save()

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


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, torch.nn.Module | torch.optim.Optimizer)
