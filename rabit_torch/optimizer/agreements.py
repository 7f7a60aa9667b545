"""Gradients that are missing on some ranks: what is sent for them, and who misses which."""

from __future__ import annotations

import torch

import rabit
from rabit import Kind, ProcessSet, ReduceOp, Request
from rabit_torch.parameter_state import ParameterState
from rabit_torch.tensors import view

__all__ = ["agree_on_any", "no_gradient"]


def no_gradient(state: ParameterState) -> torch.Tensor:
    """A gradient of zeros for a parameter that took no part; sparse where earlier ones were."""
    parameter = state.parameter.detach()
    if state.is_dense:
        return torch.zeros_like(parameter)
    return torch.sparse_coo_tensor(
        parameter.new_zeros(1, 0, dtype=torch.int64),
        parameter.new_zeros(0, *parameter.shape[1:]),
        parameter.shape,
        check_invariants=False,
    )


def agree_on_any(flags: list[bool], name: str, process_set: ProcessSet) -> frozenset[int]:
    """The positions of the flags that some rank of the set has set.  Blocks."""
    engine = rabit.default_engine()
    bits = torch.tensor(flags, dtype=torch.uint8)
    memory = view(bits, name)
    request = Request(
        kind=Kind.ALLREDUCE,
        name=name,
        input=memory,
        output=memory,
        op=ReduceOp.MAX,
        priority=(1 << 31) - 1,
        group=process_set.group_on(engine),
    )
    engine.submit([request])[0].wait()
    return frozenset(index for index, value in enumerate(bits.tolist()) if value)
