"""The optimizer's state on disk: some megabytes of it in memory at a time, while a step updates their parameters.

Source of the pipeline: Rajbhandari et al., ZeRO-Infinity (2021).
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.sharding import DiskTier
from rabit_torch.sharding.states import MASTER, Place, refreshed

__all__ = ["OffloadedStates", "made_tier"]

# Elements of parameters that are updated together. Reading and writing overlap with updates, so smaller pieces cost
# requests and larger ones memory.
_PIECE = 1 << 21
_WRITES_MAX = 2  # that a step does not wait for
_ALIGNED = 64  # bytes: no vector of an optimizer's kernel is cut


def made_tier(offload: str, process_set: ProcessSet) -> DiskTier:
    """The files of this rank, for `offload="disk:PATH"`. Blocks until every rank calls it.

    Raises InvalidArgument for another text, and for a folder that another job has made.
    """
    kind, _, path = offload.partition(":")
    if kind != "disk" or not path:
        raise InvalidArgument(f"offload is {offload!r}; expected 'disk:PATH', with a folder on each host")
    job = rabit.broadcast_object(secrets.token_hex(4), 0, "offload.job", process_set)
    return DiskTier(Path(path) / f"rank{rabit.rank()}", job)


@dataclass
class _Piece:
    """Elements of a slice that are updated at once. small: their state that is not of their size, such as counts."""

    place: Place
    begin: int
    length: int
    small: dict[str, Any] = field(default_factory=dict)
    kinds: list[tuple[str, torch.dtype]] = field(default_factory=list)  # what lies on disk

    @property
    def elements(self) -> torch.Tensor:
        """Of the parameter."""
        values = self.place.storage.elements(self.place.place)
        return values[self.begin : self.begin + self.length]


class OffloadedStates:
    """The state of `optimizer`, whose groups hold the slices of `places`, on disk. One thread at a time."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, places: Sequence[Place], tier: DiskTier
    ) -> None:
        self._optimizer = optimizer
        self.tier = tier
        self._groups = list(_grouped(places))
        self._writes: deque[Future[None]] = deque()
        self._ahead: _Reading | None = None  # of the first group, for the next step
        self._by_place: dict[int, list[tuple[int, int]]] = {}
        for number, group in enumerate(self._groups):
            for which, piece in enumerate(group):
                self._by_place.setdefault(id(piece.place), []).append((number, which))
        for number, group in enumerate(self._groups):
            self._put(number, [{MASTER: p.elements.float()} if p.place.has_master else {} for p in group])
        for place in places:
            if place.has_master:  # Its copy in 32 bits is on disk; the slice has the gradient.
                place.slice.data = torch.full((), float("nan")).expand(place.slice.shape)

    def step(self) -> None:
        """Steps the optimizer, one group of pieces after the other.

        Returns while the last groups are written and the first is read for the next step; an error of these is raised
        there.
        """
        groups = self._optimizer.param_groups
        slices = [group["params"] for group in groups]
        ahead, self._ahead = self._ahead or self._start_read(0), None
        try:
            for number, pieces in enumerate(self._groups):
                assert ahead is not None
                states, buffer = ahead.finished(), ahead.buffer
                ahead = self._start_read(number + 1)
                self._update(pieces, states)
                self._writes.append(self._put(number, states, buffer))
                if len(self._writes) > _WRITES_MAX:
                    self._writes.popleft().result()
        finally:
            for group, own in zip(groups, slices, strict=True):
                group["params"] = own
        self._ahead = self._start_read(0)

    def get(self, place: Place) -> dict[str, Any]:
        """The state of a slice, with its master. Reads from disk."""
        states = []
        for number, which in self._by_place[id(place)]:
            states.append(self._read(number)[which])
        first = states[0]
        return {
            key: torch.cat([state[key] for state in states])
            if isinstance(value, torch.Tensor) and value.dim()
            else value
            for key, value in first.items()
        }

    def set(self, place: Place, state: dict[str, Any]) -> None:
        """Replaces the state of a slice. Writes to disk."""
        self._ahead = None
        if place.has_master and MASTER not in state:
            state = {**state, MASTER: place.storage.elements(place.place).float()}
        for number, which in self._by_place[id(place)]:
            states = self._read(number)
            piece = self._groups[number][which]
            states[which] = {
                key: value[piece.begin : piece.begin + piece.length].clone()
                if isinstance(value, torch.Tensor) and value.dim()
                else value
                for key, value in state.items()
            }
            self._put(number, states).result()

    def close(self) -> None:
        """Removes the files."""
        self.tier.close()

    def _read(self, number: int) -> list[dict[str, Any]]:
        reading = self._start_read(number)
        assert reading is not None
        return reading.finished()

    def _update(self, pieces: list[_Piece], states: list[dict[str, Any]]) -> None:
        optimizer = self._optimizer
        for group in optimizer.param_groups:
            group["params"] = []
        parameters = []
        for piece, state in zip(pieces, states, strict=True):
            values = piece.elements
            master = state.pop(MASTER, None)
            own = values if master is None else refreshed(master, values, master)
            parameter = torch.nn.Parameter(own)
            gradient = piece.place.slice.grad
            if gradient is not None:
                parameter.grad = gradient[piece.begin : piece.begin + piece.length]
            if state:
                optimizer.state[parameter] = state
            optimizer.param_groups[piece.place.group]["params"].append(parameter)
            parameters.append(parameter)
        optimizer.step()
        for piece, state, parameter in zip(pieces, states, parameters, strict=True):
            state.update(optimizer.state.pop(parameter, {}))
            if piece.place.has_master:
                state[MASTER] = parameter.detach()
                piece.elements.copy_(parameter.detach())

    def _put(
        self, number: int, states: Sequence[dict[str, Any]], buffer: Any = None
    ) -> Future[None]:
        """Starts to write what is of the size of its piece, and keeps the rest.

        buffer: where the states were read into; they are copied only if they are elsewhere by now.
        """
        pieces = self._groups[number]
        for piece, state in zip(pieces, states, strict=True):
            piece.small = {key: value for key, value in state.items() if not _is_large(value)}
            piece.kinds = [(key, value.dtype) for key, value in state.items() if _is_large(value)]
        if buffer is not None:
            own = _views(pieces, buffer)
            values = [(state[key], view[key]) for state, view in zip(states, own, strict=True) for key in view]
            if not all(_is_same(value, view) for value, view in values):
                buffer = None
        if buffer is None:
            buffer = self.tier.buffer(sum(_bytes(piece) for piece in pieces))
            for state, view in zip(states, _views(pieces, buffer), strict=True):
                for key, place in view.items():
                    place.copy_(state[key])
        return self.tier.write(f"group{number}", buffer)

    def _start_read(self, number: int) -> _Reading | None:
        if number >= len(self._groups):
            return None
        pieces = self._groups[number]
        buffer = self.tier.buffer(self.tier.size(f"group{number}"))
        states = [
            {**piece.small, **view} for piece, view in zip(pieces, _views(pieces, buffer), strict=True)
        ]
        return _Reading(states, buffer, self.tier.read(f"group{number}", buffer))


class _Reading(NamedTuple):
    """States that are read, as views of `buffer`."""

    states: list[dict[str, Any]]
    buffer: Any
    future: Future[None]

    def finished(self) -> list[dict[str, Any]]:
        self.future.result()
        return self.states


def _bytes(piece: _Piece) -> int:
    """Of a piece in a buffer, where each of its tensors begins at a multiple of _ALIGNED."""
    return sum(-(-piece.length * dtype.itemsize // _ALIGNED) * _ALIGNED for _, dtype in piece.kinds)


def _views(pieces: Sequence[_Piece], buffer: Any) -> list[dict[str, torch.Tensor]]:
    """The tensors of each piece that lie in `buffer`, by key."""
    memory = torch.from_numpy(buffer)
    found: list[dict[str, torch.Tensor]] = []
    begin = 0
    for piece in pieces:
        views = {}
        for key, dtype in piece.kinds:
            size = piece.length * dtype.itemsize
            views[key] = memory[begin : begin + size].view(dtype)
            begin += -(-size // _ALIGNED) * _ALIGNED
        found.append(views)
    return found


def _is_same(value: torch.Tensor, view: torch.Tensor) -> bool:
    return value.data_ptr() == view.data_ptr() and value.is_contiguous()


def _is_large(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() > 0


def _grouped(places: Iterable[Place]) -> Iterable[list[_Piece]]:
    """The slices of this rank, cut and joined to groups of about as many elements."""
    group: list[_Piece] = []
    count = 0
    for place in places:
        total = place.slice.numel()
        for begin in range(0, max(total, 1), _PIECE):
            length = min(_PIECE, total - begin)
            if group and count + length > _PIECE:
                yield group
                group, count = [], 0
            group.append(_Piece(place, begin, length))
            count += length
    if group:
        yield group
