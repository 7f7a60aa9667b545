"""Torch tensors of the CPU and of CUDA seen as memory that the engine may use, without a copy."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from rabit import CPU, CUDA, DType, InvalidArgument, TensorView, Unsupported

_DTYPES: dict[torch.dtype, DType] = {
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.float16: DType.FLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.bool: DType.BOOL,
    torch.bfloat16: DType.BFLOAT16,
}
if hasattr(torch, "uint16"):
    _DTYPES[torch.uint16] = DType.UINT16
_TORCH_DTYPES = {value: key for key, value in _DTYPES.items()}


def dtype_of(tensor: torch.Tensor, name: str | None) -> DType:
    """Returns the engine's name of a tensor's element type; raises Unsupported for others."""
    found = _DTYPES.get(tensor.dtype)
    if found is None:
        known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in _DTYPES))
        raise Unsupported(
            f"tensor '{name}' has element type {tensor.dtype}, which no collective can carry; "
            f"convert it first (known: {known})"
        )
    return found


def can_travel(dtype: torch.dtype) -> bool:
    """False for element types that no collective carries."""
    return dtype in _DTYPES


def torch_dtype(dtype: DType) -> torch.dtype:
    """Returns torch's name of an engine element type."""
    return _TORCH_DTYPES[dtype]


def check(tensor: object, name: str | None) -> torch.Tensor:
    """Returns `tensor` if the engine can work on it; raises with the reason otherwise."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(
            f"'{name}' is {type(tensor).__name__}, not a torch.Tensor; pass a tensor, or use "
            "broadcast_object/allgather_object for other objects"
        )
    if hasattr(tensor, "to_local"):
        raise Unsupported(
            f"tensor '{name}' is a {type(tensor).__name__}, which has no memory of its own; pass its to_local(), or "
            "use torch.distributed with backend 'rabit'"
        )
    if tensor.layout != torch.strided:
        raise Unsupported(
            f"tensor '{name}' has layout {tensor.layout}; use sparse_allreduce_async, "
            "DistributedOptimizer(sparse_as_dense=True), or to_dense() first"
        )
    if not tensor.is_cpu and (not tensor.is_cuda or torch.version.hip is not None):
        kind = "ROCm device" if tensor.is_cuda else "device"
        raise Unsupported(
            f"tensor '{name}' is on {kind} '{tensor.device}'; tensors of the CPU and of NVIDIA's CUDA "
            "travel. Call .cpu() first"
        )
    dtype_of(tensor, name)
    return tensor


def stream_of(tensor: torch.Tensor) -> int:
    """The stream on which this thread uses the device of `tensor` now; 0 for the CPU, too.

    A request begins after what is on that stream when it is submitted.
    """
    if tensor.is_cpu:
        return 0
    stream: int = torch.cuda.current_stream(tensor.device).cuda_stream
    return stream


def current_stream(tensor: torch.Tensor) -> torch.cuda.Stream | None:
    """The stream on which this thread uses the device of `tensor` now, for `wait_for_stream`; None for the CPU."""
    return None if tensor.is_cpu else torch.cuda.current_stream(tensor.device)


def wait_for_stream(stream: torch.cuda.Stream) -> None:
    """What comes on the current stream of its device is behind what is on `stream` now.  The host does not wait."""
    current = torch.cuda.current_stream(stream.device)
    if current != stream:
        current.wait_stream(stream)


def copy_last(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies `source`, which nobody uses afterwards, into `target` on the current stream."""
    target.copy_(source)
    keep_for_stream(source)


def keep_for_stream(tensor: torch.Tensor) -> None:
    """Keeps the memory of a tensor that may be dropped now until the current stream has done what it has.

    torch gives the memory of a freed tensor to the next one of the stream that it was made on, which may be another
    stream and ahead of this one.
    """
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


@functools.cache
def _consumer(index: int) -> Callable[[], int]:
    """Gives the stream on which the thread that calls it uses a device of CUDA."""

    def current() -> int:
        stream: int = torch.cuda.current_stream(index).cuda_stream
        return stream

    return current


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a copy of it in the memory of the host."""
    return tensor if tensor.is_cpu else tensor.cpu()


def is_row_major(tensor: torch.Tensor) -> bool:
    """True where the memory has the elements one after the other, as they are.

    torch negates and conjugates without a copy: it marks the tensor, as torch.imag(z.conj()), and its memory has other
    values.
    """
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """The values outside of their gradient, for reading: the tensor's memory if `is_row_major`, else a copy."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns a contiguous view of the same memory with permuted dimensions, or None.

    A channels_last gradient needs no copy: its permuted shape is what the ranks compare, so a rank
    with another layout is noticed.
    """
    if tensor.is_neg():
        return None
    if tensor.is_contiguous():
        return tensor
    order = sorted(range(tensor.dim()), key=lambda axis: tensor.stride(axis), reverse=True)
    permuted = tensor.permute(order)
    return permuted if permuted.is_contiguous() else None


def view(tensor: torch.Tensor, name: str | None) -> TensorView:
    """Returns a view of a contiguous tensor; the view keeps the tensor alive."""
    return memory_of(tensor, tuple(tensor.shape), dtype_of(tensor, name))


def memory_of(tensor: torch.Tensor, shape: tuple[int, ...], dtype: DType) -> TensorView:
    """Returns the memory of a contiguous tensor, as if it had this shape and type."""
    if tensor.is_cpu:
        return TensorView(tensor.data_ptr(), shape, dtype, CPU, keepalive=tensor)
    return TensorView(
        tensor.data_ptr(),
        shape,
        dtype,
        CUDA,
        tensor.device.index,
        stream_of(tensor),
        keepalive=tensor,
        consumer=_consumer(tensor.device.index),
    )
