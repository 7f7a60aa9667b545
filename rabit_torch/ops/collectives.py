"""allreduce and broadcast of torch tensors: synchronous, asynchronous, in place and grouped.

The signatures are Horovod's.  Names tell tensors apart; a name that is None is numbered, so calls
without names must come in the same order on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, Kind, ProcessSet, ReduceOp, Request, global_process_set
from rabit.framework import Again, Awaited, engine_for_work, group_on
from rabit_torch.ops.adasum import AdasumOp, Rounds, check_floats, start_adasum
from rabit_torch.ops.arguments import auto_name, group_of, reduce_op
from rabit_torch.ops.collected import allgather_async, alltoall_named
from rabit_torch.ops.handles import JoinedHandle, TensorHandle, TorchHandle, waited_for
from rabit_torch.tensors import axis_order, check, copy_last, is_row_major, row_major, view

# --- allreduce ------------------------------------------------------------------------------------


def _allreduce_requests(
    tensors: Sequence[torch.Tensor],
    names: Sequence[str],
    is_in_place: bool,
    op: ReduceOp,
    arguments: tuple[Any, ...],
    process_set: ProcessSet,
) -> tuple[list[Request], list[torch.Tensor]]:
    """The requests, and the tensors that their callers get; arguments: as `allreduce_async` lists them."""
    _, _, prescale, postscale, compression, priority = arguments
    codec = rabit.default_engine().codec_id(compression)
    requests, targets = [], []
    for tensor, name in zip(tensors, names, strict=True):
        order = axis_order(tensor) if is_in_place else None
        if order is not None:
            source = target = tensor.detach()
        else:
            order, source = 0, row_major(tensor)
            target = torch.empty_like(source)
        request = Request(
            kind=Kind.ALLREDUCE,
            name=name,
            input=view(source, name, order),
            output=view(target, name, order),
            op=op,
            group=group_of(process_set),
            codec=codec,
            prescale=prescale,
            postscale=postscale,
            priority=priority,
        )
        requests.append(request)
        targets.append(target)
    return requests, targets


def _start_allreduce(
    tensors: Sequence[torch.Tensor],
    is_in_place: bool,
    name: str | None,
    arguments: tuple[Any, ...],
    process_set: ProcessSet,
    *,
    is_grouped: bool,
    number: str | None,
    keep: Callable[[Sequence[Request]], None],
) -> TorchHandle:
    """arguments: as `allreduce_async` lists them; number: the operation's name if the caller gave none;
    keep: lets the requests come again."""
    if is_grouped and not tensors:
        raise InvalidArgument(
            "a grouped allreduce needs at least one tensor, and the list is empty"
        )
    base = auto_name(Kind.ALLREDUCE, name, process_set) if number is None else number
    count = len(tensors) if is_grouped else None
    names = [base] if count is None else [f"{base}.{index}" for index in range(count)]
    engine, group = rabit.default_engine(), group_of(process_set)
    with Awaited(engine, Kind.ALLREDUCE, base, group, count):
        average, given_op, prescale, postscale = arguments[:4]
        op = reduce_op(given_op, average)
        for tensor, tensor_name in zip(tensors, names, strict=True):
            check(tensor, tensor_name, is_written=is_in_place)
        if isinstance(op, AdasumOp):
            check_floats(tensors, names)
        else:
            requests, outputs = _allreduce_requests(
                tensors, names, is_in_place, op, arguments, process_set
            )
    if isinstance(op, AdasumOp):
        factors = (prescale, postscale)
        return _adaptive(tensors, is_in_place, base, names, factors, process_set, is_grouped)
    results = list(tensors) if is_in_place else outputs

    def finish() -> Any:
        for result, output in zip(results, outputs, strict=True):
            if result is not output and result.data_ptr() != output.data_ptr():
                copy_last(result.detach(), output)
        return list(results) if is_grouped else results[0]

    started = engine.submit(requests)
    keep(requests)
    # All of a group have ended when one has failed: the next call may have their names.
    return JoinedHandle((rabit.GroupHandle(started),) if is_grouped else started, finish)


def _adaptive(
    tensors: Sequence[torch.Tensor],
    is_in_place: bool,
    base: str,
    names: Sequence[str],
    factors: tuple[float, float],
    process_set: ProcessSet,
    is_grouped: bool,
) -> TorchHandle:
    rounds = Rounds(allreduce_async_, allgather_async, alltoall_named)
    started = start_adasum(rounds, tensors, base, names, *factors, process_set)

    def finish() -> Any:
        results = started.outcome()
        if is_in_place:
            for tensor, result in zip(tensors, results, strict=True):
                copy_last(tensor.detach(), result)
            results = list(tensors)
        return results if is_grouped else results[0]

    return JoinedHandle([started], finish)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Any = rabit.Compression.none,
    priority: int = 0,
) -> TorchHandle:
    """Starts an allreduce into a new tensor of the same shape and dtype; returns a handle.

    `tensor` must not change until `synchronize(handle)`.  op: Average (default), Sum, Min, Max,
    Product, or bitwise on integers and bool.  Does not block.
    """
    arguments = (average, op, prescale_factor, postscale_factor, compression, priority)
    return _start_one(False, tensor, name, process_set, arguments)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Any = rabit.Compression.none,
    priority: int = 0,
) -> TorchHandle:
    """Starts an allreduce in place; returns a handle.  Does not block."""
    arguments = (average, op, prescale_factor, postscale_factor, compression, priority)
    if (
        name is not None and process_set is global_process_set
    ):  # as gradients come: the shortest way
        repeats = engine_for_work().repeats
        kept = repeats.find(("torch.allreduce_", name, 0), arguments, tensor)
        handle = None if kept is None else kept.start(TensorHandle, tensor)
        if handle is not None:
            handle.given = tensor
            return handle
    return _start_one(True, tensor, name, process_set, arguments)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces `tensor` over all ranks in place and returns it.  Blocks.

    Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """
    arguments = (average, op, prescale_factor, postscale_factor, rabit.Compression.none, 0)
    return _run_one(True, tensor, name, process_set, arguments)


def _run_one(
    is_in_place: bool,
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet,
    arguments: tuple[Any, ...],
) -> torch.Tensor:
    """An allreduce of one tensor.  Blocks.  arguments: as `allreduce_async` lists them."""
    engine = engine_for_work()
    group = 0 if process_set is global_process_set else group_on(process_set, engine)
    caller = "torch.allreduce_" if is_in_place else "torch.allreduce"
    key, number = engine.key(caller, Kind.ALLREDUCE, name, group, tensor)
    kept = engine.repeats.find(key, arguments, tensor)
    if kept is not None:
        output = None if is_in_place else torch.empty_like(tensor)
        if kept.run(tensor, output, number):
            return tensor if output is None else output
    with engine.waiting():
        handle = _prepare_one(is_in_place, tensor, name, process_set, arguments, key, number)
    result: torch.Tensor = handle.wait()
    return result


def _start_one(
    is_in_place: bool,
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet,
    arguments: tuple[Any, ...],
) -> TorchHandle:
    """Like `_run_one`, but returns a handle at once."""
    engine = engine_for_work()
    group = 0 if process_set is global_process_set else group_on(process_set, engine)
    caller = "torch.allreduce_" if is_in_place else "torch.allreduce"
    key, number = engine.key(caller, Kind.ALLREDUCE, name, group, tensor)
    kept = engine.repeats.find(key, arguments, tensor)
    if kept is not None:
        output = None if is_in_place else torch.empty_like(tensor)
        handle = kept.start(TensorHandle, tensor, output, None, number)
        if handle is not None:
            handle.given = tensor if output is None else output
            return handle
    return _prepare_one(is_in_place, tensor, name, process_set, arguments, key, number)


def _prepare_one(
    is_in_place: bool,
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet,
    arguments: tuple[Any, ...],
    key: tuple[Any, ...],
    number: str | None,
) -> TorchHandle:
    repeats = rabit.default_engine().repeats
    return _start_allreduce(
        (tensor,),
        is_in_place,
        name,
        arguments,
        process_set,
        is_grouped=False,
        number=number,
        keep=lambda requests: repeats.keep(key, requests, arguments, (tensor,)),
    )


def start_group(
    is_in_place: bool,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: ReduceOp | AdasumOp | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    compression: Any = rabit.Compression.none,
    average: bool | None = None,
) -> TorchHandle:
    """Starts an allreduce of several tensors.  factors: before and after it."""
    tensors = list(tensors)
    engine = engine_for_work()
    group = 0 if process_set is global_process_set else group_on(process_set, engine)
    caller = "torch.grouped_allreduce_" if is_in_place else "torch.grouped_allreduce"
    arguments = (average, op, *factors, compression, 0)
    again = engine.again_grouped(caller, name, group, arguments, tensors)
    if again.comes_again:
        outputs = None if is_in_place else [torch.empty_like(each) for each in tensors]
        handle = again.start(outputs)
        if handle is not None:
            results = tensors if outputs is None else outputs
            return JoinedHandle((handle,), None, results)
    return _start_allreduce(
        tensors,
        is_in_place,
        name,
        arguments,
        process_set,
        is_grouped=True,
        number=None,
        keep=again.keep,
    )


def allreduce_into_new(
    tensor: torch.Tensor,
    name: str | None,
    op: ReduceOp | AdasumOp | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    compression: Any,
    average: bool | None = None,
) -> torch.Tensor:
    """The allreduce of one tensor, outside of its gradient.  Blocks."""
    arguments = (average, op, *factors, compression, 0)
    return _run_one(False, tensor, name, process_set, arguments)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Starts one allreduce for several tensors that become ready together.  Does not block."""
    factors = (prescale_factor, postscale_factor)
    return start_group(False, tensors, name, op, factors, process_set, average=average)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Like `grouped_allreduce_async`, in place."""
    factors = (prescale_factor, postscale_factor)
    return start_group(True, tensors, name, op, factors, process_set, average=average)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors in place, as one; returns them.  Blocks."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    result: list[torch.Tensor] = handle.wait()
    return result


# --- broadcast ------------------------------------------------------------------------------------


def _start_broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    is_in_place: bool,
    priority: int = 0,
) -> TorchHandle:
    caller = "torch.broadcast_" if is_in_place else "torch.broadcast"
    arguments = (root_rank, priority)
    again = Again(caller, Kind.BROADCAST, tensor, name, process_set, None, arguments)
    if again.comes_again:
        output = None if is_in_place else torch.empty_like(tensor)
        result = tensor if output is None else output
        handle = again.start(output, None)
        if handle is not None:
            return JoinedHandle((handle,), None, result)
    full_name = again.name if name is None else auto_name(Kind.BROADCAST, name, process_set)
    group = group_of(process_set)
    with Awaited(again.engine, Kind.BROADCAST, full_name, group):
        check(tensor, full_name, is_written=is_in_place)
        source = tensor.detach()
        target = source if is_in_place and is_row_major(source) else row_major(source)
        if not is_in_place and target.data_ptr() == source.data_ptr():
            target = target.clone()
        memory = view(target, full_name)
    request = Request(
        kind=Kind.BROADCAST,
        name=full_name,
        input=memory,
        output=memory,
        root=root_rank,
        group=group,
        priority=priority,
    )

    def finish() -> torch.Tensor:
        if not is_in_place:
            return target
        if target.data_ptr() != source.data_ptr():
            copy_last(source, target)
        return tensor

    return JoinedHandle((again.submit(request),), finish)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Starts a broadcast from `root_rank` (a global rank) into a new tensor.  Does not block."""
    return _start_broadcast(tensor, root_rank, name, process_set, is_in_place=False)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Starts a broadcast in place from `root_rank` (a global rank).  Does not block."""
    return _start_broadcast(tensor, root_rank, name, process_set, is_in_place=True)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrites `tensor` with that of `root_rank` and returns it.  Blocks.

    Raises Mismatch if shape, dtype or root differ between ranks, PeerLost if a rank died.
    """
    result: torch.Tensor = waited_for(broadcast_async_, tensor, root_rank, name, process_set)
    return result
