"""TorchState: models and optimizers whose commits survive lost ranks."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from rabit import allgather_object, broadcast_object, size
from rabit.elastic import ObjectState
from rabit.framework import Change
from rabit_torch.state import broadcast_optimizer_state, broadcast_parameters, is_part

__all__ = ["TorchState"]


class _Tensors:
    """Tensors without a history, for Renewal."""

    def place(self, value: Any, worn: Any) -> tuple[object, object] | None:
        if type(value) is not torch.Tensor or type(worn) is not torch.Tensor or not value.numel():
            return None
        if _layout(value) != _layout(worn) or not _is_plain(value) or not _is_plain(worn):
            return None
        return value.untyped_storage().data_ptr(), worn.untyped_storage().data_ptr()

    def fill(self, worn: Any, value: Any) -> None:
        worn.copy_(value)


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.storage_offset()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Its elements lie next to each other, and it can be written to in place."""
    if tensor.layout is not torch.strided or tensor.requires_grad or tensor.is_inference() or tensor.is_quantized:
        return False
    is_dense = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    return is_dense and tensor.is_conj() is tensor.is_neg() is False


class TorchState(ObjectState):
    """A model, an optimizer and other values; all of them as attributes.

    model, optimizer: torch.nn.Module and torch.optim.Optimizer (a DistributedOptimizer too); values
    may hold further ones.  Commits are copies in this process's memory, on the device of the tensors.
    With a strategy what the method keeps is committed too: each rank continues with its own residual and, where
    they differ between exchanges, with its own parameters.  replicas: how many other hosts have copies of that
    and of the model's buffers, with which a rank that comes for a lost one continues.  per_rank: as for ObjectState.
    """

    _kinds = (_Tensors(),)

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        per_rank: Collection[str] = (),
        replicas: int = 0,
        **values: Any,
    ) -> None:
        self._check_names(values)
        given = {"model": model, "optimizer": optimizer, **values}
        self._tensors = {name: each for name, each in given.items() if _holds_tensors(each)}
        self._left: list[Any] = []
        self.is_local = any(_has_strategy(each) or _is_divided(each) for each in self._tensors.values())
        for name, each in self._tensors.items():
            setattr(self, name, each)
        rest = {name: value for name, value in values.items() if name not in self._tensors}
        super().__init__(per_rank=per_rank, replicas=replicas, **rest)

    def _snapshot(self) -> dict[str, Any]:
        # What is under way comes in first, on all ranks together: not where one of them begins.
        methods = {
            name: tensor.strategy_state_dict()
            for name, tensor in self._tensors.items()
            if _has_strategy(tensor) and not self._is_beginning
        }
        tensors = {name: tensor.state_dict() for name, tensor in self._tensors.items()}
        return {"tensors": tensors, "methods": methods, **super()._snapshot()}

    def own_part(self) -> Any:
        assert self._saved is not None
        are_apart = any(
            tensor.strategy.uses_step for tensor in self._tensors.values() if _has_strategy(tensor)
        )
        own = {
            name: saved if are_apart else _own(self._tensors[name], saved)
            for name, saved in self._saved["tensors"].items()
        }
        methods = {name: each["local"] for name, each in self._saved["methods"].items()}
        return own, methods, super().own_part()

    def take_left(self, parts: Sequence[Any]) -> None:
        self._left = [own for own, _, _ in parts]

    def take_own(self, has_own: bool, taken: Any) -> None:
        """The strategies are new ones, of the new ranks, and continue from the commit."""
        nothing: tuple[dict[str, Any], dict[str, Any], Any] = ({}, {}, None)
        own, locals_, values = taken or nothing
        is_new = not (has_own or taken)
        everybody = allgather_object((has_own, is_new, self._begins()), "rabit.elastic.own")
        owners = [number for number, (is_owner, *_) in enumerate(everybody) if is_owner]
        assert self._saved is not None
        divided = {name: self._saved["tensors"][name] for name, tensor in self._tensors.items() if _is_divided(tensor)}
        if has_own:
            self.restore()
        if owners:  # Else these are the first ranks of the job: what they have begun with is all there is.
            methods = self._saved["methods"]
            if len(owners) < len(everybody):
                options = {name: saved["param_groups"] for name, saved in divided.items() if "param_groups" in saved}
                found = broadcast_object((methods, options), owners[0], "rabit.elastic.methods")
                if not has_own:  # A rank that has begun has parts of this commit, and not its options.
                    methods, options = found
                    divided |= {name: {**divided[name], "param_groups": groups} for name, groups in options.items()}
            has_new = any(each for _, each, _ in everybody)
            for name, saved in methods.items():
                mine = {**saved, "local": locals_.get(name, saved["local"])}
                change = Change(saved["ranks"], size(), is_new, has_new)
                self._tensors[name]._rabit_load_strategy(copy.deepcopy(mine), change)
            for name, saved in own.items():
                _load(self._tensors[name], _whole(self._tensors[name], saved))
        # Ranks that were lost while the first ones met have had parts, too: the others have been divided again.
        if any(is_owner or begins for is_owner, _, begins in everybody):
            for name, saved in divided.items():
                kept = [saved] if has_own or self._begins() else []
                kept += [part[name] for part in (own, *self._left) if name in part]
                _take_commits(self._tensors[name], copy.deepcopy(kept))
        self._left = []
        super().take_own(has_own, values)

    def restore(self) -> None:
        assert self._saved is not None
        for name, tensor in self._tensors.items():
            # An optimizer takes the tensors that it is given for its own.
            saved = copy.deepcopy(_whole(tensor, self._saved["tensors"][name]))
            if saved:
                tensor.load_state_dict(saved, **({"strict": False} if _is_divided(tensor) else {}))
        super().restore()

    def broadcast(self, root_rank: int) -> None:
        for tensor in self._tensors.values():
            if isinstance(tensor, torch.nn.Module):
                broadcast_parameters(tensor.state_dict(), root_rank)
            elif _is_divided(tensor):
                tensor.broadcast_options(root_rank)
            else:
                broadcast_optimizer_state(tensor, root_rank)
        super().broadcast(root_rank)


def _own(value: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """Of the copy of a model or an optimizer: what differs between ranks though whole parameters are equal."""
    if not isinstance(value, torch.nn.Module):
        return saved if _is_divided(value) else {}
    buffers = {name: saved[name] for name, _ in value.named_buffers() if name in saved}  # such as running means
    if not _is_divided(value):
        return buffers
    # A pickle of a part has all of the memory that it lies in, and those of a unit share one.
    parts = {name: replace(part, value=part.value.clone()) for name, part in saved.items() if is_part(part)}
    return {**buffers, **parts}


def _whole(value: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """What `_take_commits` does not take."""
    if not _is_divided(value):
        return saved
    is_model = isinstance(value, torch.nn.Module)
    return {name: each for name, each in saved.items() if is_model and not is_part(each)}


def _load(value: Any, saved: dict[str, Any]) -> None:
    if isinstance(value, torch.nn.Module):
        value.load_state_dict(saved, strict=False)
    elif saved:
        value.load_state_dict(saved)


def _take_commits(value: Any, commits: Sequence[dict[str, Any]]) -> None:
    """Gives a divided model or optimizer the parts that ranks have of one commit; all ranks together."""
    if not isinstance(value, torch.nn.Module):
        value.rabit_take_commits(commits)
        return
    for name, parameter in value.named_parameters():
        if hasattr(parameter, "rabit_divided"):
            parameter.rabit_divided.take([commit[name] for commit in commits])


def _has_strategy(value: Any) -> bool:
    return getattr(value, "_rabit_fresh_strategy", None) is not None


def _is_divided(value: Any) -> bool:
    """Whether each rank has a part of it: of DistributedOptimizer(shard=...), or of a model with shard="parameters"."""
    if isinstance(value, torch.nn.Module):
        return any(hasattr(parameter, "rabit_divided") for parameter in value.parameters())
    return hasattr(value, "rabit_take_commits")


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, torch.nn.Module | torch.optim.Optimizer)
