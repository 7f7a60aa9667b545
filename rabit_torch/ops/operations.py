"""The operations of rabit on torch tensors: their Adapter, and the adaptive sum, which is made of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import rabit
from rabit import Kind, ProcessSet, ReduceOp, TensorView
from rabit.framework import (
    Adapter,
    Draft,
    Finish,
    Operations,
    engine_for_work,
    group_on,
    output_array,
)
from rabit_torch.ops.adasum import Adasum, Rounds, check_floats, start_adasum
from rabit_torch.ops.arguments import checked_splits, reduce_op, scatter_op
from rabit_torch.ops.handles import JoinedHandle, TensorHandle, TorchHandle
from rabit_torch.results import tensor_of
from rabit_torch.tensors import axis_order, check, copy_last, is_row_major, row_major, view

__all__ = ["STARTED", "WAITED"]


class TorchAdapter(Adapter[torch.Tensor]):
    """Dense tensors of the CPU and of CUDA."""

    handle = TensorHandle
    like = staticmethod(torch.empty_like)

    def op(self, op: Any, draft: Draft) -> ReduceOp:
        return scatter_op(op, str(draft))

    def source(self, tensor: torch.Tensor, draft: Draft) -> TensorView:
        return view(row_major(check(tensor, draft.name)), draft.name)

    def target(
        self, tensor: torch.Tensor, draft: Draft, *, is_read: bool, any_order: bool = False
    ) -> tuple[TensorView, Finish]:
        place = check(tensor, draft.name, is_written=True).detach()
        # A channels_last gradient needs no copy: ranks compare its order.  Other collectives carry logical values.
        order = axis_order(place) if any_order else 0 if is_row_major(place) else None
        if order is not None:
            return view(place, draft.name, order), lambda _: tensor
        memory = row_major(place) if is_read else place.new_empty(place.shape)

        def finish(_: Any) -> torch.Tensor:
            copy_last(place, memory)
            return tensor

        return view(memory, draft.name), finish

    def empty(
        self, tensor: torch.Tensor, source: TensorView, shape: tuple[int, ...]
    ) -> tuple[torch.Tensor, TensorView]:
        made = tensor.detach().new_empty(shape)
        return made, view(made, None)

    def result(self, tensor: torch.Tensor) -> Finish:
        # The result refers to its handle, and that to this function: with the tensor itself, inputs would live as long.
        like = tensor.detach().new_empty(0)
        return lambda handle: tensor_of(output_array(handle), like)

    def composed(
        self,
        draft: Draft,
        given: Any,
        process_set: ProcessSet,
        arguments: tuple[Any, ...],
        *,
        is_in_place: bool,
    ) -> TorchHandle | None:
        if draft.kind != Kind.ALLREDUCE or arguments[1] != Adasum:
            return None
        return _start_adaptive(is_in_place, draft, given, process_set, arguments)

    def splits(self, splits: Any, draft: Draft) -> list[int] | None:
        return checked_splits(splits, draft.name)

    def received(self, splits: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(splits, dtype=torch.int32)

    def started(self, handle: rabit.Handle | rabit.GroupHandle) -> TorchHandle:
        return JoinedHandle((handle,))


def _start_adaptive(
    is_in_place: bool,
    draft: Draft,
    given: Any,
    process_set: ProcessSet,
    arguments: tuple[Any, ...],
) -> TorchHandle:
    """Starts a call of allreduce, or of its grouped form, with op Adasum."""
    average, op, prescale, postscale, *_ = arguments
    is_grouped = draft.count is not None
    tensors = list(given) if is_grouped else [given]
    base = draft.name
    names = [f"{base}.{index}" for index in range(len(tensors))] if is_grouped else [base]
    with draft:
        reduce_op(op, average)
        for tensor, name in zip(tensors, names, strict=True):
            check(tensor, name, is_written=is_in_place)
        check_floats(tensors, names)
    rounds = Rounds(STARTED.allreduce_, STARTED.allgather, _start_alltoall)
    started = start_adasum(rounds, tensors, base, names, prescale, postscale, process_set)

    def finish() -> Any:
        results = started.outcome()
        if is_in_place:
            for tensor, result in zip(tensors, results, strict=True):
                copy_last(tensor.detach(), result)
            results = tensors
        return results if is_grouped else results[0]

    return JoinedHandle([started], finish)


def _start_alltoall(
    tensor: torch.Tensor, splits: Sequence[int], name: str, process_set: ProcessSet
) -> TorchHandle:
    """Starts an alltoall whose name in the engine is `name` as it is; the handle gives the rows."""
    engine = engine_for_work()
    draft = Draft(engine, Kind.ALLTOALL, name, group_on(process_set, engine))
    request = STARTED.all_to_all.request(draft, tensor, (0, ""), (splits, False))
    return JoinedHandle(engine.submit((request,)))


STARTED: Operations[torch.Tensor] = Operations(TorchAdapter())
WAITED = STARTED.waiting()
