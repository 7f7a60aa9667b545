"""What goes wrong with checkpoints."""

from __future__ import annotations

from rabit.errors import RabitError

__all__ = ["CheckpointDamaged", "CheckpointFailed"]


class CheckpointDamaged(RabitError):
    """What lies on disk is not what was written; `rank` is who noticed, or -1."""


class CheckpointFailed(RabitError):
    """A generation was not written; `rank` names who could not.  Those before it are untouched."""
