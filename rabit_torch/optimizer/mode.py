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

    __slots__ = ("crossing", "name")

    def __init__(self) -> None:
        self.name: Overlap = "backward"
        self.crossing: Crossing | None = None  # where updates wait; None: they do not leave step()

    @property
    def sends_in_backward(self) -> bool:
        return self.name != "none"

    @property
    def is_recording(self) -> bool:
        """True in the step that finds out in which order parameters are used."""
        return self.crossing is not None and self.crossing.is_recording

    @property
    def is_halved(self) -> bool:
        """True when gradients travel in two halves.  The step that records sends them whole."""
        return self.name == "reduce-scatter" and self.crossing is not None and not self.is_recording

    def enter(self, name: Overlap) -> None:
        """Changes the mode; updates do not cross steps until there is a new crossing."""
        self.leave_crossing()
        self.name = name

    def leave_crossing(self) -> None:
        """Waits for the updates that wait, and lets no more wait."""
        if self.crossing is not None:
            self.crossing.stop()
            self.crossing = None
