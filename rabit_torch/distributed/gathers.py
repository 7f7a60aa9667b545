"""Gathers of a group: all_gather, gather."""

# torch's stubs list overloads with other argument names, which no caller uses.
# mypy: disable-error-code="override,assignment,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import rabit
from rabit import Kind
from rabit_torch.distributed.engine_group import EngineGroup
from rabit_torch.distributed.operands import copying, dense, flat
from rabit_torch.distributed.work import Work
from rabit_torch.tensors import is_row_major

__all__ = ["Gathers"]


class Gathers(EngineGroup):
    """Tensors have any type: they travel as bytes."""

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Joins the `input` of all ranks, in rank order, in `output`."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """`all_gather_single` of several pairs."""
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for output, source in zip(outputs, inputs, strict=True):
            whole, mine = output.detach(), dense(source)
            self._check_parts("all_gather", whole, mine)
            memory = whole if is_row_major(whole) else torch.empty_like(whole).contiguous()
            if memory is not whole:
                copies.append((whole, memory))
            handles += self._direct(opts, len(outputs), Kind.ALLGATHER, flat(mine), memory, mine)
        return self._work(handles, list(outputs), copying(copies))

    def allgather(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Work:
        """Gives every rank the tensors of all; their shapes may differ from rank to rank."""
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for outputs, source in zip(output_lists, inputs, strict=True):
            mine = dense(source)
            total = sum(output.numel() for output in outputs)
            whole = mine.new_empty(total)
            handles += self._direct(opts, len(inputs), Kind.ALLGATHER, flat(mine), whole, mine)
            parts = whole.split([output.numel() for output in outputs])
            copies.extend(
                (output.detach(), part.reshape(output.shape))
                for output, part in zip(outputs, parts, strict=True)
            )
        return self._work(handles, [list(each) for each in output_lists], copying(copies))

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Work:
        """`allgather` of several tensors; output_lists[rank][index]."""
        return self.allgather(list(zip(*output_lists, strict=True)), inputs, opts)

    def gather(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any,
    ) -> Work:
        """Gives the root the tensors of all ranks, which have one shape."""
        (source,) = inputs
        mine = dense(source)
        is_root = opts.rootRank == self._engine.rank
        outputs = list(output_lists[0]) if is_root else []
        whole = mine.new_empty(mine.numel() * self._engine.size if is_root else 0)
        view = flat(mine)
        key = (Kind.GATHER, view.count, view.dtype)
        target = flat(whole) if is_root else None

        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.GATHER, name, view, target, root=opts.rootRank)

        handles = self._start(opts, 1, key, None, make, None, (mine, whole))
        parts = whole.split(mine.numel()) if is_root and mine.numel() else []
        copies = [
            (output.detach(), part.reshape(output.shape))
            for output, part in zip(outputs, parts, strict=False)
        ]
        return self._work(handles, outputs, copying(copies))

    # Older names for the same operations.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
