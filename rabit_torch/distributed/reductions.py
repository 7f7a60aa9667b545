"""Reductions of a group: all_reduce, reduce, reduce_scatter."""

# torch's stubs list overloads with other argument names, which no caller uses.
# mypy: disable-error-code="override,assignment,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import rabit
from rabit import DType, Kind, ReduceOp
from rabit_torch.distributed.engine_group import EngineGroup
from rabit_torch.distributed.operands import copying, dense, flat, op_of
from rabit_torch.distributed.work import Work
from rabit_torch.ops.sparse import allreduce_sparse_on
from rabit_torch.tensors import (
    _DTYPES,
    axis_order,
    check,
    copy_last,
    is_row_major,
    memory_of,
    row_major,
    stream_of,
)

__all__ = ["Reductions"]


class Reductions(EngineGroup):
    """The engine knows which types can be reduced by which operation, and refuses the others."""

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Reduces every tensor in place; the result is equal on all ranks."""
        op = ReduceOp.SUM if opts is None else op_of(opts)
        if any(tensor.is_sparse for tensor in tensors):
            return self._allreduce_sparse(tensors, op)
        return self._reduced(Kind.ALLREDUCE, tensors, op, -1, opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """The same as `allreduce`: the engine fuses what becomes ready together."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        """Reduces every tensor in place on the root; the others keep theirs."""
        return self._reduced(Kind.REDUCE, tensors, op_of(opts), opts.rootRank, opts)

    def _reduced(
        self,
        kind: Kind,
        tensors: Sequence[torch.Tensor],
        op: ReduceOp,
        root: int,
        opts: Any = None,
    ) -> Work:
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        receives = root in (-1, self._engine.rank)
        for tensor in tensors:
            value = check(tensor, str(kind)).detach()
            order, memory = axis_order(value), value
            if order is None:
                order, memory = 0, row_major(value)
                copies.append((value, memory))
            target = memory if receives else torch.empty_like(memory)
            count, dtype = memory.numel(), _DTYPES[memory.dtype]
            pointers = (memory.data_ptr(), target.data_ptr(), stream_of(memory))

            def make(
                name: str,
                places: tuple[torch.Tensor, torch.Tensor] = (memory, target),
                count: int = count,
                dtype: DType = dtype,
                order: int = order,
            ) -> rabit.Request:
                source, result = (memory_of(place, (count,), dtype, order) for place in places)
                return rabit.Request(kind, name, source, result, op, root)

            key, variant, owners = (kind, count, dtype), (op, root, order), (memory, target)
            handles += self._start(opts, len(tensors), key, variant, make, pointers, owners)

        return self._work(handles, list(tensors), copying(copies) if receives else None)

    def _allreduce_sparse(self, tensors: Sequence[torch.Tensor], op: ReduceOp) -> Work:
        started = [allreduce_sparse_on(self._lines, self._engine, tensor, op) for tensor in tensors]

        def finish() -> None:
            with torch.no_grad():  # A detached sparse tensor would not share what it is given.
                for tensor, (_, result) in zip(tensors, started, strict=True):
                    tensor.copy_(result())

        handles = [handle for each, _ in started for handle in each]
        return self._work(handles, list(tensors), finish)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Reduces `input` (size equal parts) and gives each rank its part in `output`."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """`reduce_scatter_single` of several pairs."""
        op = ReduceOp.SUM if opts is None else op_of(opts)
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for output, source in zip(outputs, inputs, strict=True):
            part, whole = output.detach(), row_major(check(source, str(Kind.REDUCESCATTER)))
            self._check_parts("reduce_scatter", whole, part)
            memory = part if is_row_major(part) else torch.empty_like(part).contiguous()
            if memory is not part:
                copies.append((part, memory))
            rows = flat(whole, (self._engine.size, part.numel()))
            handles += self._direct(opts, len(outputs), Kind.REDUCESCATTER, rows, memory, whole, op)
        return self._work(handles, list(outputs), copying(copies))

    def reduce_scatter(
        self,
        outputs: Sequence[torch.Tensor],
        input_lists: Sequence[Sequence[torch.Tensor]],
        opts: Any = None,
    ) -> Work:
        """Reduces the list of tensors and gives each rank the one of its number."""
        (output,), (parts,) = outputs, input_lists
        whole = torch.cat([dense(part).reshape(-1) for part in parts])
        if all(part.numel() == output.numel() for part in parts):
            return self.reduce_scatter_single(output, whole, opts)
        op = ReduceOp.SUM if opts is None else op_of(opts)
        everything = self._reduced(Kind.ALLREDUCE, [whole], op, -1)
        first = sum(part.numel() for part in parts[: self._engine.rank])

        def finish() -> None:
            mine = whole[first : first + output.numel()]
            copy_last(output.detach(), mine.reshape(output.shape))

        return self._work(everything._open, [output], finish)

    # Older names for the same operations.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
