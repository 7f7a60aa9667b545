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

    def before_gradients(self) -> None:
        """Before the first gradient of a pass leaves.  Blocks after a join."""
        if self._begin():
            self._end()

    def before_waits(self) -> None:
        """Before this rank waits for gradients.  Blocks until the other ranks have come, if it is time to."""
        self._begin()
        if self._meeting.is_open:
            self._end()

    def _begin(self) -> bool:
        method = self._sender.method
        is_settled = not (self._layout.is_stale or self._mode.is_recording)
        if method is None:
            return self._meeting.begin(0, is_settled)
        return self._meeting.begin(method.step, is_settled, method.pipeline.shapes)

    def _end(self) -> None:
        method, crossing = self._sender.method, self._mode.crossing
        standing = self._meeting.end() if method is None else method.end_meeting(self._meeting)
        if standing.begins_anew:
            # A rank that had joined since the first step knows no packs and no order.
            if crossing is not None:
                crossing.flush()
                crossing.start_recording()
            self._layout.unpack()
            self._layout.is_stale = True
