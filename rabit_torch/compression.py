"""Compression: what gradients look like on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

import rabit


class Compressor(Protocol):
    """A user's own compression: `compress` before the allreduce, `decompress` after it."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor that travels, and what `decompress` needs to undo it."""

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Returns a tensor like the one given to `compress`."""


class _Identity:
    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor


IDENTITY = _Identity()


@dataclass(frozen=True)
class TorchCodec(rabit.CompressionCodec):
    """A codec of the engine that can also be applied by hand, as Horovod's compressors can.

    wire_dtype: what floating-point tensors travel as; None: as they are.
    """

    wire_dtype: torch.dtype | None = None

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor in the type that travels, and its own type."""
        if self.wire_dtype is None or not tensor.is_floating_point():
            return tensor, None
        return tensor.to(self.wire_dtype), tensor.dtype

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Returns the tensor in the type that `compress` was given."""
        return tensor if context is None else tensor.to(context)


class Compression(rabit.Compression):
    """What travels in place of a tensor: the codecs of rabit, of which three can also be applied by hand.

    none: the tensor as it is.
    fp16: float32 and float64 travel as float16 (range 65504, 11 bits), which a sum, or a mean, has to fit.
    bf16: float32 and float64 travel as bfloat16 (range of float32, 8 bits).
    """

    none = TorchCodec("")
    fp16 = TorchCodec("fp16", torch.float16)
    bf16 = TorchCodec("bf16", torch.bfloat16)


def split(compression: Any) -> tuple[Any, Compressor]:
    """Returns (what the engine does while packing, what Python does around it).

    Compression.none, fp16 and bf16 run in the engine, in the copy to the fusion buffer that happens
    anyway.  Any other object with `compress` and `decompress` runs in Python.
    """
    if isinstance(compression, rabit.CompressionCodec):
        return compression, IDENTITY
    if callable(getattr(compression, "compress", None)) and callable(
        getattr(compression, "decompress", None)
    ):
        return rabit.Compression.none, compression
    raise rabit.InvalidArgument(
        f"compression is {compression!r}; use Compression.none, Compression.fp16, Compression.bf16, "
        "or an object with compress(tensor) and decompress(tensor, context)"
    )


def by_hand(compression: Any, what: str) -> Compressor:
    """What Python does around an operation that the engine does not compress itself."""
    compressor = split(compression)[1]
    if compressor is not IDENTITY:
        return compressor
    if isinstance(compression, TorchCodec):
        return compression
    raise rabit.Unsupported(
        f"{what}: compression {compression!r} is for allreduce; use Compression.none, "
        "Compression.fp16 or Compression.bf16, or an object with compress(tensor) and "
        "decompress(tensor, context)"
    )
