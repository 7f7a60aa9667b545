"""Random numbers of methods: the same for a tensor whatever is fused, cut or threaded around it."""

from __future__ import annotations

import zlib

import numpy as np

__all__ = ["generator"]


def generator(seed: int, name: str, step: int, rank: int = -1) -> np.random.Generator:
    """Random numbers that depend on the arguments alone.

    rank: -1 for numbers that are equal on all ranks.
    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011 (Philox).
    """
    key = np.random.SeedSequence([seed, zlib.crc32(name.encode()), step, rank + 1])
    return np.random.Generator(np.random.Philox(key))
