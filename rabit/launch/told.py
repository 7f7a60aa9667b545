"""Told: why a process ends, in its own words; see rabit.diagnostics.ending."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Told"]


@dataclass(frozen=True)
class Told:
    """Why one rank ends, in its own words.

    at_s: when the launcher heard it, in seconds since the start of the job.
    raised: the type of the exception that ended the rank, or "": it has just come to its end.
    lost: the rank whose end made this one end, or -1 if the reason is its own.
    place, code: the user's line.
    No text steers a terminal.  Those of exceptions and programs may have several lines.
    """

    at_s: float
    raised: str = ""
    message: str = ""
    place: str = ""
    code: str = ""
    lost: int = -1
