"""Packs: small gradients that travel as one tensor."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

import rabit
from rabit import CompressionCodec
from rabit_torch.optimizer.route_queue import RouteQueue
from rabit_torch.optimizer.two_halves import ScatterGather
from rabit_torch.parameter_state import ParameterState, Route
from rabit_torch.tensors import stream_of, wait_for_stream

__all__ = ["Pack", "Packed", "make_packs"]

# A gradient of at most this size costs more to announce and to schedule than to copy.
_SMALL_BYTES = 128 * 1024
_PACK_BYTES = 512 * 1024
_ABSENT_CHARACTERS = 200

# What the members of a pack have in common: element type, device, codec of a strategy, and the backward pass of a
# step that brings them.
Kind = tuple[torch.dtype, torch.device, CompressionCodec, int]


def make_packs(
    states: list[ParameterState],
    apart: Collection[int],
    make: Callable[[list[ParameterState]], Pack],
    span_bytes: int | None = None,
) -> list[Pack]:
    """Packs of the small parameters, in the order in which backward passes reach them.

    states: all parameters.  apart: the indices of those that do not pack.  make: makes a pack.
    span_bytes: how much of the model a pack may span, what lies between its
    members included: it leaves when its last gradient has arrived, with the urgency of the parameter
    that is needed first.  None: no limit.  The packs depend on their sizes and on `place` alone, so that they are
    equal on all ranks.
    """
    packs: list[Pack] = []
    open_: dict[Kind, list[ParameterState]] = {}
    sizes: dict[Kind, int] = {}
    starts: dict[Kind, int] = {}

    def close(kind: Kind) -> None:
        members = open_.pop(kind, [])
        if len(members) > 1:
            packs.append(make(members))

    passed = 0
    for state in sorted(states, key=lambda state: state.place, reverse=True):
        kind = (state.gradient_dtype, state.parameter.device, state.route.codec, state.arrived_in)
        size = state.bytes
        passed += size
        if size > _SMALL_BYTES or size == 0 or state.group is not None:
            continue
        if not state.route.may_pack or state.index in apart:
            continue
        if kind in open_ and (
            sizes[kind] + size > _PACK_BYTES
            or (span_bytes is not None and passed - starts[kind] > span_bytes)
        ):
            close(kind)
        if kind not in open_:
            open_[kind], sizes[kind], starts[kind] = [], 0, passed - size
        open_[kind].append(state)
        sizes[kind] += size
    for kind in list(open_):
        close(kind)
    return packs


class Pack:
    """Gradients of neighbouring parameters, copied into one buffer when all have arrived."""

    def __init__(
        self, states: list[ParameterState], prefix: str, queue: RouteQueue, *, is_halved: bool
    ) -> None:
        """Gives each of `states` a route into the pack."""
        self.states = states
        first, last = states[-1].name, states[0].name[len(prefix) + 1 :]
        self.name = f"{first}..{last}"
        counts = [state.parameter.numel() for state in states]
        first_parameter, dtype = states[0].parameter.detach(), states[0].gradient_dtype
        self.buffer = first_parameter.new_zeros(sum(counts), dtype=dtype)
        self.views = [
            part.view(state.parameter.shape)
            for part, state in zip(self.buffer.split(counts), states, strict=True)  # type: ignore[no-untyped-call]
        ]
        self.handle: Any = None
        self._queue = queue
        self._arrived: list[ParameterState] = []
        # The gradients that travel, and their views.
        self._sent: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        self._place = min(state.place for state in states)
        self._halves = (
            ScatterGather.of(self._request(self.name), queue.requests) if is_halved else None
        )
        self.batch = queue.requests.engine.prepare([self._request(self.name)])
        for state in states:
            state.route = Packed(state, self)

    def arrive(self, state: ParameterState) -> None:
        """One more gradient is there; with the last one they leave."""
        if not self._arrived:
            self._queue.packs.append(self)
        self._arrived.append(state)
        if len(self._arrived) == len(self.states):
            self.send()

    def send(self) -> None:
        """Copies what has arrived into the buffer, and zeros for the rest; then sends it."""
        self._queue.packs.remove(self)
        absent = self._fill()
        if absent:
            # Of its own name: a rank that has not frozen these too would take zeros for gradients.
            engine = self._queue.requests.engine
            (self.handle,) = engine.submit([self._request(_without(self.name, absent))])
            return
        pointer = self.buffer.data_ptr()
        if self._halves is not None:
            self.handle = self._halves.start(pointer, self.buffer)
            self._queue.add_halves(self._place, self._halves)
            return
        self.batch.set_pointers(0, pointer, pointer, stream_of(self.buffer))
        (self.handle,) = self.batch.submit([0], [self.buffer])

    def finish(self) -> None:
        """Waits, then copies the results back.  After an error it is still to finish."""
        self.handle.wait()
        self.handle = None
        (gradients, views), self._sent = self._sent, ([], [])
        with torch.no_grad():
            torch._foreach_copy_(gradients, views)
        for state in self.states:
            if state.sparse_dim is not None and state.grad is not None:
                state.give(state.grad)

    def forget(self) -> None:
        """Nothing of it has arrived."""
        self._arrived = []

    def absent(self) -> list[ParameterState]:
        """The states whose gradients have not arrived."""
        arrived = {state.index for state in self._arrived}
        return [state for state in self.states if state.index not in arrived]

    def _fill(self) -> list[str]:
        """Gives the names of those that are absent."""
        absent = self.absent() if len(self._arrived) < len(self.states) else []
        if absent:
            self.buffer.zero_()
        gradients, views = [], []
        for state, view in zip(self.states, self.views, strict=True):
            if state.grad is None or state in absent:
                continue
            gradients.append(state.grad)
            views.append(view)
            if state.route.stream is not None:
                wait_for_stream(state.route.stream)
        self.forget()
        with torch.no_grad():
            torch._foreach_copy_(views, gradients)
        self._sent = gradients, views
        return [state.name for state in absent]

    def _request(self, name: str) -> rabit.Request:
        return self._queue.requests.of(
            min(self.states, key=lambda state: state.place), name, self.buffer
        )


class Packed(Route):
    """The way of one gradient of a pack."""

    __slots__ = ("alone", "pack")

    takes_sparse = False

    def __init__(self, state: ParameterState, pack: Pack) -> None:
        self.pack = pack
        self.alone = state.route  # for when it travels by itself again
        super().__init__(state, state.route.codec)

    @property
    def handle(self) -> Any:
        """That of the pack."""
        return self.pack.handle

    @handle.setter
    def handle(self, handle: Any) -> None:
        self.pack.handle = handle

    @property
    def mates(self) -> Sequence[ParameterState]:
        return self.pack.states

    def start(self, grad: torch.Tensor) -> None:
        self.pack.arrive(self.state)

    def finish(self) -> None:
        self.pack.finish()

    def drop(self) -> None:
        if self.pack.handle is not None and self.pack.handle.done():
            self.pack.handle = None


def _without(name: str, absent: list[str]) -> str:
    """The name of a pack that leaves without some of its gradients; which, as far as a name has room."""
    listed = ", ".join(absent)
    if len(listed) > _ABSENT_CHARACTERS:
        digest = zlib.crc32(listed.encode())
        listed = f"{listed[:_ABSENT_CHARACTERS]}... ({len(absent)} parameters, {digest:08x})"
    return f"{name} without {listed}"
