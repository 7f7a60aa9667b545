"""OverlapMode: what communication overlaps with, and where updates wait then."""

from __future__ import annotations

from typing import Literal

from rabit_torch.overlap.deferred import Crossing

__all__ = ["CROSSING", "Overlap", "OverlapMode"]

Overlap = Literal["none", "backward", "next-forward", "reduce-scatter"]
# The modes whose step() returns before the gradients are there.
CROSSING: tuple[Overlap, ...] = ("next-forward", "reduce-scatter")


class OverlapMode:
    """The mode of one optimizer; it changes between steps only."""

    __slots__ = ("crossing", "name", "sends_in_backward")

    def __init__(self) -> None:
        self.name: Overlap = "backward"
        self.sends_in_backward = True
        self.crossing: Crossing | None = None  # where updates wait; None: they do not leave step()

    @property
    def is_halved(self) -> bool:
        """True when gradients travel in two halves.  The step that records sends them whole."""
        crossing = self.crossing
        return self.name == "reduce-scatter" and crossing is not None and not crossing.is_recording

    def enter(self, name: Overlap) -> None:
        """Changes the mode; updates do not cross steps until there is a new crossing."""
        self.leave_crossing()
        self.name = name
        self.sends_in_backward = name != "none"

    def leave_crossing(self) -> None:
        """Waits for the updates that wait, and lets no more wait."""
        if self.crossing is not None:
            self.crossing.stop()
            self.crossing = None
