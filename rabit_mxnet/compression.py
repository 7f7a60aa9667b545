"""Compression: what gradients look like on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rabit

_CODECS = {
    "none": rabit.Compression.none,
    "fp16": rabit.Compression.fp16,
    "bf16": rabit.Compression.bf16,
}


def choose(compression: Any, params: Mapping[str, Any] | None) -> tuple[Any, Any]:
    """Returns (codec of the engine, object with compress and decompress or None).

    compression: Compression.none, fp16, bf16, or an object with compress(tensor) and
    decompress(tensor, context), which runs in MXNet.
    params: {"type": "fp16"}, the form of Gluon's Trainer; it excludes `compression`.
    """
    if params is not None:
        if compression is not rabit.Compression.none:
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
        return rabit.Compression.none, compression
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
