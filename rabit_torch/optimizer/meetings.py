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
        self._is_settled = False

    def before_gradients(self) -> None:
        """Before the first gradient of a pass leaves.

        The first time nothing but the comparison depends on the meeting, and no rank waits yet: ranks that use
        other parameters come to the optimizers of these in another order.
        """
        if self._meeting.is_due:
            is_first = self._meeting.is_first
            self._begin()
            if not is_first:
                self._end()

    def before_waits(self) -> None:
        """Before this rank waits for gradients.  Blocks until the other ranks have come, if it is time to."""
        if self._meeting.is_due:
            self._begin()
        if self._meeting.is_open:
            self._end()

    def _begin(self) -> None:
        method = self._sender.method
        self._is_settled = not (self._layout.is_stale or self._mode.is_recording)
        self._meeting.begin(0 if method is None else method.step, self._is_settled)

    def _end(self) -> None:
        method, crossing = self._sender.method, self._mode.crossing
        standing = self._meeting.end() if method is None else method.end_meeting(self._meeting)
        if self._is_settled and not standing.all_settled:
            # A rank that had joined since the first step knows no packs and no order: all begin anew.
            if crossing is not None:
                crossing.flush()
                crossing.start_recording()
            self._layout.unpack()
            self._layout.is_stale = True
