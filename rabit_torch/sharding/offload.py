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
from typing import Any

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
        """Steps the optimizer, one group of pieces after the other."""
        groups = self._optimizer.param_groups
        slices = [group["params"] for group in groups]
        writes: deque[Future[None]] = deque()
        ahead = self._start_read(0)
        try:
            for number, pieces in enumerate(self._groups):
                states = self._finish_read(ahead)
                ahead = self._start_read(number + 1)
                self._update(pieces, states)
                writes.append(self._put(number, states))
                if len(writes) > _WRITES_MAX:
                    writes.popleft().result()
        finally:
            for group, own in zip(groups, slices, strict=True):
                group["params"] = own
        while writes:
            writes.popleft().result()

    def get(self, place: Place) -> dict[str, Any]:
        """The state of a slice, with its master. Reads from disk."""
        states = []
        for number, which in self._by_place[id(place)]:
            states.append(self._finish_read(self._start_read(number))[which])
        first = states[0]
        return {
            key: torch.cat([state[key] for state in states])
            if isinstance(value, torch.Tensor) and value.dim()
            else value
            for key, value in first.items()
        }

    def set(self, place: Place, state: dict[str, Any]) -> None:
        """Replaces the state of a slice. Writes to disk."""
        if place.has_master and MASTER not in state:
            state = {**state, MASTER: place.storage.elements(place.place).float()}
        for number, which in self._by_place[id(place)]:
            states = self._finish_read(self._start_read(number))
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

    def _update(self, pieces: list[_Piece], states: list[dict[str, Any]]) -> None:
        optimizer = self._optimizer
        for group in optimizer.param_groups:
            group["params"] = []
        parameters = []
        for piece, state in zip(pieces, states, strict=True):
            values = piece.elements
            master = state.pop(MASTER, None)
            own = values if master is None else refreshed(master, values)
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

    def _put(self, number: int, states: Sequence[dict[str, Any]]) -> Future[None]:
        """Starts to write what is of the size of its piece, and keeps the rest."""
        arrays = []
        for piece, state in zip(self._groups[number], states, strict=True):
            large = {key: value for key, value in state.items() if _is_large(value)}
            piece.small = {key: value for key, value in state.items() if key not in large}
            piece.kinds = [(key, value.dtype) for key, value in large.items()]
            arrays += [value.contiguous().view(torch.uint8).numpy() for value in large.values()]
        return self.tier.write(f"group{number}", arrays)

    def _start_read(self, number: int) -> tuple[list[dict[str, Any]], Future[None]] | None:
        if number >= len(self._groups):
            return None
        states = []
        for piece in self._groups[number]:
            large = {key: torch.empty(piece.length, dtype=dtype) for key, dtype in piece.kinds}
            states.append({**piece.small, **large})
        arrays = [
            value.view(torch.uint8).numpy()
            for piece, state in zip(self._groups[number], states, strict=True)
            for value in (state[key] for key, _ in piece.kinds)
        ]
        return states, self.tier.read(f"group{number}", arrays)

    @staticmethod
    def _finish_read(started: Any) -> list[dict[str, Any]]:
        states: list[dict[str, Any]]
        states, future = started
        future.result()
        return states


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
