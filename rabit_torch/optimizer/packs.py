"""Packs: small gradients that travel as one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rabit_torch.parameter_state import ParameterState

__all__ = ["Pack", "make_packs"]

# A gradient of at most this size costs more to announce and to schedule than to copy.
_SMALL_BYTES = 128 * 1024
_PACK_BYTES = 512 * 1024


class Pack:
    """Gradients of neighbouring parameters, copied into one buffer when all have arrived."""

    __slots__ = (
        "all_views",
        "arrived",
        "batch",
        "buffer",
        "gradients",
        "handle",
        "name",
        "states",
        "two_halves",
        "views",
    )

    def __init__(self, states: list[ParameterState], prefix: str) -> None:
        self.states = states
        first, last = states[-1].name, states[0].name[len(prefix) + 1 :]
        self.name = f"{first}..{last}"
        counts = [state.parameter.numel() for state in states]
        self.buffer = torch.zeros(sum(counts), dtype=states[0].parameter.dtype)
        self.all_views = [
            part.view(state.parameter.shape)
            for part, state in zip(self.buffer.split(counts), states, strict=True)  # type: ignore[no-untyped-call]
        ]
        self.arrived = 0
        self.views: list[torch.Tensor] = []  # of what travels, and the gradients it is for
        self.gradients: list[torch.Tensor] = []
        self.batch: Any = None
        self.handle: Any = None
        self.two_halves: Any = None

    def fill(self) -> None:
        """Copies the gradients that have arrived into the buffer, and zeros for the others."""
        self.arrived = 0
        self.views, self.gradients = self.all_views, []
        for state in self.states:
            if state.in_pack and state.grad is not None:
                self.gradients.append(state.grad)
        if len(self.gradients) < len(self.states):
            self.buffer.zero_()
            self.views = [
                view
                for state, view in zip(self.states, self.all_views, strict=True)
                if state.in_pack and state.grad is not None
            ]
        for state in self.states:
            state.in_pack = False
        with torch.no_grad():
            torch._foreach_copy_(self.views, self.gradients)

    def finish(self) -> None:
        """Waits, then copies the results back.  After an error it is still to finish."""
        self.handle.wait()
        self.handle = None
        gradients, self.gradients = self.gradients, []
        with torch.no_grad():
            torch._foreach_copy_(gradients, self.views)


def make_packs(
    states: list[ParameterState], prefix: str, span_bytes: int | None = None
) -> list[Pack]:
    """Packs of the small parameters, in the order in which backward passes reach them.

    states: all parameters.  span_bytes: how much of the model a pack may span, what lies between its
    members included: it leaves when its last gradient has arrived, with the urgency of the parameter
    that is needed first.  None: no limit.  The packs depend on their sizes and on `place` alone, so that they are
    equal on all ranks.
    """
    packs: list[Pack] = []
    open_: dict[torch.dtype, list[ParameterState]] = {}
    sizes: dict[torch.dtype, int] = {}
    starts: dict[torch.dtype, int] = {}

    def close(dtype: torch.dtype) -> None:
        members = open_.pop(dtype, [])
        if len(members) > 1:
            packs.append(Pack(members, prefix))

    passed = 0
    for state in sorted(states, key=lambda each: each.place, reverse=True):
        dtype, size = state.parameter.dtype, state.bytes
        passed += size
        if size > _SMALL_BYTES or size == 0 or state.group is not None or not state.is_dense:
            continue
        if not state.may_pack or state.rows is not None or state.slot is not None:
            continue
        if dtype in open_ and (
            sizes[dtype] + size > _PACK_BYTES
            or (span_bytes is not None and passed - starts[dtype] > span_bytes)
        ):
            close(dtype)
        if dtype not in open_:
            open_[dtype], sizes[dtype], starts[dtype] = [], 0, passed - size
        open_[dtype].append(state)
        sizes[dtype] += size
    for dtype in list(open_):
        close(dtype)
    return packs
