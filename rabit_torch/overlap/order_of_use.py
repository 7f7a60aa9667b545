"""OrderOfUse: in which order a step uses parameters, seen once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rabit_torch.overlap.watched import can_guard, guard, unguard
from rabit_torch.parameter_state import ParameterState

__all__ = ["OrderOfUse"]


class OrderOfUse:
    """Of one optimizer; the places of its states are the result."""

    def __init__(self, states: Sequence[ParameterState]) -> None:
        self._states = states
        self._uses = 0
        self.is_recording = False

    def start(self, owner: Any) -> None:
        """Before a step.  owner: the Crossing that is told of reads."""
        self.is_recording = True
        self._uses = 0
        for state in self._states:
            unguard(state)
            state.owner = owner
            state.is_seen = False
            state.place = len(self._states) + state.index
            state.is_watched = can_guard(state.parameter)  # Frozen ones may be thawed later.
            if state.is_watched:
                guard(state)

    def see(self, state: ParameterState) -> None:
        """A forward pass has used a parameter that is watched."""
        state.is_watched = False
        state.is_seen = True
        if self.is_recording:
            state.place = self._uses
            self._uses += 1
        unguard(state)

    def stop(self) -> tuple[list[int], list[int]]:
        """After the step: parameters (indices) in order of first use, and those not seen in use.

        A parameter that has a gradient although nothing was seen to read it (TorchScript, compiled
        code, extensions) is updated inside step() from here on.  One without a gradient stays
        watched.
        """
        self.is_recording = False
        ordered = sorted(self._states, key=lambda state: (state.place, state.index))
        unseen = [state.index for state in ordered if not state.is_seen]
        return [state.index for state in ordered], unseen
