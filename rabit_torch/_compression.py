"""Compression: what gradients look like on the wire."""

from __future__ import annotations

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
