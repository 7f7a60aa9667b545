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
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import rabit.elastic
from rabit import allgather_object, broadcast_object, size
from rabit.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    batches,
    run,
)
from rabit.framework import Change
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
    they differ between exchanges, with its own parameters.  replicas: so many other hosts have copies of that
    and of the model's buffers, with which a rank that comes for a lost one goes on.  per_rank: as for ObjectState.
    """

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        per_rank: Collection[str] = (),
        replicas: int = 0,
        **values: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        self._tensors = {name: each for name, each in given.items() if _holds_tensors(each)}
        self._commit = _Commit({}, {})
        self._commit_before: _Commit | None = None  # where parts are local
        self.is_local = any(_has_strategy(each) for each in self._tensors.values())
        for name, each in self._tensors.items():
            setattr(self, name, each)
        self._is_made = False
        rest = {name: each for name, each in values.items() if name not in self._tensors}
        super().__init__(per_rank=per_rank, replicas=replicas, **rest)
        self._is_made = True

    def save(self) -> None:
        # What is under way comes in first, on all ranks together: not where one of them makes its state.
        methods = {
            name: copy.deepcopy(each.strategy_state_dict())
            for name, each in self._tensors.items()
            if _has_strategy(each) and self._is_made
        }
        copies = {name: copy.deepcopy(each.state_dict()) for name, each in self._tensors.items()}
        before, self._commit = self._commit, _Commit(copies, methods)
        self._commit_before = before if self.is_local else None
        super().save()

    def _take_before(self) -> None:
        assert self._commit_before is not None
        self._commit, self._commit_before = self._commit_before, None
        super()._take_before()

    def own_part(self) -> Any:
        commit = self._commit
        are_apart = any(
            each.strategy.uses_step for each in self._tensors.values() if _has_strategy(each)
        )
        own = {
            name: saved if are_apart else _buffers(self._tensors[name], saved)
            for name, saved in commit.copies.items()
        }
        methods = {name: each["local"] for name, each in commit.methods.items()}
        return own, methods, super().own_part()

    def take_own(self, has_own: bool, taken: Any) -> None:
        """The strategies are new ones, of the new ranks, and go on from the commit."""
        nothing: tuple[dict[str, Any], dict[str, Any], Any] = ({}, {}, None)
        own, locals_, values = taken or nothing
        is_new = not (has_own or taken)
        everybody = allgather_object((has_own, is_new), "rabit.elastic.own")
        owners = [number for number, (is_owner, _) in enumerate(everybody) if is_owner]
        if has_own:
            self.restore()
        if owners:  # Else nobody has committed yet: the strategies begin.
            methods = self._commit.methods
            if len(owners) < len(everybody):
                found = broadcast_object(methods, owners[0], "rabit.elastic.methods")
                methods = methods if has_own else found
            has_new = any(each for _, each in everybody)
            for name, saved in methods.items():
                mine = {**saved, "local": locals_.get(name, saved["local"])}
                change = Change(saved["ranks"], size(), is_new, has_new)
                self._tensors[name]._rabit_load_strategy(copy.deepcopy(mine), change)
            for name, saved in own.items():
                _load(self._tensors[name], saved)
        super().take_own(has_own, values)

    def restore(self) -> None:
        for name, each in self._tensors.items():
            # An optimizer takes the tensors that it is given for its own.
            each.load_state_dict(copy.deepcopy(self._commit.copies[name]))
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


@dataclass(frozen=True)
class _Commit:
    """Copies of models and optimizers and of what strategies keep, by name."""

    copies: dict[str, Any]
    methods: dict[str, Any]


def _buffers(value: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """Of the copy of a model: what differs between ranks though parameters are equal, such as running means."""
    if not isinstance(value, torch.nn.Module):
        return {}
    return {name: saved[name] for name, _ in value.named_buffers() if name in saved}


def _load(value: Any, saved: dict[str, Any]) -> None:
    if isinstance(value, torch.nn.Module):
        value.load_state_dict(saved, strict=False)
    elif saved:
        value.load_state_dict(saved)


def _has_strategy(value: Any) -> bool:
    return getattr(value, "_rabit_fresh_strategy", None) is not None


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, torch.nn.Module | torch.optim.Optimizer)
