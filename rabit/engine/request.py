"""Request: one operation to submit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rabit.engine.handle import Finish
from rabit.engine.tensor import TensorView
from rabit.types import Kind, ReduceOp

__all__ = ["Request"]


@dataclass(slots=True)
class Request:
    """One operation.

    output: where the result goes; may be the input.  None: the engine allocates it.
    root: global rank; for SEND and RECV the other rank.
    group, codec, backend: numbers from the same engine; backend -1: that of the group.
    splits: alltoall, scatter: rows for each rank of the group.
    residual, seed: of the codec; see rabit.allreduce.
    finish: turns the finished handle into what `Handle.result` returns.
    """

    kind: Kind
    name: str
    input: TensorView | None = None
    output: TensorView | None = None
    op: ReduceOp = ReduceOp.SUM
    root: int = -1
    priority: int = 0
    group: int = 0
    codec: int = 0
    backend: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    splits: Sequence[int] | None = None
    residual: TensorView | None = None
    seed: int = 0
    finish: Finish | None = None
