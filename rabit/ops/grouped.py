"""Grouped forms: several tensors in one call, which become ready together.

The shared arguments are described in rabit/ops/reductions.py; tensor i of a call named "w" is named "w.i".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rabit.compression import Compression, CompressionCodec
from rabit.engine.engine import Engine
from rabit.engine.group_handle import GroupHandle
from rabit.engine.handle import Handle
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.engine.request import Request
from rabit.engine.tensor import view_input, view_output
from rabit.errors import InvalidArgument
from rabit.ops.reductions import Call, as_type_of, empty_like, scale
from rabit.types import Kind, ReduceOp

__all__ = [
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
]


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: CompressionCodec = Compression.none,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> GroupHandle:
    """Like `grouped_allreduce`, but returns a GroupHandle at once."""
    arguments = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    return _start_allreduces(False, tensors, name, process_set, engine, arguments)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: CompressionCodec = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> list[Any]:
    """`allreduce` of every tensor of the list; returns the list of results."""
    return grouped_allreduce_async(
        tensors,
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        compression=compression,
        priority=priority,
        engine=engine,
        backend=backend,
    ).result()


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: CompressionCodec = Compression.none,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> GroupHandle:
    """Like `grouped_allreduce_`, but returns a GroupHandle at once."""
    arguments = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    return _start_allreduces(True, tensors, name, process_set, engine, arguments)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: CompressionCodec = Compression.none,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> list[Any]:
    """`allreduce_` of every tensor of the list; returns the list."""
    return grouped_allreduce_async_(
        tensors,
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        compression=compression,
        priority=priority,
        engine=engine,
        backend=backend,
    ).result()


def _start_allreduces(
    is_in_place: bool,
    tensors: Sequence[Any],
    name: str | None,
    process_set: ProcessSet,
    engine: Engine | None,
    arguments: tuple[Any, ...],
) -> GroupHandle:
    """arguments: the others of `grouped_allreduce_async`, in their order."""
    average, op, prescale, postscale, compression, priority, backend = arguments
    call = Call(engine, Kind.ALLREDUCE, name, process_set, priority, backend)
    _check_list(call, tensors)
    caller = "grouped_allreduce_" if is_in_place else "grouped_allreduce"
    again = call.engine.again_grouped(caller, name, call.group, arguments, tensors)
    if again.comes_again and (is_in_place or all(type(each) is np.ndarray for each in tensors)):
        targets = None if is_in_place else [np.empty(each.shape, each.dtype) for each in tensors]
        handle = again.start(targets)
        if handle is not None:
            return handle
    requests: list[Request] = []
    with call:
        codec = call.engine.codec_id(compression)
        for tensor, each in _members(call, tensors):
            if is_in_place:
                target = view_output(tensor, each)
                request = each.request(target, target, finish=_returning(tensor))
            else:
                source = view_input(tensor, each)
                result, target = empty_like(source, tensor)
                request = each.request(source, target, finish=_returning(result))
            scale(request, op, average, prescale, postscale)
            request.codec = codec
            requests.append(request)
    handle = GroupHandle(call.engine.submit(requests))
    again.keep(requests)
    return handle


def grouped_allgather_async(
    tensors: Sequence[Any],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> GroupHandle:
    """Like `grouped_allgather`, but returns a GroupHandle at once."""
    call = Call(engine, Kind.ALLGATHER, name, process_set, priority, backend)
    _check_list(call, tensors)
    arguments = (priority, backend)
    again = call.engine.again_grouped("grouped_allgather", name, call.group, arguments, tensors)
    if again.comes_again and all(type(each) is np.ndarray for each in tensors):
        handle = again.start(finish=as_type_of)
        if handle is not None:
            return handle
    requests: list[Request] = []
    with call:
        for tensor, each in _members(call, tensors):
            source = each.with_rows(view_input(tensor, each))
            requests.append(each.request(source, None, finish=as_type_of(tensor)))
    group = GroupHandle(call.engine.submit(requests))
    again.keep(requests)
    return group


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> list[Any]:
    """`allgather` of every tensor of the list; returns the list of results."""
    return grouped_allgather_async(
        tensors, name, process_set, priority=priority, engine=engine, backend=backend
    ).result()


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> GroupHandle:
    """Like `grouped_reducescatter`, but returns a GroupHandle at once."""
    call = Call(engine, Kind.REDUCESCATTER, name, process_set, priority, backend)
    _check_list(call, tensors)
    members = call.engine.members(call.group)
    share = functools.partial(_share_of, len(members), members.index(call.engine.rank))
    arguments = (op, prescale_factor, postscale_factor, priority, backend)
    again = call.engine.again_grouped("grouped_reducescatter", name, call.group, arguments, tensors)
    if again.comes_again and all(type(each) is np.ndarray and each.ndim for each in tensors):
        handle = again.start([np.empty(share(each.shape), each.dtype) for each in tensors])
        if handle is not None:
            return handle
    requests: list[Request] = []
    with call:
        for tensor, each in _members(call, tensors):
            source = each.with_rows(view_input(tensor, each))
            result, target = empty_like(source, tensor, share(source.shape))
            request = each.request(source, target, finish=_returning(result))
            scale(request, op, None, prescale_factor, postscale_factor)
            requests.append(request)
    group = GroupHandle(call.engine.submit(requests))
    again.keep(requests)
    return group


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> list[Any]:
    """`reducescatter` of every tensor of the list; returns the list of results."""
    return grouped_reducescatter_async(
        tensors,
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        priority=priority,
        engine=engine,
        backend=backend,
    ).result()


def _share_of(size: int, index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what rank `index` of `size` gets of a reducescatter."""
    rows = shape[0] // size + (1 if index < shape[0] % size else 0)
    return (rows, *shape[1:])


def _returning(result: Any) -> Callable[[Handle], Any]:
    return lambda _: result


def _members(call: Call, tensors: Sequence[Any]) -> list[tuple[Any, Call]]:
    """Each tensor with the call that names it."""
    return [(tensor, call.member(f"{call.name}.{index}")) for index, tensor in enumerate(tensors)]


def _check_list(call: Call, tensors: Sequence[Any]) -> None:
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise InvalidArgument(
            f"{call}: a grouped operation takes a list of one or more tensors, not "
            f"{'an empty ' if isinstance(tensors, (list, tuple)) else ''}{type(tensors).__name__}. "
            "For one tensor use the form without 'grouped_'."
        )
    call.count = len(tensors)
