"""Where a training step ends."""

from __future__ import annotations

from rabit.engine.current import current_engine
from rabit.errors import InvalidArgument

__all__ = ["mark", "mark_step"]


def mark_step() -> None:
    """Marks the end of a training step, on every rank; optimizers and trainers of rabit do it.

    For loops of one's own: it counts steps for the summary, and the autotuner measures from one call
    to the next.  Does not block, but with RABIT_PLAN=auto: ranks that find the network slower probe it then.
    """
    current_engine().end_step()


def mark(text: str, seconds: float = 0.0, *, is_loading: bool = False) -> None:
    """Writes a mark into the record of this rank: "eval", "epoch 3"; the doctor and traces show it.

    text: 36 bytes of it are kept.  seconds: how long what ends now has taken; 0: it is a moment.  is_loading: it was a
    wait for data, which metrics and the doctor add up.  Does not block; does nothing with RABIT_RECORD=0.
    """
    if seconds < 0:
        raise InvalidArgument(f"mark '{text}': it took {seconds} s, and nothing takes less than 0. Correct it.")
    record = current_engine().record
    if record is None:
        return
    record.mark(text, int(seconds * 1e9))
    if is_loading:
        record.count("loader_ns", int(seconds * 1e9))
