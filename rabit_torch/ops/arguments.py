"""Arguments that several operations share, resolved and checked."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, Kind, ProcessSet, ReduceOp, framework
from rabit.framework import Awaited, Draft, engine_for_work, group_on
from rabit_torch.ops.adasum import Adasum, AdasumOp, refuse

__all__ = [
    "auto_name",
    "awaited",
    "checked_splits",
    "group_of",
    "listed",
    "reduce_op",
    "scatter_op",
]


def auto_name(kind: Kind, name: str | None, process_set: ProcessSet) -> str:
    """Returns "allreduce.<name>", numbered when there is no name: for each process set by itself."""
    if name is None:
        return rabit.default_engine().number_of(kind, group_of(process_set))
    return f"{kind}.{name}"


def awaited(
    kind: Kind, name: str | None, process_set: ProcessSet, count: int | None = None
) -> Awaited:
    """A context around what comes before the call itself, which begins with `auto_name`; see Awaited.

    name: as the caller gave it.  count: tensors of a grouped call.
    """
    engine = engine_for_work()
    full_name = None if name is None else f"{kind}.{name}"
    return Awaited(engine, kind, full_name, group_on(process_set, engine), count)


def listed(
    tensors: Any, kind: Kind, name: str | None, process_set: ProcessSet
) -> list[torch.Tensor]:
    """The tensors of a grouped call; one without any is refused, on the other ranks too."""
    full_name = None if name is None else f"{kind}.{name}"
    draft = functools.partial(Draft.of, engine_for_work(), kind, full_name, process_set)
    return list(framework.listed(tensors, draft))


def group_of(process_set: ProcessSet) -> int:
    """The number of a process set in the default engine."""
    return group_on(process_set, rabit.default_engine())


def reduce_op(op: ReduceOp | int | None, average: bool | None) -> ReduceOp | AdasumOp:
    """Resolves the `op` argument and Horovod's old `average` keyword; at most one may be given."""
    if average is not None:
        if op is not None:
            raise InvalidArgument(f"both average={average} and op={op!r} are given. Pass op alone.")
        return ReduceOp.AVERAGE if average else ReduceOp.SUM
    if op is None:
        return ReduceOp.AVERAGE
    if op == Adasum:
        return Adasum
    try:
        return ReduceOp(op)
    except ValueError:
        known = ", ".join(f"{each} ({each.value})" for each in [*ReduceOp, Adasum])
        raise InvalidArgument(f"op is {op!r}, which is not a reduction. Known: {known}.") from None


def scatter_op(op: ReduceOp | int, what: str) -> ReduceOp:
    """Resolves the `op` argument of an operation that has no Adasum, which `what` names."""
    resolved = reduce_op(op, None)
    if isinstance(resolved, AdasumOp):
        raise refuse(what)
    return resolved


def checked_splits(splits: Any, name: str) -> list[int] | None:
    """The rows for each rank as integers; raises InvalidArgument for values that are not integers."""
    if splits is None:
        return None
    dtype = ""
    if isinstance(splits, torch.Tensor):
        dtype = f" of dtype {splits.dtype}"
        splits = splits.tolist()
    try:
        return [operator.index(rows) for rows in splits]
    except TypeError:
        raise InvalidArgument(
            f"splits of '{name}' on rank {rabit.rank()} are {splits}{dtype}; rows are counted in "
            "integers, one for each rank"
        ) from None
