"""Meetings: what ranks compare before their first gradients leave, and bring into line after a join."""

from __future__ import annotations

from rabit.framework import Meeting
from rabit_torch.optimizer.layout import GradientLayout
from rabit_torch.optimizer.mode import OverlapMode
from rabit_torch.optimizer.sender import GradientSender

__all__ = ["Meetings"]


class Meetings:
    """Those of one optimizer.  Holds nothing of the reducer, which ends with its last user."""

    def __init__(
        self, meeting: Meeting, layout: GradientLayout, mode: OverlapMode, sender: GradientSender
    ) -> None:
        self._meeting = meeting
        self._layout = layout
        self._mode = mode
        self._sender = sender

    def meet_if_due(self) -> None:
        """Before the first gradient of a pass leaves; blocks until the other ranks are there, too."""
        if not self._meeting.is_due:
            return
        method, crossing = self._sender.method, self._mode.crossing
        is_settled = not (self._layout.is_stale or self._mode.is_recording)
        steps, all_settled = self._meeting.meet(0 if method is None else method.step, is_settled)
        if method is not None:
            method.catch_up(steps)
        if is_settled and not all_settled:
            # A rank that had joined since the first step knows no packs and no order: all begin anew.
            if crossing is not None:
                crossing.flush()
                crossing.start_recording()
            self._layout.unpack()
            self._layout.is_stale = True
