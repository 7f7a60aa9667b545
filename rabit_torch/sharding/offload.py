"""The optimizer's state on disk: some megabytes of it in memory at a time, while a step updates their parameters.

Source of the pipeline: Rajbhandari et al., ZeRO-Infinity (2021).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

import rabit
from rabit import InvalidArgument
from rabit.sharding import DiskTier
from rabit_torch.sharding.parts_on_disk import PIECE, WRITES_MAX, DiskStorage, Piece
from rabit_torch.sharding.states import MASTER, Place, refreshed

__all__ = ["OffloadedStates"]

_ALIGNED = 64  # bytes: no vector of an optimizer's kernel is cut


@dataclass
class _Slice:
    """Elements of a slice that are updated at once. small: their state that is not of their size, such as counts.

    in_piece: where they begin in the piece of the group.
    """

    place: Place
    begin: int
    length: int
    in_piece: int = 0
    small: dict[str, Any] = field(default_factory=dict)
    kinds: list[tuple[str, torch.dtype]] = field(default_factory=list)  # what lies on disk

    def values(self, piece: Piece | None) -> torch.Tensor:
        """Of the parameter, in memory or in a piece of it that has been read."""
        if piece is not None:
            return piece.values[self.in_piece : self.in_piece + self.length]
        values: torch.Tensor = self.place.values.elements(self.place.place)
        return values[self.begin : self.begin + self.length]


class _Group(NamedTuple):
    """What is updated at once. storage: of parameters on disk, whose piece `number` it is."""

    slices: list[_Slice]
    storage: DiskStorage | None = None
    number: int = 0

    def read(self) -> Piece | None:
        """Starts to read the parameters that are on disk."""
        return None if self.storage is None else self.storage.read(self.number)


class OffloadedStates:
    """The state of `optimizer`, whose groups hold the slices of `places`, on disk. One thread at a time."""

    is_late = False

    def __init__(
        self, optimizer: torch.optim.Optimizer, places: Sequence[Place], tier: DiskTier
    ) -> None:
        self._optimizer = optimizer
        self._rank = rabit.rank()
        self.tier = tier
        self._groups = list(_grouped(places))
        self._writes: deque[list[Future[None]]] = deque()
        self._ahead: _Reading | None = None  # of the first group, for the next step
        self._given: dict[int, dict[int, dict[str, Any]]] = {}  # by group and slice, of groups that `set` has begun
        self._by_place: dict[int, list[tuple[int, int]]] = {}
        for number, group in enumerate(self._groups):
            for which, own in enumerate(group.slices):
                self._by_place.setdefault(id(own.place), []).append((number, which))
        for number in range(len(self._groups)):
            self._begin(number)
        for place in places:
            if place.has_master:  # Its copy in 32 bits is on disk; the slice has the gradient.
                place.slice.data = torch.full((), float("nan")).expand(place.slice.shape)

    def step(self) -> None:
        """Steps the optimizer, one group of pieces after the other.

        Returns while the last groups are written and the first is read for the next step; an error of these is raised
        there.
        """
        options = self._optimizer.param_groups
        slices = [each["params"] for each in options]
        ahead, self._ahead = self._ahead or self._start_read(0), None
        piece_ahead = self._groups[0].read()
        try:
            for number, group in enumerate(self._groups):
                assert ahead is not None
                states, buffer, piece = ahead.finished(), ahead.buffer, piece_ahead
                if piece is not None:
                    piece.wait()
                ahead = self._start_read(number + 1)
                piece_ahead = self._groups[number + 1].read() if ahead is not None else None
                self._update(group, states, piece)
                writes = [self._put(number, states, buffer)]
                if piece is not None and group.storage is not None:
                    writes.append(group.storage.replace(piece))
                self._writes.append(writes)
                if len(self._writes) > WRITES_MAX:
                    for write in self._writes.popleft():
                        write.result()
        finally:
            for each, own in zip(options, slices, strict=True):
                each["params"] = own
        self._ahead = self._start_read(0)

    def get(self, place: Place) -> dict[str, Any]:
        """The state of a slice, with its master. Reads from disk."""
        states = []
        for number, which in self._by_place[id(place)]:
            reading = self._start_read(number)
            assert reading is not None
            states.append(reading.finished()[which])
        first = states[0]
        return {
            key: torch.cat([state[key] for state in states])
            if isinstance(value, torch.Tensor) and value.dim()
            else value
            for key, value in first.items()
        }

    def set(self, place: Place, state: dict[str, Any]) -> None:
        """Replaces the state of a slice. Writes to disk each group of which all slices have one.

        It reads nothing: where a write has failed, this is what makes the state whole again.
        """
        self._ahead = None
        self._writes.clear()
        if place.has_master and MASTER not in state:
            state = {**state, MASTER: place.values.elements(place.place).float()}
        for number, which in self._by_place[id(place)]:
            slices, given = self._groups[number].slices, self._given.setdefault(number, {})
            own = slices[which]
            given[which] = {
                key: value[own.begin : own.begin + own.length].clone()
                if isinstance(value, torch.Tensor) and value.dim()
                else value
                for key, value in state.items()
            }
            if len(given) == len(slices):
                del self._given[number]
                self._put(number, [given[which] for which in range(len(slices))]).result()

    def publish(self) -> None:
        pass

    def refusal(self) -> InvalidArgument | None:
        return None

    def close(self) -> None:
        """Removes the files."""
        self.tier.close()

    def _begin(self, number: int) -> None:
        """A group has no state yet, but masters."""
        group = self._groups[number]
        piece = group.read() if any(own.place.has_master for own in group.slices) else None
        if piece is not None:
            piece.wait()
        self._put(
            number, [{MASTER: own.values(piece).float()} if own.place.has_master else {} for own in group.slices]
        ).result()

    def _update(self, group: _Group, states: list[dict[str, Any]], piece: Piece | None) -> None:
        optimizer = self._optimizer
        for options in optimizer.param_groups:
            options["params"] = []
        parameters = []
        for own, state in zip(group.slices, states, strict=True):
            values = own.values(piece)
            master = state.pop(MASTER, None)
            parameter = torch.nn.Parameter(values if master is None else refreshed(master, values, master))
            gradient = own.place.slice.grad
            if gradient is not None:
                parameter.grad = gradient[own.begin : own.begin + own.length]
            if state:
                optimizer.state[parameter] = state
            optimizer.param_groups[own.place.group]["params"].append(parameter)
            parameters.append(parameter)
        optimizer.step()
        for own, state, parameter in zip(group.slices, states, parameters, strict=True):
            state.update(optimizer.state.pop(parameter, {}))
            if own.place.has_master:
                state[MASTER] = parameter.detach()
                own.values(piece).copy_(parameter.detach())

    def _put(
        self, number: int, states: Sequence[dict[str, Any]], buffer: Any = None
    ) -> Future[None]:
        """Starts to write what is of the size of its slice, and keeps the rest.

        buffer: where the states were read into; they are copied only if they are elsewhere by now.
        """
        slices = self._groups[number].slices
        for own, state in zip(slices, states, strict=True):
            own.small = {key: value for key, value in state.items() if not _is_large(value)}
            own.kinds = [(key, value.dtype) for key, value in state.items() if _is_large(value)]
        if buffer is not None:
            views = _views(slices, buffer)
            values = [(state[key], view[key]) for state, view in zip(states, views, strict=True) for key in view]
            if not all(_is_same(value, view) for value, view in values):
                buffer = None
        if buffer is None:
            buffer = self.tier.buffer(sum(_bytes(own) for own in slices))
            for state, view in zip(states, _views(slices, buffer), strict=True):
                for key, place in view.items():
                    place.copy_(state[key])
        names = ", ".join(dict.fromkeys(repr(own.place.name) for own in slices))
        return self.tier.write(f"group{number}", buffer, f"state on disk, of {names} on rank {self._rank}")

    def _start_read(self, number: int) -> _Reading | None:
        if number >= len(self._groups):
            return None
        slices = self._groups[number].slices
        buffer = self.tier.buffer(self.tier.size(f"group{number}"))
        states = [{**own.small, **view} for own, view in zip(slices, _views(slices, buffer), strict=True)]
        return _Reading(states, buffer, self.tier.read(f"group{number}", buffer))


class _Reading(NamedTuple):
    """States that are read, as views of `buffer`."""

    states: list[dict[str, Any]]
    buffer: Any
    future: Future[None]

    def finished(self) -> list[dict[str, Any]]:
        self.future.result()
        return self.states


def _bytes(own: _Slice) -> int:
    """Of a slice in a buffer, where each of its tensors begins at a multiple of _ALIGNED."""
    return sum(-(-own.length * dtype.itemsize // _ALIGNED) * _ALIGNED for _, dtype in own.kinds)


def _views(slices: Sequence[_Slice], buffer: Any) -> list[dict[str, torch.Tensor]]:
    """The tensors of each slice that lie in `buffer`, by key."""
    memory = torch.from_numpy(buffer)
    found: list[dict[str, torch.Tensor]] = []
    begin = 0
    for own in slices:
        views = {}
        for key, dtype in own.kinds:
            size = own.length * dtype.itemsize
            views[key] = memory[begin : begin + size].view(dtype)
            begin += -(-size // _ALIGNED) * _ALIGNED
        found.append(views)
    return found


def _is_same(value: torch.Tensor, view: torch.Tensor) -> bool:
    return value.data_ptr() == view.data_ptr() and value.is_contiguous()


def _is_large(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() > 0


def _grouped(places: Iterable[Place]) -> Iterator[_Group]:
    """The slices of this rank, cut and joined to groups of about as many elements; those on disk by their pieces."""
    on_disk: dict[DiskStorage, list[Place]] = {}
    slices: list[_Slice] = []
    count = 0
    for place in places:
        if isinstance(place.storage, DiskStorage):
            on_disk.setdefault(place.storage, []).append(place)
            continue
        total = place.slice.numel()
        for begin in range(0, max(total, 1), PIECE):
            length = min(PIECE, total - begin)
            if slices and count + length > PIECE:
                yield _Group(slices)
                slices, count = [], 0
            slices.append(_Slice(place, begin, length))
            count += length
    # Of these, this rank has counts alone.
    slices += [_Slice(place, 0, 0) for own in on_disk.values() for place in own if not place.slice.numel()]
    if slices:
        yield _Group(slices)
    for storage, own in on_disk.items():
        for number in range(len(storage.pieces)):
            cut = [(place, storage.overlap(place.place, number)) for place in own]
            slices = [_Slice(place, *found) for place, found in cut if found[1]]
            yield _Group(slices, storage, number)
