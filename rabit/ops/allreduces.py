"""allreduce: blocking and asynchronous, into a new array and in place.

The shared arguments are described in rabit/ops/reductions.py.  A call that comes again, with equal arguments
and a tensor of the same type and shape, is not prepared anew; see rabit/engine/repeats.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rabit.compression import Compression, CompressionCodec
from rabit.engine.engine import Engine
from rabit.engine.handle import Handle
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.engine.request import Request
from rabit.engine.tensor import TensorView, view_input, view_output
from rabit.errors import InvalidArgument
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
    call = _Allreduce(
        "allreduce",
        tensor,
        name,
        process_set,
        engine,
        (average, op, prescale_factor, postscale_factor, compression, priority, backend),
        (residual, seed),
    )
    return call.start(call.new_output())


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
    call = _Allreduce(
        "allreduce",
        tensor,
        name,
        process_set,
        engine,
        (average, op, prescale_factor, postscale_factor, compression, priority, backend),
        (residual, seed),
    )
    return call.run(call.new_output())


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
    call = _Allreduce(
        "allreduce_",
        tensor,
        name,
        process_set,
        engine,
        (average, op, prescale_factor, postscale_factor, compression, priority, backend),
        (residual, seed),
    )
    return call.start(None)


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
    call = _Allreduce(
        "allreduce_",
        tensor,
        name,
        process_set,
        engine,
        (average, op, prescale_factor, postscale_factor, compression, priority, backend),
        (residual, seed),
    )
    return call.run(None)


class _Allreduce:
    """One call of a public function."""

    __slots__ = ("_again", "_arguments", "_feedback", "_process_set", "_tensor")

    def __init__(
        self,
        what: str,
        tensor: Any,
        name: str | None,
        process_set: ProcessSet,
        engine: Engine | None,
        arguments: tuple[Any, ...],
        feedback: tuple[Any, int],
    ) -> None:
        # What belongs to one call alone, so that such a call is prepared anew; None: nothing.
        residual, seed = feedback
        self._feedback = None if residual is None and seed == 0 else feedback
        has_output = what == "allreduce_" or type(tensor) is np.ndarray  # else it is made anew
        self._again = Again(
            what,
            Kind.ALLREDUCE,
            tensor,
            name,
            process_set,
            engine,
            arguments,
            is_alone=self._feedback is not None or not has_output,
        )
        self._arguments = arguments
        self._process_set = process_set
        self._tensor = tensor

    def new_output(self) -> Any:
        """An array for the result of a call that comes again; None: prepare it."""
        tensor = self._tensor
        return np.empty(tensor.shape, tensor.dtype) if type(tensor) is np.ndarray else _PREPARE

    def run(self, output: Any) -> Any:
        """Returns `output`, or else the tensor; blocks."""
        if output is not _PREPARE and self._again.run(output):
            return self._tensor if output is None else output
        request = self._request(output is None)
        result = self._again.engine.run(request).result()
        self._again.keep(request)
        return result

    def start(self, output: Any) -> Handle:
        if output is not _PREPARE:
            result = self._tensor if output is None else output
            handle = self._again.start(output, lambda _: result)
            if handle is not None:
                return handle
        return self._again.submit(self._request(output is None))

    def _request(self, is_in_place: bool) -> Request:
        average, op, prescale, postscale, compression, priority, backend = self._arguments
        engine, name = self._again.engine, self._again.name
        call = Call(engine, Kind.ALLREDUCE, name, self._process_set, priority, backend)
        tensor = self._tensor
        if is_in_place:
            target = view_output(tensor, call)
            request = call.request(target, target, finish=lambda _: tensor)
        else:
            source = view_input(tensor, call)
            result, target = empty_like(source, tensor)
            request = call.request(source, target, finish=lambda _: result)
        scale(request, op, average, prescale, postscale)
        request.codec = engine.codec_id(compression)
        if self._feedback is not None:
            residual, request.seed = self._feedback
            if not 0 <= request.seed < 1 << 64:
                raise InvalidArgument(
                    f"allreduce '{request.name}': the seed is {request.seed}. Pass one from 0 to "
                    "2**64 - 1."
                )
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
        raise InvalidArgument(
            f"allreduce '{request.name}': the residual is not in the memory of the CPU, where codecs work "
            "for tensors of a device as well. Pass one on the CPU."
        )
    if tuple(view.shape) == tuple(shape) and view.dtype == source.dtype:
        return view
    wanted = "like the tensor" if rows == 1 else f"of shape {list(shape)}, a row for the sums"
    raise InvalidArgument(
        f"allreduce '{request.name}': the residual is {view.dtype.name.lower()}{list(view.shape)}, "
        f"the tensor {source.dtype.name.lower()}{list(source.shape)}. Pass a residual {wanted}."
    )


_PREPARE = object()
