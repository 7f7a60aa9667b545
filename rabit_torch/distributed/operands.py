"""Operands of a process group as the engine takes them: memory and reduce operations."""

# torch's stubs list overloads with other argument names, which no caller uses.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from rabit import DType, ReduceOp, TensorView, Unsupported
from rabit_torch.tensors import _DTYPES, check, copy_last, memory_of, row_major

__all__ = ["copying", "dense", "flat", "op_of"]

_OPS = {
    int(getattr(dist.ReduceOp.RedOpType, name)): op
    for name, op in {
        "SUM": ReduceOp.SUM,
        "AVG": ReduceOp.AVERAGE,
        "MIN": ReduceOp.MIN,
        "MAX": ReduceOp.MAX,
        "PRODUCT": ReduceOp.PRODUCT,
        "BAND": ReduceOp.BITWISE_AND,
        "BOR": ReduceOp.BITWISE_OR,
        "BXOR": ReduceOp.BITWISE_XOR,
    }.items()
}


def op_of(options: Any) -> ReduceOp:
    """The reduce operation of torch's options; raises Unsupported where there is none like it."""
    wanted = options.reduceOp
    number = int(getattr(wanted, "op", wanted))
    if number not in _OPS:
        raise Unsupported(
            f"reduce operation {wanted} has no counterpart; use SUM, AVG, MIN, MAX, PRODUCT, BAND, "
            "BOR or BXOR"
        )
    return _OPS[number]


def flat(memory: torch.Tensor, shape: tuple[int, ...] | None = None) -> TensorView:
    """A contiguous tensor as a view of one dimension; bytes where the engine lacks the type."""
    dtype = _DTYPES.get(memory.dtype)
    count = memory.numel()
    if dtype is None:
        width = memory.element_size()
        extents = (count * width,) if shape is None else (*shape[:-1], shape[-1] * width)
        return memory_of(memory, extents, DType.UINT8)
    return memory_of(memory, shape or (count,), dtype)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of the same values, outside of their gradient: itself where it can be."""
    if not tensor.is_cpu or tensor.layout != torch.strided:
        check(tensor, "tensor of a process group")
    return row_major(tensor)


def copying(copies: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """What copies (target, source) when an operation has finished; None: nothing to copy."""
    if not copies:
        return None

    def finish() -> None:
        for target, source in copies:
            copy_last(target, source)

    return finish
