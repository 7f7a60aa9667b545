"""Parameters on disk: a rank's part of a flat lies in files, and is in memory while it is gathered or updated.

Each rank reads the part that it owns, and the ranks exchange what they have read: disks of several hosts add up.
Source: Rajbhandari et al., ZeRO-Infinity (2021), bandwidth-centric partitioning.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.framework import engine_for_work
from rabit.sharding import DiskTier, Interval
from rabit_torch.sharding.flats import PartStorage

__all__ = ["PIECE", "WRITES_MAX", "DiskStorage", "Piece", "made_tier", "step_bytes"]

# Elements that are read, updated and written together. Reading and writing overlap with updates, so smaller pieces cost
# requests and larger ones memory.
PIECE = 1 << 21
WRITES_MAX = 2  # of pieces, that a step does not wait for


def step_bytes(element_bytes: int) -> int:
    """Memory of a step, for pieces of `element_bytes` per element: one is read, one updated, three are written."""
    return (3 + WRITES_MAX) * PIECE * element_bytes


def made_tier(offload: str, process_set: ProcessSet) -> DiskTier:
    """The files of this rank, for `offload="disk:PATH"`. Blocks until every rank calls it.

    Raises InvalidArgument for another text, and for a folder that another job has made.
    """
    kind, _, path = offload.partition(":")
    if kind != "disk" or not path:
        raise InvalidArgument(
            f"offload is {offload!r}; expected 'disk:PATH', with a folder on each host, or 'cpu' of an optimizer"
        )
    job = rabit.broadcast_object(secrets.token_hex(4), 0, "offload.job", process_set)
    return DiskTier(Path(path) / f"rank{rabit.rank()}", job)


class Piece(NamedTuple):
    """Values of a part in memory. read: what is waited for until they are there."""

    number: int
    buffer: Any  # that the tier has given
    values: torch.Tensor  # in `buffer`
    read: Future[None] | None = None

    def wait(self) -> torch.Tensor:
        """Blocks until the values are there."""
        if self.read is not None:
            self.read.result()
        return self.values


class DiskStorage(PartStorage):
    """A flat whose part lies on disk. `own` and `elements` give copies."""

    def __init__(self, tier: DiskTier, *arguments: Any) -> None:
        self._tier = tier
        self._fetched: list[Piece] | None = None
        super().__init__(*arguments)

    @property
    def pieces(self) -> list[Interval]:
        """The elements of the part that each file has."""
        total = self._rows.length * self._shape[1]
        return [Interval(begin, min(PIECE, total - begin)) for begin in range(0, total, PIECE)]

    def overlap(self, place: int, number: int) -> tuple[int, int, int]:
        """Elements of a slice that are in a piece: where they begin in the slice, how many, where in the piece."""
        whole, piece = self.span(place), self.pieces[number]
        start, length = _overlap(whole, piece)
        return start - whole.start, length, start - piece.start

    def piece(self, number: int) -> Piece:
        """Memory for a piece, with any values."""
        size = self.pieces[number].length * self._dtype.itemsize
        buffer = self._tier.buffer(size)
        return Piece(number, buffer, torch.from_numpy(buffer)[:size].view(self._dtype))

    def read(self, number: int) -> Piece:
        """Starts to read a piece, after the last write of it."""
        piece = self.piece(number)
        return piece._replace(read=self._tier.read(self._key(number), piece.buffer))

    def replace(self, piece: Piece) -> Future[None]:
        """Starts to write the values of a piece, which must not change before it is done."""
        self._fetched = None
        return self._tier.write(self._key(piece.number), piece.buffer, self._what(self.pieces[piece.number]))

    def fetch(self) -> None:
        if self._fetched is None:
            self._fetched = [self.read(number) for number in range(len(self.pieces))]

    def gather(self, values: torch.Tensor) -> Any:
        self.fetch()
        pieces, self._fetched = self._fetched or [], None
        own = values[self._rows.start : self._rows.start + self._rows.length]
        request, engine = self._gather_of(own, values), engine_for_work()
        return _Gather(pieces, own.flatten(), lambda: engine.submit((request,))[0])

    def own(self) -> torch.Tensor:
        return self._read(Interval(0, self._rows.length * self._shape[1])).view(-1, self._shape[1])

    def elements(self, place: int) -> torch.Tensor:
        return self._read(self.span(place))

    def slice_of(self, place: int) -> torch.Tensor:
        # Values are in memory while they are updated.
        nothing = torch.full((), float("nan"), dtype=torch.float32 if self.has_master else self._dtype)
        return nothing.expand(self.span(place).length)

    def write(self, place: int, value: torch.Tensor) -> None:
        whole, given = self.span(place), self.own_of(place, value)
        for number, common in self._common(whole):
            piece = self.read(number)
            start = common.start - self.pieces[number].start
            piece.wait()[start : start + common.length] = given[common.start - whole.start :][: common.length]
            self.replace(piece).result()

    def _keep(self, own: torch.Tensor) -> None:
        elements = own.flatten()
        for number, (start, length) in enumerate(self.pieces):
            piece = self.piece(number)
            piece.values.copy_(elements[start : start + length])
            self.replace(piece).result()

    def _read(self, whole: Interval) -> torch.Tensor:
        found = torch.empty(whole.length, dtype=self._dtype)
        for number, common in self._common(whole):
            start = common.start - self.pieces[number].start
            values = self.read(number).wait()[start : start + common.length]
            found[common.start - whole.start :][: common.length] = values
        return found

    def _common(self, whole: Interval) -> Iterator[tuple[int, Interval]]:
        """The pieces that have some of these elements, and which."""
        for number, piece in enumerate(self.pieces):
            if (common := _overlap(whole, piece)).length:
                yield number, common

    def _key(self, number: int) -> str:
        return f"values{self.layout.flats.index(self.flat)}.{number}"

    def _what(self, piece: Interval) -> str:
        names = [
            repr(entry.name)
            for place, entry in enumerate(self.flat.entries)
            if _overlap(self.span(place), piece).length
        ]
        return f"parameters on disk, {', '.join(names)} on rank {rabit.rank()}"


class _Gather:
    """A gather that starts when this rank's part has been read, by the thread that has read the last piece."""

    def __init__(self, pieces: Sequence[Piece], own: torch.Tensor, start: Callable[[], rabit.Handle]) -> None:
        self._pieces = pieces
        self._own = own
        self._start = start
        self._left = len(pieces)
        self._lock = threading.Lock()
        self._started: Future[rabit.Handle] = Future()
        for piece in pieces:
            assert piece.read is not None
            piece.read.add_done_callback(self._arrived)
        if not pieces:
            self._begin()

    def wait(self) -> None:
        """Blocks until the values of all ranks are there."""
        self._started.result().wait()

    def _arrived(self, _: Future[None]) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._begin()

    def _begin(self) -> None:
        try:
            begin = 0
            for piece in self._pieces:
                values = piece.wait()
                self._own[begin : begin + len(values)] = values
                begin += len(values)
            self._started.set_result(self._start())
        except Exception as error:  # The thread that waits for the gather raises it.
            self._started.set_exception(error)
        self._pieces = ()


def _overlap(first: Interval, second: Interval) -> Interval:
    start = max(first.start, second.start)
    return Interval(start, max(0, min(first.start + first.length, second.start + second.length) - start))
