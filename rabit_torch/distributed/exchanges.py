"""Exchanges of a group: broadcast, scatter, all_to_all."""

# torch's stubs list overloads with other argument names, which no caller uses.
# mypy: disable-error-code="override,assignment,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import rabit
from rabit import Kind, TensorView
from rabit_torch.distributed.engine_group import EngineGroup
from rabit_torch.distributed.operands import copying, dense, flat
from rabit_torch.distributed.work import Work
from rabit_torch.tensors import is_row_major

__all__ = ["Exchanges"]


class Exchanges(EngineGroup):
    """Tensors have any type: they travel as bytes."""

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        """Gives every rank the tensors of the root."""
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        root = opts.rootRank
        for tensor in tensors:
            value = tensor.detach()
            memory = dense(value)
            if memory.data_ptr() != value.data_ptr():
                copies.append((value, memory))
            view = flat(memory)

            def make(name: str, view: TensorView = view) -> rabit.Request:
                return rabit.Request(Kind.BROADCAST, name, view, view, root=root)

            key = (Kind.BROADCAST, view.count, view.dtype)
            pointers = (view.data, view.data, view.stream)
            handles += self._start(opts, len(tensors), key, root, make, pointers, memory)
        return self._work(handles, list(tensors), copying(copies))

    def scatter(
        self,
        outputs: Sequence[torch.Tensor],
        input_lists: Sequence[Sequence[torch.Tensor]],
        opts: Any,
    ) -> Work:
        """Gives each rank the tensor of its number in the root's list; all have one shape."""
        (output,) = outputs
        is_root = opts.rootRank == self._engine.rank
        parts = [dense(each).reshape(-1) for each in input_lists[0]] if is_root else []
        whole = torch.cat(parts) if is_root else output.detach().new_empty(0)
        width = output.numel()
        memory = output.detach().new_empty(width)
        view = flat(whole, (self._engine.size if is_root else 0, width))
        splits = [1] * self._engine.size if is_root else None
        target = flat(memory)

        def make(name: str) -> rabit.Request:
            return rabit.Request(
                Kind.SCATTER, name, view, target, root=opts.rootRank, splits=splits
            )

        key = (Kind.SCATTER, target.count, target.dtype)
        handles = self._start(opts, 1, key, None, make, None, (whole, memory))
        return self._work(
            handles, [output], copying([(output.detach(), memory.reshape(output.shape))])
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any = None,
    ) -> Work:
        """Sends rows of `input` to every rank and puts the rows received into `output`."""
        source = dense(input)
        width = source[0].numel() if source.shape[0] else output.detach()[:1].numel()
        memory = output.detach()
        if not is_row_major(memory):
            memory = output.detach().new_empty(output.shape)
        view = flat(source, (source.shape[0], width))
        splits = list(input_split_sizes or []) or self._even(source.shape[0])
        handles = self._exchange(opts, view, splits, memory, source)
        copies = [] if memory.data_ptr() == output.data_ptr() else [(output.detach(), memory)]
        return self._work(handles, [output], copying(copies))

    def alltoall(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Sends inputs[r] to rank r and receives outputs[r] from it."""
        source = torch.cat([dense(each).reshape(-1) for each in inputs])
        memory = source.new_empty(sum(output.numel() for output in outputs))
        view = flat(source, (source.numel(), 1))
        splits = [each.numel() for each in inputs]
        handles = self._exchange(opts, view, splits, memory, source)
        parts = memory.split([output.numel() for output in outputs])
        copies = [
            (output.detach(), part.reshape(output.shape))
            for output, part in zip(outputs, parts, strict=True)
        ]
        return self._work(handles, list(outputs), copying(copies))

    def _exchange(
        self,
        opts: Any,
        view: TensorView,
        splits: list[int],
        memory: torch.Tensor,
        source: torch.Tensor,
    ) -> list[rabit.Handle]:
        target = flat(memory)

        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.ALLTOALL, name, view, target, splits=splits)

        key = (Kind.ALLTOALL, view.dtype)
        return self._start(opts, 1, key, None, make, None, (source, memory))

    def _even(self, rows: int) -> list[int]:
        size = self._engine.size
        if rows % size:
            raise rabit.InvalidArgument(
                f"all_to_all_single on rank {self._engine.rank}: {rows} rows cannot be divided "
                f"evenly among {size} ranks; pass input_split_sizes"
            )
        return [rows // size] * size

    # An older name for the same operation.
    alltoall_base = all_to_all_single
