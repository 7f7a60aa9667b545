"""Compression: what gradients look like on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import rabit

__all__ = ["Compression", "MXNetCodec", "choose"]

_FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True)
class MXNetCodec(rabit.CompressionCodec):
    """A codec of the engine that can also be applied by hand, as Horovod's compressors can.

    wire_dtype: what floating-point arrays travel as; "": as they are.
    """

    wire_dtype: str = ""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The array in the type that travels, and the type of `tensor` for `decompress`.

        Arrays of other than floating-point types come back as they are, with None.
        Raises Unsupported for bf16, which MXNet's arrays do not have.
        """
        if not self.wire_dtype or np.dtype(tensor.dtype).name not in _FLOATS:
            return tensor, None
        if self.wire_dtype == "bfloat16":
            raise rabit.Unsupported(
                f"Compression.{self} cannot be applied by hand to an array of "
                f"{np.dtype(tensor.dtype).name}: collectives carry no bfloat16 arrays of MXNet. Pass "
                "it to allreduce or DistributedTrainer as compression=, or use Compression.fp16."
            )
        return tensor.astype(self.wire_dtype), tensor.dtype

    def decompress(self, tensor: Any, context: Any) -> Any:
        """The array in the type that `compress` was given."""
        return tensor if context is None else tensor.astype(context)


class Compression(rabit.Compression):
    """What travels in place of an array.

    none: the array as it is.
    fp16: float32 and float64 travel as float16 (range 65504, 11 bits), which a sum, or a mean, has to fit.
    bf16: float32 and float64 travel as bfloat16 (range of float32, 8 bits).
    """

    none = MXNetCodec("")
    fp16 = MXNetCodec("fp16", "float16")
    bf16 = MXNetCodec("bf16", "bfloat16")


_CODECS = {
    "none": Compression.none,
    "fp16": Compression.fp16,
    "bf16": Compression.bf16,
}


def choose(compression: Any, params: Mapping[str, Any] | None) -> tuple[Any, Any]:
    """Returns (codec of the engine, object with compress and decompress or None).

    compression: Compression.none, fp16, bf16, or an object with compress(tensor) and
    decompress(tensor, context), which runs in MXNet.
    params: {"type": "fp16"}, the form of Gluon's Trainer; it excludes `compression`.
    """
    if params is not None:
        if getattr(compression, "spec", None) != "":
            raise rabit.InvalidArgument(
                f"both compression={compression} and compression_params={dict(params)} are given. "
                "Pass one of them."
            )
        compression = _from_params(params)
    if isinstance(compression, rabit.CompressionCodec):
        return compression, None
    if callable(getattr(compression, "compress", None)) and callable(
        getattr(compression, "decompress", None)
    ):
        return Compression.none, compression
    raise rabit.InvalidArgument(
        f"compression is {compression!r}. Use Compression.none, Compression.fp16, Compression.bf16, "
        "or an object with compress(tensor) and decompress(tensor, context)."
    )


def _from_params(params: Mapping[str, Any]) -> rabit.CompressionCodec:
    unknown = sorted(set(params) - {"type"})
    found = _CODECS.get(str(params.get("type")))
    if unknown or found is None:
        raise rabit.InvalidArgument(
            f"compression_params is {dict(params)}: it takes the key 'type' with one of "
            f"{', '.join(_CODECS)}. Correct it, or use compression=."
        )
    return found
