"""Meetings: what ranks compare before their first gradients leave, and bring into line after a join."""

from __future__ import annotations

from collections.abc import Callable

from rabit.framework import Meeting
from rabit_torch.optimizer.layout import GradientLayout
from rabit_torch.optimizer.method import Method

__all__ = ["Meetings"]


class Meetings:
    """Those of one optimizer."""

    def __init__(
        self,
        meeting: Meeting,
        layout: GradientLayout,
        method: Method | None,
        begin_anew: Callable[[], None],
    ) -> None:
        """begin_anew: called where a rank that had joined since the first step knows no packs and no order."""
        self.meeting = meeting
        self._layout = layout
        self._method = method
        self._begin_anew = begin_anew

    def before_gradients(self) -> None:
        """Before the first gradient of a pass leaves.  Blocks after a join."""
        if self._begin():
            self._end()

    def before_waits(self) -> None:
        """Before this rank waits for gradients.  Blocks until the other ranks have come, if it is time to."""
        self._begin()
        if self.meeting.is_open:
            self._end()

    def _begin(self) -> bool:
        method, is_settled = self._method, not self._layout.is_stale
        if method is None:
            return self.meeting.begin(0, is_settled)
        return self.meeting.begin(method.step, is_settled, method.pipeline.shapes)

    def _end(self) -> None:
        method = self._method
        standing = self.meeting.end() if method is None else method.end_meeting(self.meeting)
        if standing.begins_anew:
            self._begin_anew()
