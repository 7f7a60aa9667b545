"""Cause and Row: what the doctor says, and what a line of its table holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rabit.diagnostics.doctor.picture import Picture

__all__ = ["Cause", "Found", "Row", "confidence_of"]


@dataclass(frozen=True)
class Found:
    """What a signature has found.  score: 0 to 1.  values: for the text of the row's fix."""

    score: float
    ranks: Sequence[int] = ()
    hosts: Sequence[str] = ()
    line: str = ""
    evidence: Sequence[str] = ()
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Cause:
    """One cause, as `rabitrun doctor --json` prints it.

    confidence: "established": the evidence leaves no other cause of the table; "supported"; "hypothesis".
    """

    row: Row
    found: Found
    score: float

    @property
    def confidence(self) -> str:
        return confidence_of(self.score)

    def document(self) -> dict[str, Any]:
        """The stable schema."""
        return {
            "class": self.row.name,
            "title": self.row.title,
            "ranks": list(self.found.ranks),
            "hosts": list(self.found.hosts),
            "line": self.found.line,
            "evidence": list(self.found.evidence),
            "query": self.row.query,
            "fix": self.fix,
            "confidence": self.confidence,
        }

    @property
    def fix(self) -> str:
        return self.row.fix.format_map(_Known(self.found.values))


class _Known(dict[str, object]):
    """Values of a text; what is not known stays as its name."""

    def __missing__(self, name: str) -> str:
        return f"<{name}>"


def confidence_of(score: float) -> str:
    return "established" if score >= 0.9 else "supported" if score >= 0.6 else "hypothesis"


@dataclass(frozen=True)
class Row:
    """A fault of the table.

    name: the class, stable.  phases: in which it can be the cause: "hung", "running", "idle", "starting", "ended".
    signature: looks for it; None: it is not there.  query: the question that decides, which the signature has
    answered.  fix: with {values} of what was found.  words: of a user's report that speak for it.
    injection: in tests/faults/doctor_faults.py, the fault that has it.
    """

    name: str
    title: str
    phases: tuple[str, ...]
    signature: Callable[[Picture], Found | None]
    query: str
    fix: str
    words: tuple[str, ...] = ()
    injection: str = ""
