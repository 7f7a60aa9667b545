"""Every rank starts from the same parameters, buffers and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, ProcessSet, global_process_set
from rabit.framework import check_process_set, sequence_like
from rabit_torch.ops.collectives import broadcast_async_
from rabit_torch.tensors import on_host

_SHOWN = 5  # names of each kind in an error


def _named_tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        params = sorted(params.items(), key=lambda item: str(item[0]))
    items: list[Any] = list(params) if isinstance(params, Iterable) else [params]
    named: dict[str, torch.Tensor] = {}
    for item in items:
        if not isinstance(item, tuple) or len(item) != 2:
            raise InvalidArgument(
                "broadcast_parameters needs a state_dict() or named_parameters(): (name, tensor) pairs, "
                f"not {type(item).__name__}"
            )
        name, value = str(item[0]), item[1]
        if value is None or hasattr(value, "rabit_divided"):
            continue
        if not isinstance(value, torch.Tensor):
            if is_part(value):
                continue
            raise InvalidArgument(
                f"broadcast_parameters: '{name}' is {type(value).__name__}, not a tensor; use "
                "broadcast_object for other values"
            )
        if name in named:
            raise InvalidArgument(
                f"broadcast_parameters: '{name}' names more than one tensor; give every tensor its own name, "
                "for example one that begins with that of its model"
            )
        named[name] = value
    return list(named.items())


def is_part(value: Any) -> bool:
    """Whether each rank has a part of it, as rabit_torch.sharding.shard leaves it: those began alike."""
    from rabit.checkpoint import Part  # Few programs have one, and would wait for it to load.

    return isinstance(value, Part)


def _same_names_everywhere(
    named: list[tuple[str, torch.Tensor]],
    refusal: InvalidArgument | None,
    root_rank: int,
    process_set: ProcessSet,
) -> None:
    """Names that only some ranks have would wait for ever; say which, and where.

    refusal: why this rank has nothing to send; every rank raises it.
    """
    names = [name for name, _ in named]
    root_names = rabit.broadcast_object(names, root_rank, "parameter_names", process_set)
    here, there = set(names), set(root_names)
    missing = [name for name in root_names if name not in here]
    extra = [name for name in names if name not in there]
    said = (str(refusal or ""), missing[:_SHOWN], extra[:_SHOWN])
    found = rabit.allgather_object(said, "parameter_name_check", process_set)
    ranks = process_set.ranks or range(len(found))
    if refusal is not None:
        raise refusal
    for rank, (why, _, _) in zip(ranks, found, strict=True):
        if why:
            raise InvalidArgument(f"rank {rank} refused it: {why}", rank)
    for rank, (_, lacks, has) in zip(ranks, found, strict=True):
        if lacks or has:
            raise rabit.Mismatch(
                f"broadcast_parameters: rank {rank} lacks {lacks} and has {has} beyond those of "
                f"rank {root_rank}. Build the model the same way on every rank.",
                rank,
            )


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
    *,
    prefix: str = "parameter.",
) -> None:
    """Overwrites parameters and buffers on every rank with those of `root_rank`.  Blocks.

    params: `model.state_dict()` or `model.named_parameters()`.
    prefix: of the names that timelines and errors show, an argument of BytePS.
    Raises Mismatch if the ranks have other names, shapes or dtypes, and on every rank InvalidArgument if one
    of them has given a name twice, or a value that is not a tensor.
    """
    check_process_set(process_set)
    named, refusal = [], None
    try:
        named = _named_tensors(params)
    except InvalidArgument as error:
        refusal = error
        if process_set.size() == 1:
            raise
    if process_set.size() == 1:
        return
    _same_names_everywhere(named, refusal, root_rank, process_set)
    handles = [
        broadcast_async_(tensor, root_rank, f"{prefix}{name}", process_set)
        for name, tensor in named
    ]
    for handle in handles:
        handle.wait()


def _traits(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer must have in common with those of the other ranks, by its name in messages."""
    told = getattr(optimizer, "_rabit_traits", None)
    return {
        # Not the class: a fused one and a plain one may well have the same state.  Nor the keys of groups, which a
        # checkpoint that the root alone has loaded, or a learning-rate schedule, adds to.
        "the set of hyper-parameters": sorted(optimizer.defaults),
        "the number of parameters of the groups": [len(group["params"]) for group in optimizer.param_groups],
        **(told() if told is not None else {}),
    }


def _same_optimizer_everywhere(
    kind: str,
    own: dict[str, Any],
    roots: dict[str, Any],
    root_rank: int,
    process_set: ProcessSet,
) -> None:
    """Ranks that would load a state that is not theirs, or train differently, say so before."""
    other = [(name, value, roots.get(name)) for name, value in own.items() if value != roots.get(name)]
    found = rabit.allgather_object((kind, other[:1]), "optimizer_check", process_set)
    ranks = process_set.ranks or range(len(found))
    kind_of = {rank: kind for rank, (kind, _) in zip(ranks, found, strict=True)}
    for rank, (kind, differences) in zip(ranks, found, strict=True):
        for name, value, roots_value in differences:
            raise rabit.Mismatch(
                f"broadcast_optimizer_state: {name} is {_shown(value, roots_value)} on rank {rank} ({kind}) "
                f"and {_shown(roots_value, value)} on rank {root_rank} ({kind_of[root_rank]}). Make the "
                "optimizer the same way on every rank.",
                rank,
            )


def _shown(value: Any, other: Any) -> str:
    """`value`; of two lists of names, those that the other one lacks."""
    if not isinstance(value, list) or not isinstance(other, list) or not isinstance([*value, ""][0], str):
        return str(value)
    others = set(other)
    beyond = [each for each in value if each not in others]
    more = f" and {len(beyond) - 5} more" if len(beyond) > 5 else ""
    return f"{beyond[:5]}{more} beyond what both have" if beyond else "what both have"


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Replaces every tensor of a nested structure by a description; appends it to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Tensor(
            len(tensors) - 1, tuple(value.shape), str(value.dtype).removeprefix("torch.")
        )
    if isinstance(value, Mapping):
        return {key: _take_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sequence_like(value, [_take_tensors(item, tensors) for item in value])
    return value


class _Tensor:
    """Stands for a tensor in the structure that travels as an object."""

    def __init__(self, index: int, shape: tuple[int, ...], dtype: str) -> None:
        self.index, self.shape, self.dtype = index, shape, dtype

    def empty(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype))


def _describe(value: Any, found: dict[int, _Tensor]) -> None:
    if isinstance(value, _Tensor):
        found[value.index] = value
    elif isinstance(value, dict):
        for item in value.values():
            _describe(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _describe(item, found)


def _put_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _Tensor):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sequence_like(value, [_put_tensors(item, tensors) for item in value])
    return value


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
    *,
    prefix: str = "optimizer_state.",
) -> None:
    """Gives every rank the optimizer state of `root_rank`.  Blocks.

    The structure of `state_dict()` travels once as an object, then its tensors, so that it works for
    every optimizer, also where a rank has no state yet.  No step is taken to create state.  They travel
    from the memory of the host: `load_state_dict` puts each where its parameter lies.
    `model` is accepted for compatibility and not used.  prefix: of the names of the tensors.
    Of an optimizer with shard=... the hyper-parameters alone travel: each rank has its own part of the state.
    Raises Mismatch on every rank, if ranks have optimizers with other hyper-parameters, numbers or names of
    parameters, or backward_passes_per_step.
    """
    check_process_set(process_set)
    if process_set.size() == 1:
        return
    # Of a ShardedOptimizer, whose module few programs load.
    broadcast_options = getattr(optimizer, "broadcast_options", None)
    if broadcast_options is not None:
        broadcast_options(root_rank)
        return
    # Loading a state adds hyper-parameters, such as `differentiable`, and a rank that begins has loaded none.
    inner = getattr(optimizer, "_rabit_inner", optimizer)
    inner.__setstate__({"state": inner.state, "param_groups": inner.param_groups})
    tensors: list[torch.Tensor] = []
    traits = _traits(optimizer)
    said = (_take_tensors(optimizer.state_dict(), tensors), traits)
    structure, roots = rabit.broadcast_object(said, root_rank, "optimizer_state", process_set)
    _same_optimizer_everywhere(type(optimizer).__name__, traits, roots, root_rank, process_set)
    is_root = rabit.rank() == root_rank
    described: dict[int, _Tensor] = {}
    _describe(structure, described)
    if not is_root:
        tensors = [described[index].empty() for index in range(len(described))]
    else:
        tensors = [on_host(tensor.detach()).clone() for tensor in tensors]
    handles = [
        broadcast_async_(tensor, root_rank, f"{prefix}{index}", process_set)
        for index, tensor in enumerate(tensors)
    ]
    for handle in handles:
        handle.wait()
    if not is_root:
        state_dict = _put_tensors(structure, tensors)
        _put_where_own_lie(state_dict["param_groups"], optimizer.param_groups)
        optimizer.load_state_dict(state_dict)


def _put_where_own_lie(groups: list[dict[str, Any]], own_groups: list[dict[str, Any]]) -> None:
    """Brings hyper-parameters that are tensors to the device of this rank's own; loading leaves them where they are."""
    for group, own in zip(groups, own_groups, strict=True):
        for name, value in group.items():
            if isinstance(value, torch.Tensor) and isinstance(own.get(name), torch.Tensor):
                group[name] = value.to(own[name].device)
