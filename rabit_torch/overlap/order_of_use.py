"""OrderOfUse: in which order a step uses parameters, seen once."""

from __future__ import annotations

from collections.abc import Sequence

from rabit_torch.overlap.watched import can_guard, guard, unguard
from rabit_torch.parameter_state import DeferredUpdate, Owner, ParameterState, Phase

__all__ = ["OrderOfUse"]


class OrderOfUse:
    """Of one optimizer; the places of its states are the result."""

    def __init__(self, states: Sequence[ParameterState]) -> None:
        self._states = states
        self._uses = 0
        self.is_recording = False

    def start(self, owner: Owner) -> None:
        """Before a step.  owner: the Crossing that reads are reported to."""
        self.is_recording = True
        self._uses = 0
        for state in self._states:
            if state.update is not None:
                unguard(state.update)
            state.update = DeferredUpdate(state, owner)
            state.place = len(self._states) + state.index
            if can_guard(state.parameter):  # Frozen ones too: they may be thawed later.
                guard(state.update, Phase.WATCHED)

    def see(self, update: DeferredUpdate) -> None:
        """A forward pass has used a parameter that is watched."""
        update.is_seen = True
        if self.is_recording:
            update.state.place = self._uses
            self._uses += 1
        unguard(update)

    def stop(self) -> tuple[list[int], list[int]]:
        """After the step: parameters (indices) in order of first use, and those not seen in use.

        A parameter that has a gradient although nothing was seen to read it (TorchScript, compiled
        code, extensions) is updated inside step() from here on.  One without a gradient stays
        watched.
        """
        self.is_recording = False
        ordered = sorted(self._states, key=lambda state: (state.place, state.index))
        unseen = [s.index for s in ordered if s.update is None or not s.update.is_seen]
        return [state.index for state in ordered], unseen
