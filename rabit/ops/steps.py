"""Where a training step ends."""

from __future__ import annotations

from rabit.engine.current import current_engine

__all__ = ["mark_step"]


def mark_step() -> None:
    """Marks the end of a training step, on every rank; optimizers and trainers of rabit do it.

    For loops of one's own: it counts steps for the summary, and the autotuner measures from one call
    to the next.  Does not block.
    """
    current_engine().end_step()
