"""ScatterGather: an allreduce in two halves, so that the second can wait for the forward pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import rabit
from rabit import Handle, Kind, Request, TensorView
from rabit_torch.tensors import torch_dtype, view

__all__ = ["ScatterGather", "ScatterGatherHandle"]


class ScatterGather:
    """The prepared halves for one buffer: every rank sums its part, then all collect the parts.

    Source: Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained All-Reduce
    Pipelining", 2023.
    """

    def __init__(self, engine: rabit.Engine, request: Request, index: int, size: int) -> None:
        """request: the allreduce that this stands for.  index, size: of this rank in its group."""
        assert request.input is not None
        count = request.input.count
        rows = count // size + (index < count % size)
        name = request.name
        whole = TensorView(request.input.data, (count,), request.input.dtype)
        buffer = torch.empty(rows, dtype=torch_dtype(request.input.dtype))
        part = view(buffer, name)
        self._part = buffer
        self._batch = engine.prepare(
            [
                dataclasses.replace(
                    request,
                    kind=Kind.REDUCESCATTER,
                    name=f"{name}.scatter",
                    input=whole,
                    output=part if rows else None,
                ),
                Request(
                    kind=Kind.ALLGATHER,
                    name=f"{name}.gather",
                    input=part,
                    output=whole,
                    priority=request.priority,
                    group=request.group,
                ),
            ]
        )

    def start(self, pointer: int, keepalive: Any) -> ScatterGatherHandle:
        """Starts the first half on memory of the right size; does not block."""
        part = self._part.data_ptr()
        self._batch.set_pointers(0, pointer, part)
        self._batch.set_pointers(1, part, pointer)
        (handle,) = self._batch.submit([0], [(self, keepalive)])
        return ScatterGatherHandle(self._batch, handle, (self, keepalive))


class ScatterGatherHandle:
    """Both halves of one exchange in flight."""

    __slots__ = ("_batch", "_gather", "_has_failed", "_keepalive", "_scatter")

    def __init__(self, batch: rabit.Batch, scatter: Handle, keepalive: Any) -> None:
        self._batch = batch
        self._scatter = scatter
        self._gather: Handle | None = None
        self._has_failed = False
        self._keepalive = keepalive

    def start_gather(self) -> None:
        """Waits for the first half and starts the second, unless it has been started."""
        if self._gather is None:
            try:
                self._scatter.wait()
                (self._gather,) = self._batch.submit([1], [self._keepalive])
            except rabit.RabitError:
                self._has_failed = True
                raise

    def done(self) -> bool:
        """True when `wait` would not block."""
        return self._has_failed or (self._gather is not None and self._gather.done())

    def wait(self) -> None:
        """Blocks until the memory holds the sum.  Raises what went wrong."""
        self.start_gather()
        assert self._gather is not None
        self._gather.wait()
