"""Older names of settings of rabit, as they stand in scripts: accepted, with a notice."""

from __future__ import annotations

from rabit.config.horovod import Twin

__all__ = ["TWINS"]

# Of two that say different things the later counts.
TWINS = (
    Twin(
        "overlap", "RABIT_CROSS_BARRIER", "--cross-barrier", "cross_barrier", implied="next-forward"
    ),
    Twin("overlap", "RABIT_SCHEDULE", "--schedule", "schedule", idle="fixed"),
)
