"""What goes wrong with checkpoints."""

from __future__ import annotations

from rabit.errors import RabitError

__all__ = ["CheckpointDamaged", "CheckpointFailed"]


class CheckpointDamaged(RabitError):
    """What lies on disk is not what was written; `rank` is who noticed, or -1."""


class CheckpointFailed(RabitError):
    """A generation was not written, or not restored though it is whole; `rank` names the rank that could not.

    Generations before it are untouched.
    """
