"""Asynchronous collectives on torch tensors whose result is a new tensor of a shape that is known only afterwards.

Allgather, reducescatter and alltoall; signatures and names are as in rabit_torch/ops/collectives.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import rabit
from rabit import Average, Kind, ProcessSet, ReduceOp, Request, global_process_set
from rabit.framework import Again, Awaited, engine_for_work
from rabit_torch.ops.arguments import auto_name, checked_splits, group_of, scatter_op
from rabit_torch.ops.handles import JoinedHandle, TorchHandle
from rabit_torch.results import tensor_from
from rabit_torch.tensors import check, row_major, view

_CALLERS = {kind: f"torch.{kind}" for kind in Kind}
_GROUPED_CALLERS = {kind: f"torch.grouped_{kind}" for kind in Kind}


def _collected(
    kind: Kind, tensor: torch.Tensor, name: str, process_set: ProcessSet, fields: dict[str, Any]
) -> Request:
    """A request whose result is a new tensor of a shape that is known only afterwards.  fields: as given."""
    if "op" in fields:
        fields = {**fields, "op": scatter_op(fields["op"], f"{kind} '{name}'")}
    if "splits" in fields:
        fields = {**fields, "splits": checked_splits(fields["splits"], name)}
    source = row_major(check(tensor, name))
    if kind == Kind.ALLGATHER and not source.dim():  # a scalar counts as one row
        source = source.reshape(1)
    return Request(
        kind=kind, name=name, input=view(source, name), group=group_of(process_set), **fields
    )


def _start_collected(
    kind: Kind,
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet,
    finish_one: Callable[[rabit.Handle, torch.Tensor], Any] | None = None,
    **fields: Any,
) -> TorchHandle:
    """fields: of the request.  finish_one: makes what is returned of the finished handle and its result."""
    # The rows that a call names are mostly not those of the next one.
    is_alone = fields.get("splits") is not None
    arguments = tuple(fields.values())
    caller = _CALLERS[kind]
    again = Again(caller, kind, tensor, name, process_set, None, arguments, is_alone=is_alone)
    handle = again.start(False, None)
    if handle is None:
        full_name = again.name if name is None else auto_name(kind, name, process_set)
        with Awaited(again.engine, kind, full_name, group_of(process_set)):
            request = _collected(kind, tensor, full_name, process_set, fields)
        handle = again.submit(request)
    started = handle

    def finish() -> Any:
        result = tensor_from(started, tensor)
        return result if finish_one is None else finish_one(started, result)

    return JoinedHandle((started,), finish)


def _start_several_collected(
    kind: Kind,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    **fields: Any,
) -> TorchHandle:
    tensors = list(tensors)
    engine = engine_for_work()
    caller, arguments = _GROUPED_CALLERS[kind], tuple(fields.values())
    again = engine.again_grouped(caller, name, group_of(process_set), arguments, tensors)
    group = again.start(finish=lambda _: None)
    if group is None:
        base = auto_name(kind, name, process_set)
        with Awaited(engine, kind, base, group_of(process_set), len(tensors)):
            requests = [
                _collected(kind, tensor, f"{base}.{index}", process_set, fields)
                for index, tensor in enumerate(tensors)
            ]
        group = rabit.GroupHandle(engine.submit(requests))
        again.keep(requests)
    started = group

    def finish() -> list[torch.Tensor]:
        return [tensor_from(*each) for each in zip(started.handles, tensors, strict=True)]

    return JoinedHandle((started,), finish)


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> TorchHandle:
    """Starts an allgather along axis 0; returns a handle.  Does not block.

    priority: larger runs first.
    """
    return _start_collected(Kind.ALLGATHER, tensor, name, process_set, priority=priority)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Starts an allgather of several tensors that become ready together.  Does not block."""
    return _start_several_collected(Kind.ALLGATHER, tensors, name, process_set)


def start_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    is_grouped: bool,
) -> TorchHandle:
    """Starts the reducescatters of a call."""
    kind = Kind.REDUCESCATTER
    fields: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    if is_grouped:
        return _start_several_collected(kind, tensors, name, process_set, **fields)
    return _start_collected(kind, tensors[0], name, process_set, **fields)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> TorchHandle:
    """Starts a reducescatter along axis 0; returns a handle.  Does not block.

    Axis 0 is divided as evenly as it goes; the low ranks get one row more.
    """
    return start_reducescatter(
        [tensor], name, op, process_set, prescale_factor, postscale_factor, False
    )


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> TorchHandle:
    """Starts a reducescatter of several tensors that become ready together.  Does not block."""
    return start_reducescatter(
        tensors, name, op, process_set, prescale_factor, postscale_factor, True
    )


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Starts an alltoall along axis 0; returns a handle.  Does not block.

    splits: rows for each rank, in rank order (integers; sum = extent 0); None: equal parts.
    The handle gives the received rows; with splits the pair (rows, received_splits).
    """
    return start_alltoall(tensor, splits, name, process_set, tells_splits=splits is not None)


def start_alltoall(
    tensor: torch.Tensor,
    splits: Any,
    name: str | None,
    process_set: ProcessSet,
    *,
    tells_splits: bool = True,
) -> TorchHandle:
    """Starts an alltoall; the handle gives (rows, received_splits), or the rows alone."""

    def with_splits(handle: Any, result: torch.Tensor) -> Any:
        return result, torch.tensor(handle.received_splits, dtype=torch.int32)

    finish = with_splits if tells_splits else None
    return _start_collected(Kind.ALLTOALL, tensor, name, process_set, finish, splits=splits)


def alltoall_named(
    tensor: torch.Tensor, splits: Sequence[int], name: str, process_set: ProcessSet
) -> TorchHandle:
    """Starts an alltoall whose name in the engine is `name` as it is; the handle gives the rows."""
    request = _collected(Kind.ALLTOALL, tensor, name, process_set, {"splits": splits})
    (started,) = engine_for_work().submit((request,))
    return JoinedHandle((started,), lambda: tensor_from(started, tensor))
