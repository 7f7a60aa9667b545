"""Routes of gradients that are allreduced: plain, coded with operands, in two halves, compressed by hand, sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rabit import CompressionCodec, RabitError
from rabit.framework import Operands
from rabit_torch.ops.sparse import allreduce_sparse, refuse_sparse
from rabit_torch.optimizer.missing import no_gradient
from rabit_torch.optimizer.requests import GradientRequests, order_of
from rabit_torch.optimizer.route_queue import RouteQueue
from rabit_torch.optimizer.two_halves import ScatterGather
from rabit_torch.parameter_state import ParameterState, Route
from rabit_torch.tensors import axis_order, copy_last, empty_in_order, keep_for_stream, row_major

__all__ = ["ByHand", "Coded", "Halved", "Plain", "Sparse"]

# Why a rank refuses the dense exchange of a gradient; the others find it in their error.
_GOES_SPARSE = (
    "its gradient is sparse. Let it be sparse or dense on every rank, or pass sparse_as_dense=True"
)
_IS_DENSE = _GOES_SPARSE.replace("is sparse", "is dense")


class Plain(Route):
    """The engine reduces the gradient where it lies, or a copy in the order of axes that the ranks agree on."""

    __slots__ = ("_queue", "_wire")

    may_pack = True

    def __init__(self, state: ParameterState, codec: CompressionCodec, queue: RouteQueue) -> None:
        super().__init__(state, codec)
        self._queue = queue
        self._wire: torch.Tensor | None = None

    def start(self, grad: torch.Tensor) -> None:
        self._queue.put(self, self._wire_of(grad))

    def finish(self) -> None:
        try:
            self.handle.wait()
        except RabitError as error:
            if not self.gives_way(error):
                raise
            self.state.route.finish()
            return
        self.handle = None
        wire, self._wire = self._wire, None
        grad = self.state.grad
        if grad is not None and wire is not None and wire is not grad:
            copy_last(grad, wire)
        if grad is not None and self.state.sparse_dim is not None:
            self.state.give(grad)

    def drop(self) -> None:
        self.handle = self._wire = None

    def gives_way(self, error: RabitError) -> bool:
        """Sends no rows in place of zeros for an unused parameter, which a rank with a sparse gradient refuses."""
        state, grad, queue = self.state, self.state.grad, self._queue
        if _GOES_SPARSE not in str(error) or grad is None or grad.is_sparse:
            return False
        if grad.any():
            refuse_sparse(state.name, _IS_DENSE, queue.requests.reduction.process_set)
            return False
        self.drop()
        state.route = Sparse(state, self.codec, queue, is_announced=True)
        rows = no_gradient(state)
        state.give(rows)
        state.route.start(rows)
        return True

    def _wire_of(self, grad: torch.Tensor) -> torch.Tensor:
        order = self.order if self.order is not None else order_of(self.state)
        wire = grad
        if axis_order(grad) != order:
            wire = empty_in_order(grad, order, grad.dtype).copy_(grad.detach())
        self._wire = wire
        return wire


class Coded(Plain):
    """The engine's codec takes a residual or a seed, which are others in every step."""

    __slots__ = ("_operands",)

    may_pack = False

    def __init__(
        self,
        state: ParameterState,
        codec: CompressionCodec,
        queue: RouteQueue,
        operands: Callable[[], Operands],
    ) -> None:
        super().__init__(state, codec, queue)
        self._operands = operands

    def start(self, grad: torch.Tensor) -> None:
        self._queue.put(self, self._wire_of(grad), self._operands())


class Halved(Plain):
    """The sums leave in the backward pass, their distribution in the next forward pass."""

    __slots__ = ("_halves",)

    def __init__(self, state: ParameterState, codec: CompressionCodec, queue: RouteQueue) -> None:
        super().__init__(state, codec, queue)
        self._halves: ScatterGather | None = None

    def start(self, grad: torch.Tensor) -> None:
        wire, requests = self._wire_of(grad), self._queue.requests
        if self._halves is None:
            self._halves = ScatterGather.of(requests.of(self.state), requests)
        self.handle = self._halves.start(wire.data_ptr(), wire)
        self._queue.add_halves(self.state.place, self._halves)


class ByHand(Route):
    """Python code compresses the gradient, and the engine reduces what that gives."""

    __slots__ = ("_compressor", "_context", "_requests", "_wire")

    def __init__(
        self,
        state: ParameterState,
        codec: CompressionCodec,
        requests: GradientRequests,
        compressor: Any,
    ) -> None:
        super().__init__(state, codec)
        self._requests = requests
        self._compressor = compressor
        self._context: Any = None
        self._wire: torch.Tensor | None = None

    def start(self, grad: torch.Tensor) -> None:
        self._wire, self._context = self._compressor.compress(row_major(grad))
        request = self._requests.of(self.state, wire=self._wire.contiguous())
        (self.handle,) = self._requests.engine.submit([request])

    def finish(self) -> None:
        self.handle.wait()
        self.handle = None
        wire, context, self._wire, self._context = self._wire, self._context, None, None
        grad = self.state.grad
        if grad is None or wire is None:
            return
        copy_last(grad, self._compressor.decompress(wire, context))
        keep_for_stream(wire)
        if self.state.sparse_dim is not None:
            self.state.give(grad)


class Sparse(Plain):
    """Touched rows of every rank are gathered and added up; a gradient that is dense again goes as a plain one."""

    __slots__ = ("_is_announced",)

    is_sparse = True
    may_pack = False

    def __init__(
        self,
        state: ParameterState,
        codec: CompressionCodec,
        queue: RouteQueue,
        *,
        is_announced: bool,
    ) -> None:
        """is_announced: the other ranks know that gradients of this parameter are sparse."""
        super().__init__(state, codec, queue)
        self._is_announced = is_announced

    def start(self, grad: torch.Tensor) -> None:
        if not grad.is_sparse:
            super().start(grad)
            return
        requests, state = self._queue.requests, self.state
        if not self._is_announced:
            # A rank without this gradient does not know yet that it is sparse, and sends dense zeros.
            # They must not wait for this rank: it sends none of its rows instead (see RouteQueue).
            requests.engine.refuse(requests.of(state), _GOES_SPARSE)
            self._is_announced = True
        reduction = requests.reduction
        self.handle = allreduce_sparse(grad, state.name, reduction.op, reduction.process_set)

    def finish(self) -> None:
        grad = self.state.grad
        if grad is None or not grad.is_sparse:
            super().finish()
            return
        result = self.handle.wait()
        self.handle = None
        self.state.give(result)
