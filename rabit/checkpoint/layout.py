"""Which rank writes which elements of the tensors that all ranks have.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rabit.checkpoint.leaves import ELEMENT_BYTES, Leaf

__all__ = ["Piece", "spread"]

# A tensor is cut only where the ranks would otherwise differ by more than this.
_SMALLEST_CUT_BYTES = 64 << 10


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `start + count` of a tensor."""

    tensor: str
    start: int
    count: int


def spread(leaves: Mapping[str, Leaf], size: int) -> list[list[Piece]]:
    """The pieces of each of `size` ranks; about equal in bytes, and all elements once.

    Tensors follow one another in order, and the line is cut into `size` parts; a cut that comes near
    to the end of a tensor goes there.
    """
    pieces: list[list[Piece]] = [[] for _ in range(size)]
    total = sum(leaf.bytes for leaf in leaves.values())
    rank, begin = 0, 0
    for name, leaf in leaves.items():
        width = ELEMENT_BYTES[leaf.dtype]
        start = 0
        while rank + 1 < size:
            offset = _cut(total * (rank + 1) // size - begin, leaf.bytes)
            if offset is None:
                break
            count = offset // width - start
            if count > 0:
                pieces[rank].append(Piece(name, start, count))
                start += count
            rank += 1
        if start < leaf.count or leaf.count == 0:
            pieces[rank].append(Piece(name, start, leaf.count - start))
        begin += leaf.bytes
    return pieces


def _cut(offset: int, length: int) -> int | None:
    """Where to cut a tensor of `length` bytes for a boundary at `offset`; None: after its end."""
    if offset >= length:
        return None
    if offset < _SMALLEST_CUT_BYTES:
        return 0 if 2 * offset <= length else None
    if length - offset < _SMALLEST_CUT_BYTES:
        return None
    return offset // 64 * 64
