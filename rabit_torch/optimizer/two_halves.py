"""ScatterGather: an allreduce in two halves, so that the second can wait for the forward pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import rabit
from rabit import Handle, Kind, Request
from rabit.framework import Gate, Task, driver_of, finished
from rabit_torch.optimizer.requests import GradientRequests
from rabit_torch.tensors import stream_of, view

__all__ = ["ScatterGather"]


class ScatterGather:
    """The prepared halves for one buffer: every rank sums its part, then all collect the parts.

    Source: Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained All-Reduce
    Pipelining", 2023.
    """

    def __init__(self, engine: rabit.Engine, request: Request, index: int, size: int) -> None:
        """request: the allreduce that this stands for, of a tensor.  index, size: of this rank in its
        group."""
        assert request.input is not None
        count = request.input.count
        rows = count // size + (index < count % size)
        name = request.name
        whole = dataclasses.replace(request.input, shape=(count,))
        like: torch.Tensor = request.input.keepalive
        buffer = like.new_empty(rows)
        part = view(buffer, name)
        self._part = buffer
        self._engine = engine
        self._name = name
        self._sum: Handle | None = None
        self._gate: Gate | None = None
        self.task: Task | None = None  # of the last start; it finishes with the second half
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

    @classmethod
    def of(cls, request: Request, requests: GradientRequests) -> ScatterGather:
        """For an allreduce that `requests` has made."""
        members = requests.reduction.process_set
        return cls(requests.engine, request, members.rank(), members.size())

    def start(self, pointer: int, keepalive: torch.Tensor) -> Task:
        """Starts the first half on memory of the right size, that of `keepalive`; does not block.

        The second starts after `open`; the task has finished when the memory holds the sum.
        """
        part = self._part.data_ptr()
        stream = stream_of(keepalive)
        self._batch.set_pointers(0, pointer, part, stream)
        self._batch.set_pointers(1, part, pointer, stream)
        keep = (self, keepalive)
        (self._sum,) = self._batch.submit([0], [keep])
        self._gate = Gate()
        rounds = self._rounds(self._sum, self._gate, keep)
        self.task = driver_of(self._engine).spawn(lambda _: rounds, self._name)
        return self.task

    def open(self) -> None:
        """Lets the second half start when the first has finished."""
        if self._gate is not None:
            self._gate.is_open = True

    @property
    def first_half(self) -> Handle | None:
        """What gives the sum; None before the first start."""
        return self._sum

    def wait_for_sum(self) -> None:
        """Waits for the first half."""
        if self._sum is not None:
            self._sum.wait()

    async def _rounds(self, first: Handle, gate: Gate, keepalive: Any) -> None:
        await finished([first])
        await gate.passed()
        await finished(self._batch.submit([1], [keepalive]))
