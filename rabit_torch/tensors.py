"""Torch tensors of the CPU and of CUDA seen as memory that the engine may use, without a copy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import torch

from rabit import CPU, CUDA, DType, InvalidArgument, TensorView, Unsupported

# Older torch lacks some types.
_DTYPES: dict[torch.dtype, DType] = {
    getattr(torch, str(dtype)): dtype for dtype in DType if hasattr(torch, str(dtype))
}


_ORDERED_AXES_MAX = 8  # as many as a TensorView may have


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


def check(tensor: object, name: str | None, *, is_written: bool = False) -> torch.Tensor:
    """Returns `tensor` if the engine can work on it; raises with the reason otherwise.

    is_written: the result goes into it.
    """
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(
            f"'{name}' is {type(tensor).__name__}, not a torch.Tensor; pass a tensor, or use "
            "broadcast_object/allgather_object for other objects"
        )
    if tensor.is_nested or hasattr(tensor, "to_local") or _is_wrapper(tensor):
        kind = "nested tensor" if tensor.is_nested else type(tensor).__name__
        raise Unsupported(
            f"tensor '{name}' is a {kind}, which has no memory of its own; pass the tensors that it is made of, such "
            "as its to_local(), or use torch.distributed with backend 'rabit'"
        )
    if torch.nn.parameter.is_lazy(tensor):
        raise InvalidArgument(
            f"tensor '{name}' is a parameter that has no shape yet; run the model once before"
        )
    if tensor.layout != torch.strided:
        raise Unsupported(
            f"tensor '{name}' has layout {tensor.layout}; use sparse_allreduce_async, "
            "DistributedOptimizer(sparse_as_dense=True), or to_dense() first"
        )
    if tensor.is_meta:
        raise Unsupported(
            f"tensor '{name}' is on device 'meta', so it has a shape and no values; give it memory first, such as by "
            "module.to_empty(device='cpu')"
        )
    if not tensor.is_cpu and (not tensor.is_cuda or torch.version.hip is not None):
        kind = "ROCm device" if tensor.is_cuda else "device"
        raise Unsupported(
            f"tensor '{name}' is on {kind} '{tensor.device}'; tensors of the CPU and of NVIDIA's CUDA "
            "travel. Call .cpu() first"
        )
    dtype_of(tensor, name)
    if is_written and not tensor.is_contiguous() and is_expanded(tensor):
        raise InvalidArgument(
            f"tensor '{name}' of shape {tuple(tensor.shape)} has strides {tensor.stride()}, so that several elements "
            "lie at one place and cannot be written; pass tensor.clone()"
        )
    return tensor


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """True for a subclass that is made of other tensors: a DTensor, a MaskedTensor, a FakeTensor."""
    is_plain = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return not is_plain and tensor.numel() > 0 and tensor.data_ptr() == 0


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several elements lie at one place."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    return any(stride == 0 and extent > 1 for extent, stride in places)


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


def axis_order(tensor: torch.Tensor) -> int | None:
    """How the elements lie in dense memory, as a TensorView says it; None: the memory is not the values alone.

    A channels_last gradient needs no copy: its order goes to the ranks, which compare it like its shape.
    """
    if tensor.is_neg() or tensor.is_conj():
        return None
    return 0 if tensor.is_contiguous() else _order_of(tensor.shape, tensor.stride())


@functools.lru_cache(maxsize=4096)
def _order_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """`axis_order` of memory that is not row-major; None: it has gaps or shares elements."""
    # Where an axis of one element lies says nothing: they come first, so that equal memory has one order.
    axes = sorted(
        range(len(shape)), key=lambda axis: (shape[axis] == 1, strides[axis]), reverse=True
    )
    expected = 1
    for axis in reversed(axes):
        if shape[axis] != 1 and strides[axis] != expected:
            return None
        expected *= shape[axis]
    if len(axes) > _ORDERED_AXES_MAX:
        return None
    return sum(axis << 4 * place for place, axis in enumerate(axes))


def empty_in_order(like: torch.Tensor, order: int, dtype: torch.dtype) -> torch.Tensor:
    """A new tensor of the shape of `like`, on its device, whose `axis_order` is `order`."""
    if order == 0:
        return like.new_empty(like.shape, dtype=dtype)
    axes = [order >> 4 * place & 15 for place in range(like.dim())]
    return torch.empty_permuted(like.shape, axes, dtype=dtype, device=like.device)


def view(tensor: torch.Tensor, name: str | None, order: int = 0) -> TensorView:
    """Returns a view of a dense tensor, whose `axis_order` is `order`; the view keeps the tensor alive."""
    return memory_of(tensor, tuple(tensor.shape), dtype_of(tensor, name), order)


def memory_of(
    tensor: torch.Tensor, shape: tuple[int, ...], dtype: DType, order: int = 0
) -> TensorView:
    """Returns the memory of a dense tensor, as if it had this shape and type.  order: its `axis_order`."""
    if tensor.is_cpu:
        return TensorView(tensor.data_ptr(), shape, dtype, CPU, keepalive=tensor, axis_order=order)
    return TensorView(
        tensor.data_ptr(),
        shape,
        dtype,
        CUDA,
        tensor.device.index,
        stream_of(tensor),
        keepalive=tensor,
        consumer=_consumer(tensor.device.index),
        axis_order=order,
    )


def _getters(*names: str) -> list[Any]:
    found = [getattr(torch.Tensor, name, None) for name in names]
    return [each.__get__ for each in found if each is not None and hasattr(each, "__get__")]


_tensor: Any = torch.Tensor
# What reads no value and no gradient.
METADATA = frozenset(
    [
        *_getters(
            "dtype",
            "device",
            "is_cpu",
            "is_cuda",
            "is_leaf",
            "is_meta",
            "is_nested",
            "is_quantized",
            "is_sparse",
            "itemsize",
            "layout",
            "nbytes",
            "ndim",
            "output_nr",
            "requires_grad",
            "retains_grad",
            "shape",
            "grad_fn",
            "_backward_hooks",
            "_post_accumulate_grad_hooks",
        ),
        _tensor.requires_grad.__set__,
        *(
            getattr(torch.Tensor, name)
            for name in (
                "dim",
                "element_size",
                "get_device",
                "is_complex",
                "is_contiguous",
                "is_floating_point",
                "nelement",
                "numel",
                "register_hook",
                "register_post_accumulate_grad_hook",
                "requires_grad_",
                "retain_grad",
                "size",
                "stride",
                "storage_offset",
                "__len__",
            )
        ),
        torch.is_floating_point,
        torch.is_complex,
        torch.numel,
    ]
)

# Of a parameter itself, whatever has its values.
METADATA_AND_GRADIENT = METADATA | {_tensor.grad.__get__, _tensor.grad.__set__, _tensor.grad.__delete__}


def found_in(value: Any, kinds: Container[type]) -> Iterator[Any]:
    """The objects of these types, not of subclasses, in arguments of torch: nested tuples, lists and dictionaries."""
    kind = type(value)
    if kind in kinds:
        yield value
    elif kind in (tuple, list):
        for item in value:
            yield from found_in(item, kinds)
    elif kind is dict:
        for item in value.values():
            yield from found_in(item, kinds)


def is_by_name(state_dict: Mapping[str, Any]) -> bool:
    """Whether the state of an optimizer is that of a divided one; torch numbers its parameters."""
    return any(isinstance(key, str) for key in state_dict["state"])
