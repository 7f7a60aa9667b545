"""Compression: what travels in place of a tensor.

    rabit.allreduce(x, compression=rabit.Compression.fp16)

The engine converts while it copies into the fusion buffer, which happens anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Compression", "CompressionCodec"]


@dataclass(frozen=True)
class CompressionCodec:
    """A codec of the engine; compared and printed by its description.

    spec: the text for the native library; empty means no compression.
    """

    spec: str

    def __str__(self) -> str:
        return self.spec or "none"


class Compression:
    """The codecs.

    none: the tensor as it is.
    fp16: float32 and float64 travel and are summed as float16 (range 65504, 11 bits).
    bf16: float32 and float64 travel and are summed as bfloat16 (range of float32, 8 bits).
    """

    none = CompressionCodec("")
    fp16 = CompressionCodec("fp16")
    bf16 = CompressionCodec("bf16")
