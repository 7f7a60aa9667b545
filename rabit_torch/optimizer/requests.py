"""GradientRequests: what the engine is asked for each gradient; Reduction: by what arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import rabit
from rabit import (
    CompressionCodec,
    InvalidArgument,
    Kind,
    ProcessSet,
    ReduceOp,
    Request,
    global_process_set,
)
from rabit_torch.compression import IDENTITY, Compression, split
from rabit_torch.optimizer.mode import Overlap
from rabit_torch.parameter_state import ParameterState
from rabit_torch.tensors import axis_order, can_travel, empty_in_order, view

__all__ = ["GradientRequests", "Reduction", "order_of"]


@dataclass(frozen=True)
class Reduction:
    """The arguments of DistributedOptimizer that say it, checked; equal on all ranks of `process_set`.

    group_of: the number of the group that a parameter travels with, where it does.
    """

    compression: Any = Compression.none
    op: ReduceOp = ReduceOp.AVERAGE
    predivide_factor: float = 1.0
    process_set: ProcessSet = global_process_set
    overlap: Overlap = "backward"
    backward_passes: int = 1
    priorities: Mapping[str, int] = field(default_factory=dict)
    group_of: Mapping[torch.Tensor, int] = field(default_factory=dict)
    sparse_as_dense: bool = False
    row_sparse: bool | Iterable[str] = False
    find_unused: bool = False

    @property
    def codec(self) -> CompressionCodec:
        """By which the engine encodes gradients while it packs them."""
        codec: CompressionCodec = split(self.compression)[0]
        return codec

    @property
    def compressor(self) -> Any:
        """The object that compresses gradients in Python; None: none does."""
        compressor = split(self.compression)[1]
        return None if compressor is IDENTITY else compressor

    @property
    def can_scatter(self) -> bool:
        """True if gradients can travel in two halves: these take no compression."""
        return not self.codec.spec and self.compressor is None


class GradientRequests:
    """Made once for all parameters of an optimizer; a step only fills in pointers."""

    def __init__(
        self, states: list[ParameterState], engine: rabit.Engine, reduction: Reduction
    ) -> None:
        """states: of all parameters, by index; the list grows with the optimizer."""
        self.engine = engine
        self.reduction = reduction
        self.batch: rabit.Batch | None = None  # in C form; None: to be prepared
        self.has_urgent = False  # False: step() needs all gradients, so that none of them is urgent
        self._states = states
        self._made_for: list[
            tuple[torch.dtype, int]
        ] = []  # type and elements of each of its requests

    def prepare(self) -> rabit.Batch:
        """The requests of all parameters, by index."""
        self.batch = self.engine.prepare([self.of(state) for state in self._states])
        self._made_for = [(state.gradient_dtype, state.parameter.numel()) for state in self._states]
        return self.batch

    def forget(self) -> None:
        """Parameters have been added, or their order or routes have changed."""
        self.batch = None

    def note_kind(self, state: ParameterState, grad: torch.Tensor) -> None:
        """The first gradient of a parameter says what those after it are like: requests are made once."""
        if state.kind is not None:
            raise _changed(state, grad)
        state.kind = (grad.dtype, grad.numel())
        if self.batch is not None and self._made_for[state.index] != state.kind:
            self.forget()

    def of(
        self, state: ParameterState, name: str | None = None, wire: torch.Tensor | None = None
    ) -> Request:
        """The allreduce of a gradient.  name, wire: of what travels for it; None: its own, in its own memory."""
        memory = self._memory(state) if wire is None else view(wire, name or state.name)
        return Request(
            kind=Kind.ALLREDUCE,
            name=name or state.name,
            input=memory,
            output=memory,
            op=self.reduction.op,
            priority=self.priority(state),
            group=self.reduction.process_set.group_on(self.engine),
            codec=self.engine.codec_id(state.route.codec),
            prescale=1.0 / self.reduction.predivide_factor,
            postscale=self.reduction.predivide_factor,
        )

    def priority(self, state: ParameterState) -> int:
        """What the next forward pass needs first runs first.

        NCCL exchanges on one stream: without priorities gradients are put there as they are sent, and
        the host need not see that they are computed.
        """
        if state.priority is not None:
            return state.priority
        if not self.has_urgent and state.parameter.is_cuda and self.engine.has_backend("nccl"):
            return 0
        return len(self._states) - state.place

    def _memory(self, state: ParameterState) -> rabit.TensorView:
        laid_out, order = state.parameter.detach(), order_of(state)
        if not (state.parameter.requires_grad or can_travel(state.gradient_dtype)):
            # Nothing travels for a frozen one.
            laid_out, order = laid_out.new_empty(0, dtype=torch.float32), 0
        elif axis_order(laid_out) != order or laid_out.dtype is not state.gradient_dtype:
            laid_out = empty_in_order(laid_out, order, state.gradient_dtype)
        return view(laid_out, state.name, order)


def order_of(state: ParameterState) -> int:
    """How the gradients of `state` lie in memory when they travel: as its parameter did when that was first needed.

    What is prepared for them is made for this order, and the ranks compare it.
    """
    route = state.route
    if route.order is None:
        route.order = axis_order(state.parameter.detach()) or 0
    return route.order


def _changed(state: ParameterState, grad: torch.Tensor) -> InvalidArgument:
    dtype, count = state.kind or (grad.dtype, grad.numel())
    return InvalidArgument(
        f"gradient '{state.name}' on rank {rabit.rank()} has {grad.numel()} elements of type {grad.dtype}; "
        f"those before had {count} of type {dtype}, and what sends them was made for that. "
        "Convert or resize a model before its first step, or wrap a new optimizer after it, on every rank"
    )
