"""diagnose: at most three causes of what a look shows, best first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rabit.diagnostics.doctor.bound import bound_of
from rabit.diagnostics.doctor.cause import Cause
from rabit.diagnostics.doctor.picture import Picture
from rabit.diagnostics.doctor.table import ROWS
from rabit.diagnostics.look.stacks import merged, ranks_text, stack_lines
from rabit.printable import printable

__all__ = ["Diagnosis", "diagnose", "report_lines", "stacks_of", "stall_lines", "verdict_lines"]

_CAUSES = 3
# A user's words make a cause likelier and never establish one.
_WORD_WEIGHT = 0.05
# What explains more goes first: who computes is late because of who takes its core.
_SPECIAL = ("branch",)


@dataclass(frozen=True)
class Diagnosis:
    """causes: best first.  summary: what the job does, in one line."""

    picture: Picture
    causes: tuple[Cause, ...]
    summary: str
    kind: str = ""  # "before" a job; "": as the picture has it

    @property
    def phase(self) -> str:
        return self.kind or self.picture.phase

    @property
    def is_healthy(self) -> bool:
        return not self.causes and self.phase in ("running", "ended", "before")

    @property
    def _bound(self) -> dict[str, Any]:
        """What a step of a job that goes on is bound by, with the shares of its parts; {}: nobody knows."""
        found = bound_of(self.picture) if self.phase == "running" else None
        return {"by": found.name, "rank": found.rank, "shares": dict(found.shares)} if found else {}

    def document(self) -> dict[str, Any]:
        """The stable schema of `rabitrun doctor --json`."""
        return {
            "causes": [cause.document() for cause in self.causes],
            "phase": self.phase,
            "healthy": self.is_healthy,
            "summary": self.summary,
            "bound": self._bound,
        }


def diagnose(look: Mapping[str, Any], words: str = "") -> Diagnosis:
    """What is wrong.  look: of all ranks, as the launcher gives it.  words: the user's own report, or ""."""
    picture = Picture(look)
    causes = []
    for row in ROWS:
        if picture.phase not in row.phases:
            continue
        found = row.signature(picture)
        if found is None:
            continue
        said = sum(word in words.lower() for word in row.words)
        causes.append(
            Cause(
                row,
                found,
                min(1.0, found.score + (_WORD_WEIGHT * said if found.score < 0.85 else 0.0)),
            )
        )
    causes.sort(key=lambda each: -each.score)
    # A general cause is no news where a special one explains the same rank.
    if len(causes) > 1 and causes[0].score >= 0.85:
        causes = [cause for cause in causes if cause is causes[0] or cause.row.name not in _SPECIAL]
    return Diagnosis(picture, tuple(causes[:_CAUSES]), _summary(picture))


def _summary(picture: Picture) -> str:
    alive = sum(view.is_alive for view in picture.ranks.values())
    if picture.phase == "ended":
        steps = max((view.steps for view in picture.ranks.values()), default=0)
        return f"{picture.size} ranks have ended" + (
            f"; the furthest made {steps} steps" if steps else ""
        )
    if picture.phase == "starting":
        known = [rank for rank, view in picture.ranks.items() if view.document]
        missing = sorted(set(range(picture.size)) - set(known))
        late = f"; {ranks_text(missing)} has not called rabit.init()" if missing else ""
        return f"the job starts: {len(known)} of {picture.size} ranks have met{late}"
    if picture.phase == "running":
        pace = f", {picture.step_s:.3g} s a step" if picture.step_s else ""
        shares = picture.late_share
        worst = max(shares, key=lambda rank: shares[rank]) if shares else -1
        waits = (
            f"; the others wait for rank {worst} {shares[worst]:.0%} of the time"
            if worst in picture.late
            else ""
        )
        bound = bound_of(picture)
        return f"{alive} ranks work{pace}{', ' + bound.text if bound and picture.step_s else ''}{waits}"
    if picture.oldest is None:
        return f"{alive} ranks live, nothing is awaited, and no operation has ended for some time: between steps?"
    key, waiting, missing = picture.oldest
    idle_s = max(picture.ranks[rank].idle_s for rank in waiting)
    verb = "waits" if len(waiting) == 1 else "wait"
    return (
        f"the job hangs for {idle_s:.0f} s: {ranks_text(waiting)} {verb} for {key[0]} '{key[1]}', which "
        f"{ranks_text(missing)} {'has' if len(missing) == 1 else 'have'} not submitted"
    )


def verdict_lines(diagnosis: Diagnosis, most: int = 6) -> list[str]:
    """The verdict in few lines: the first cause, its evidence and its fix; without a cause nothing."""
    if not diagnosis.causes:
        return []
    first = diagnosis.causes[0]
    lines = [f"{first.confidence}: {first.row.title} ({first.row.name})"]
    lines += [f"  {each}" for each in first.found.evidence[: most - 3]]
    lines.append(f"  fix: {first.fix}")
    others = ", ".join(f"{cause.row.name} ({cause.confidence})" for cause in diagnosis.causes[1:])
    if others and len(lines) < most:
        lines.append(f"  or: {others}")
    return [printable(line) for line in lines[:most]]


def report_lines(diagnosis: Diagnosis, has_stacks: bool = True) -> list[str]:
    """All of it, for a terminal."""
    lines = [diagnosis.summary]
    if diagnosis.is_healthy:
        lines.append("no cause of trouble is found")
    for number, cause in enumerate(diagnosis.causes, start=1):
        lines.append(f"{number}. {cause.row.title} ({cause.row.name}, {cause.confidence})")
        lines += [f"   {each}" for each in cause.found.evidence]
        lines += [f"   asked: {cause.row.query}", f"   fix: {cause.fix}"]
    if not diagnosis.causes and not diagnosis.is_healthy and diagnosis.picture.phase != "starting":
        lines.append("no row of the table explains it: see the stacks")
    if has_stacks and diagnosis.picture.phase in ("hung", "idle", "starting"):
        lines += stacks_of(diagnosis.picture)
    return [printable(line) for line in lines]


def stacks_of(picture: Picture, ranks: tuple[int, ...] = ()) -> list[str]:
    """The stacks of these ranks, or all; equal ones are merged, and ranks without one say why."""
    views = [view for rank, view in picture.ranks.items() if not ranks or rank in ranks]
    lines = []
    for same, frames in merged({view.rank: view.stack for view in views if view.stack}):
        lines.append(f"{ranks_text(same)}:")
        lines += stack_lines(frames)
    for view in views:
        if not view.stack:
            lines.append(
                f"rank {view.rank}: no stack: it {view.document.get('no_stacks') or 'has not been reached'}"
            )
    return lines


def stall_lines(diagnosis: Diagnosis) -> list[str]:
    """What the stall report adds: the verdict, the stack of a late rank and of one that waits."""
    picture = diagnosis.picture
    asked = (*picture.late[:1], *picture.waiting[:1])
    return [*verdict_lines(diagnosis), *(stacks_of(picture, asked) if asked else [])]
