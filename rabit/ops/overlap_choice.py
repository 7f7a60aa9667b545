"""OverlapChoice: which overlap an optimizer uses, chosen by rank 0 while the job trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rabit.ops.votes import Vote
from rabit.tuning.knobs import OVERLAPS

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["OverlapChoice", "offer_overlap"]

_ENDS = 1 << len(OVERLAPS)


class OverlapChoice:
    """The overlap of an optimizer that was made with overlap="auto", handed to the autotuner.

    The tuner waits until the optimizer has found a mode by itself.  Then the optimizer opens the
    choice, on all ranks after the same step, and calls end_step after each from there on; or it closes
    it.  The tuner proposes on rank 0.  Proposals travel as votes: what rank 0 wants when step s has
    ended is in force on every rank when step s + 1 has.  By then the vote has been decided next to the
    gradients, so that it holds nobody up.
    """

    def __init__(self, engine: Engine) -> None:
        self.names: tuple[str, ...] = ()
        self.current = ""
        self.is_open = False
        self.is_closed = False
        self._engine = engine
        self._start = self._wanted = ""
        self._ends = False
        self._vote: Vote | None = None

    def open(self, names: Sequence[str], current: str) -> None:
        """From now on `names` may be proposed; `current` is what the job works with."""
        self.names, self.is_open = tuple(names), True
        self.current = self._start = self._wanted = current

    def close(self) -> None:
        """The overlap is nobody's choice any more; on all ranks after the same step."""
        self.is_open, self.is_closed = False, True

    def propose(self, name: str) -> None:
        """Rank 0: what all ranks shall use; "" is what the job began with."""
        self._wanted = name or self._start

    def end(self) -> None:
        """Rank 0: what has been proposed stays."""
        self._ends = True

    def end_step(self) -> str:
        """The overlap of the next step, the same on every rank.

        Waits until every rank has ended the step before this one.
        """
        if self._vote is not None:
            answer = self._vote.wait()
            for index, name in enumerate(OVERLAPS):
                if answer & 1 << index:
                    self.current = name
            if answer & _ENDS:
                self.close()
                return self.current
        bits = 0
        if self._engine.rank == 0:
            bits = 1 << OVERLAPS.index(self._wanted) | (_ENDS if self._ends else 0)
        self._vote = Vote(bits, "rabit.overlap.choice", engine=self._engine)
        return self.current


def offer_overlap(engine: Engine) -> OverlapChoice | None:
    """Makes the autotuner of `engine` wait until an optimizer has settled on an overlap.

    None if another optimizer has done so.
    """
    if engine.overlap_choice is not None:
        return None
    choice = OverlapChoice(engine)
    engine.overlap_choice = choice
    return choice
