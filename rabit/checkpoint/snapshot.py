"""A snapshot of what this rank writes, taken while training waits.

Of what all ranks have, a rank copies only the part that it writes: the more ranks, the shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rabit.checkpoint.commit import Share, ShareEntry
from rabit.checkpoint.layout import spread
from rabit.checkpoint.leaves import ELEMENT_BYTES, Adapter, Bytes, Leaf
from rabit.checkpoint.tree import Encoded, encode

__all__ = ["Snapshots"]


class Snapshots:
    """Keeps the memory of one snapshot for the next.  Called by one thread."""

    def __init__(
        self, adapters: Sequence[Adapter], rank: int, size: int, allow_pickle: bool
    ) -> None:
        self._adapters = adapters
        self._rank = rank
        self._size = size
        self._allow_pickle = allow_pickle
        self._memory: Bytes = np.empty(0, np.uint8)

    def take(self, step: int, state: Any, local: Any) -> Share:
        """The snapshot; the one before must not be in use any more."""
        shared = encode(state, self._adapters, allow_pickle=self._allow_pickle)
        own = encode(local, self._adapters, allow_pickle=self._allow_pickle)
        plan = _Plan()
        for piece in spread(shared.leaves, self._size)[self._rank]:
            leaf = shared.leaves[piece.tensor]
            plan.add(piece.tensor, leaf, leaf.shape, piece.start, piece.start, piece.count)
        for encoded, is_local in ((shared, False), (own, True)):
            _add_parts(plan, encoded, is_local)
        for name, leaf in own.leaves.items():
            plan.add(name, leaf, leaf.shape, 0, 0, leaf.count, is_local=True)
        shapes = {
            name: [leave.dtype, list(leave.shape)] for name, leave in shared.leaves.items()
        } | {name: [part.leaf.dtype, list(part.shape)] for name, part in shared.parts.items()}
        return Share(
            step, shared.document, own.document, shapes, plan.entries, self._copied(plan)
        )

    def _copied(self, plan: _Plan) -> Bytes:
        if self._memory.nbytes < plan.bytes:
            self._memory = np.empty(plan.bytes, np.uint8)
        data = self._memory[: plan.bytes]
        for entry, (leaf, first) in zip(plan.entries, plan.sources, strict=True):
            into = data[entry.first_byte : entry.first_byte + entry.bytes]
            into[:] = leaf.read(first, first + entry.count)
        return data


class _Plan:
    """The pieces of this rank, one after the other."""

    def __init__(self) -> None:
        self.entries: list[ShareEntry] = []
        self.sources: list[tuple[Leaf, int]] = []  # and the first element there
        self.bytes = 0
        self._names: set[str] = set()

    def add(
        self,
        tensor: str,
        leaf: Leaf,
        shape: tuple[int, ...],
        start: int,
        first: int,
        count: int,
        *,
        is_local: bool = False,
    ) -> None:
        is_whole = shape == leaf.shape and count == leaf.count
        name = ("local/" if is_local else "") + tensor
        name += "" if is_whole else f"[{start}:{start + count}]"
        while name in self._names:
            name += "'"
        self._names.add(name)
        self.entries.append(
            ShareEntry(tensor, name, leaf.dtype, shape, start, count, self.bytes, is_local)
        )
        self.sources.append((leaf, first))
        self.bytes += count * ELEMENT_BYTES[leaf.dtype]


def _add_parts(plan: _Plan, encoded: Encoded, is_local: bool) -> None:
    for name, part in encoded.parts.items():
        leaf, width = part.leaf, int(np.prod(part.leaf.shape[1:]))
        # A part of what is local is a tensor like others: no other rank has the rest.
        shape = leaf.shape if is_local else part.shape
        start = 0 if is_local else part.start * width
        plan.add(name, leaf, shape, start, 0, leaf.count, is_local=is_local)
