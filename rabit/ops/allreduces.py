"""allreduce: blocking and asynchronous, into a new array and in place.

The shared arguments are described in rabit/ops/reductions.py.  A call that comes again, with equal arguments
and a tensor of the same type and shape, is not prepared anew; see rabit/engine/repeats.py.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from rabit.compression import Compression, CompressionCodec
from rabit.engine.engine import Engine
from rabit.engine.handle import Handle
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.engine.request import Request
from rabit.engine.tensor import TensorView, view_input, view_output
from rabit.ops.again import Again
from rabit.ops.reductions import Call, empty_like, scale
from rabit.types import CPU, Kind, ReduceOp

__all__ = ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_"]


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: CompressionCodec = Compression.none,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
    residual: Any = None,
    seed: int = 0,
) -> Handle:
    """Like `allreduce`, but returns a Handle at once."""
    arguments = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    is_alone = residual is not None or seed != 0 or type(tensor) is not np.ndarray
    call = _Allreduce(
        "allreduce",
        Kind.ALLREDUCE,
        tensor,
        name,
        process_set,
        engine,
        arguments,
        is_alone=is_alone,
    )
    return call.begin(call.new_output(), process_set, (residual, seed))


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: CompressionCodec = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
    residual: Any = None,
    seed: int = 0,
) -> Any:
    """Combines `tensor` of every rank element by element; the same result on every rank.

    tensor: same shape and dtype on all ranks.  op: Average unless given.
    prescale_factor, postscale_factor: multiplied before and after the combination.
    average: Horovod's old form of `op`; True is Average, False is Sum.
    residual: what lossy compressions have not sent yet; an array like `tensor`, zeros at first, that
    this call reads and updates and the next one of the same tensor takes again.  None: it is lost.
    seed: of the random numbers of Compression.levels and Compression.topk; equal on all ranks and
    another one in every call, such as the number of the step.
    Returns a new array.  Blocks.  Raises Mismatch if shape, dtype or op differ between ranks,
    PeerLost if a rank died.
    """
    arguments = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    is_alone = residual is not None or seed != 0 or type(tensor) is not np.ndarray
    call = _Allreduce(
        "allreduce",
        Kind.ALLREDUCE,
        tensor,
        name,
        process_set,
        engine,
        arguments,
        is_alone=is_alone,
    )
    return call.perform(call.new_output(), process_set, (residual, seed))


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: CompressionCodec = Compression.none,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
    residual: Any = None,
    seed: int = 0,
) -> Handle:
    """Like `allreduce_`, but returns a Handle at once."""
    arguments = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    is_alone = residual is not None or seed != 0
    call = _Allreduce(
        "allreduce_",
        Kind.ALLREDUCE,
        tensor,
        name,
        process_set,
        engine,
        arguments,
        is_alone=is_alone,
    )
    return call.begin(None, process_set, (residual, seed))


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: CompressionCodec = Compression.none,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
    residual: Any = None,
    seed: int = 0,
) -> Any:
    """Like `allreduce`, but the result replaces the values of `tensor`, which is returned."""
    arguments = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    is_alone = residual is not None or seed != 0
    call = _Allreduce(
        "allreduce_",
        Kind.ALLREDUCE,
        tensor,
        name,
        process_set,
        engine,
        arguments,
        is_alone=is_alone,
    )
    return call.perform(None, process_set, (residual, seed))


class _Allreduce(Again):
    """One call of a public function.  feedback: residual and seed."""

    __slots__ = ()

    def new_output(self) -> Any:
        """An array for the result of a call that comes again; _PREPARE: there is none."""
        return np.empty(self.tensor.shape, self.tensor.dtype) if self.comes_again else _PREPARE

    def perform(self, output: Any, process_set: ProcessSet, feedback: tuple[Any, int]) -> Any:
        """Returns `output`, or else the tensor; blocks."""
        if output is not _PREPARE and self.run(output):
            return self.tensor if output is None else output
        request = self._request(output is None, process_set, feedback)
        result = self.engine.run(request).result()
        self.keep(request)
        return result

    def begin(self, output: Any, process_set: ProcessSet, feedback: tuple[Any, int]) -> Handle:
        if output is not _PREPARE:
            result = self.tensor if output is None else output
            handle = self.start(output, lambda _: result)
            if handle is not None:
                return handle
        return self.submit(self._request(output is None, process_set, feedback))

    def _request(
        self, is_in_place: bool, process_set: ProcessSet, feedback: tuple[Any, int]
    ) -> Request:
        average, op, prescale, postscale, compression, priority, backend = self.arguments
        tensor = self.tensor
        with Call(self.engine, Kind.ALLREDUCE, self.name, process_set, priority, backend) as call:
            if is_in_place:
                target = view_output(tensor, call)
                request = call.request(target, target, finish=lambda _: tensor)
            else:
                source = view_input(tensor, call)
                result, target = empty_like(source, tensor)
                request = call.request(source, target, finish=lambda _: result)
            scale(request, op, average, prescale, postscale)
            request.codec = self.engine.codec_id(compression)
            residual, request.seed = feedback
            if not isinstance(request.seed, Integral) or not 0 <= request.seed < 1 << 64:
                raise call.refusal(f"the seed is {request.seed!r}. Pass a whole number from 0 to 2**64 - 1.")
            if residual is not None:
                request.residual = _view_residual(residual, compression, request, call)
        return request


def _view_residual(
    residual: Any, compression: CompressionCodec, request: Request, call: Call
) -> TensorView:
    view = view_output(residual, call)
    source = request.input
    assert source is not None  # an allreduce has an input
    rows = compression.residuals
    shape = source.shape if rows == 1 else (rows, *source.shape)
    if view.device != CPU:
        raise call.refusal(
            "the residual is not in the memory of the CPU, where codecs work "
            "for tensors of a device as well. Pass one on the CPU."
        )
    if tuple(view.shape) == tuple(shape) and view.dtype == source.dtype:
        return view
    wanted = "like the tensor" if rows == 1 else f"of shape {list(shape)}, a row for the sums"
    raise call.refusal(
        f"the residual is {view.dtype.name.lower()}{list(view.shape)}, "
        f"the tensor {source.dtype.name.lower()}{list(source.shape)}. Pass a residual {wanted}."
    )


_PREPARE = object()
