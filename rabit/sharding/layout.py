"""Which elements of which tensor belong to which rank, when a model's state is divided among ranks.

Tensors of one kind lie one after the other in a flat, each from a multiple of `block` elements on. A flat is
divided by rows of `block` elements, as the engine divides a reduce-scatter and an allgather: so a part is
even to one row, ends where no vector of an optimizer's kernel is cut, and travels without a copy.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rabit.checkpoint.leaves import even_rows
from rabit.errors import InvalidArgument

__all__ = ["Entry", "Flat", "FlatLayout", "Interval", "Move"]

# Fused optimizers of PyTorch work on up to 32 elements at a time, those of AVX-512 in 16 bits on 64: a cut
# elsewhere gives other bits at its two ends (measured with torch 2.13 for 17 optimizers, 2026-11).
BLOCK = 64


@dataclass(frozen=True)
class Entry:
    """A tensor of the model.

    unit: what is gathered together, "" for the whole model. group: of the optimizer. is_trained: whether it has
    a gradient and a state.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    unit: str = ""
    group: int = 0
    is_trained: bool = True

    @property
    def count(self) -> int:
        return prod(self.shape)


class Interval(NamedTuple):
    """Elements `start` to `start` + `length` of a flattened tensor; `length` may be 0."""

    start: int
    length: int


class Move(NamedTuple):
    """Elements of a tensor that another rank owns in another layout."""

    name: str
    start: int
    length: int
    source: int
    target: int


@dataclass(frozen=True)
class Flat:
    """Tensors that are stored, gathered and scattered as one. starts: of each entry, in elements of the flat."""

    name: str
    dtype: str
    entries: tuple[Entry, ...]
    starts: tuple[int, ...]
    rows: int
    is_trained: bool


class FlatLayout:
    """The flats of some tensors and their division into `parts`, one for each rank. Immutable; holds no data.

    entries: of the model, with distinct names. parts: number of ranks, at least 1. block: elements of a row.
    Raises InvalidArgument for a name that occurs twice.
    """

    def __init__(self, entries: Iterable[Entry], parts: int, block: int = BLOCK) -> None:
        self.entries = tuple(entries)
        self.parts = parts
        self.block = block
        if parts < 1 or block < 1:
            raise InvalidArgument(
                f"FlatLayout: parts is {parts} and block {block}; both are at least 1."
            )
        self.flats = tuple(self._made_flats())
        self._places: dict[str, tuple[Flat, int, Entry]] = {}
        for flat in self.flats:
            for entry, start in zip(flat.entries, flat.starts, strict=True):
                if entry.name in self._places:
                    raise InvalidArgument(
                        f"FlatLayout: the tensor {entry.name!r} is listed twice. List a shared tensor once."
                    )
                self._places[entry.name] = flat, start, entry

    def part(self, flat: Flat, rank: int) -> Interval:
        """The rows of `flat` that `rank` owns: `start` and `length` count rows."""
        first, end = even_rows(flat.rows, rank, self.parts)
        return Interval(first, end - first)

    def slice_of(self, name: str, rank: int) -> Interval:
        """The elements of the tensor `name` that `rank` owns. Raises KeyError for another name."""
        flat, start, entry = self._places[name]
        rows = self.part(flat, rank)
        first = max(rows.start * self.block - start, 0)
        last = min((rows.start + rows.length) * self.block - start, entry.count)
        return Interval(first, last - first) if last > first else Interval(0, 0)

    def slices_of(self, flat: Flat, rank: int) -> Iterator[tuple[Entry, Interval, int]]:
        """(entry, its elements that `rank` owns, where they begin in the part) for those that are not empty."""
        begin = self.part(flat, rank).start * self.block
        for entry, start in zip(flat.entries, flat.starts, strict=True):
            owned = self.slice_of(entry.name, rank)
            if owned.length:
                yield entry, owned, start + owned.start - begin

    def owner(self, name: str, element: int) -> int:
        """The rank that owns an element of the flattened tensor `name`."""
        flat, start, entry = self._places[name]
        if not 0 <= element < entry.count:
            raise IndexError(f"{name!r} has {entry.count} elements; there is no element {element}")
        each, more = divmod(flat.rows, self.parts)
        row = (start + element) // self.block
        return (
            row // (each + 1)
            if row < more * (each + 1)
            else more + (row - more * (each + 1)) // each
        )

    def moves(self, other: FlatLayout) -> list[Move]:
        """What has to be copied so that tensors divided like this are divided like `other`.

        Both have the same names and shapes. Elements that keep the number of their owner are left out.
        """
        found: list[Move] = []
        for entry in self.entries:
            cuts = sorted({0, *self._cuts(entry.name), *other._cuts(entry.name)})
            for start, end in itertools.pairwise(cuts):
                source, target = self.owner(entry.name, start), other.owner(entry.name, start)
                if source != target:
                    found.append(Move(entry.name, start, end - start, source, target))
        return found

    def digest(self) -> str:
        """Sixteen hexadecimal digits that are equal for equal layouts: ranks compare them at start."""
        text = json.dumps([self.parts, self.block, [astuple(entry) for entry in self.entries]])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def first_other(self, gather: Callable[[Any], Any]) -> int | None:
        """The first rank whose layout is not equal to this rank's; None if all are.

        gather: joins the rows of all ranks, each of bytes; it blocks until every rank has called this.
        """
        own = np.frombuffer(bytes.fromhex(self.digest()), np.uint8)[None]
        differs = (np.asarray(gather(own)) != own).any(axis=1)
        return int(differs.argmax()) if differs.any() else None

    def _cuts(self, name: str) -> Iterator[int]:
        """Where the tensor goes from one owner to the next, and its end."""
        for rank in range(self.parts):
            owned = self.slice_of(name, rank)
            if owned.length:
                yield owned.start + owned.length

    def _made_flats(self) -> Iterator[Flat]:
        kinds: dict[tuple[str, str, int, bool], list[Entry]] = {}
        for entry in self.entries:
            kinds.setdefault((entry.unit, entry.dtype, entry.group, entry.is_trained), []).append(
                entry
            )
        for (unit, dtype, group, is_trained), entries in kinds.items():
            starts, rows = _starts(entries, self.block)
            words = [unit, dtype, f"group{group}" if group else "", "" if is_trained else "frozen"]
            yield Flat(
                ".".join(filter(None, words)), dtype, tuple(entries), starts, rows, is_trained
            )


def _starts(entries: Sequence[Entry], block: int) -> tuple[tuple[int, ...], int]:
    """Where each entry begins, in elements, and how many rows there are."""
    starts, rows = [], 0
    for entry in entries:
        starts.append(rows * block)
        rows += -(-entry.count // block)
    return tuple(starts), rows
