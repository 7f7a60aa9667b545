"""Outcome: how a job has ended, and why."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rabit.launch import report
from rabit.types import RESUMABLE

__all__ = ["BROKEN_PIPE_STATUS", "Outcome", "Problem", "conclude"]

BROKEN_PIPE_STATUS = 128 + signal.SIGPIPE


@dataclass(frozen=True)
class Outcome:
    """How the job ended: the exit status, the block about the cause (or ""), what each rank
    returned through its result stream.

    has_failed: a rank, or the start of one, is the cause, and not who started the job.
    """

    status: int
    report: str
    results: Mapping[int, bytes]
    has_failed: bool = False


@dataclass(frozen=True)
class Problem:
    """Something went wrong that is not the failure of a rank."""

    text: str
    status: int
    at_s: float


def conclude(
    failures: Sequence[report.Failure],
    statuses: Mapping[int, int],
    results: Mapping[int, bytes],
    *,
    size: int,
    problem: Problem | None,
    user_signal: int,
    survived: Collection[int],
) -> Outcome:
    """The outcome of a job of `size` ranks, all of which have ended.

    failures, statuses: of the ranks.  survived: those without which the others have come to the end.
    """
    if user_signal:
        is_graceful = set(statuses.values()) <= {0, RESUMABLE}
        if not is_graceful:
            return Outcome(128 + user_signal, "", results)
        return _well(statuses, results)
    bad = {rank for rank, status in statuses.items() if status not in (0, RESUMABLE)}
    if problem is None and survived and bad.issubset(survived) and bad != set(statuses):
        return _well(statuses, results)
    culprit = report.choose_culprit(failures)
    if problem is not None and (culprit is None or problem.at_s <= culprit.at_s):
        is_reader = problem.status == BROKEN_PIPE_STATUS
        return Outcome(problem.status, problem.text, results, has_failed=not is_reader)
    if culprit is not None:
        text = report.render(culprit, failures, size)
        status = report.job_status(culprit, failures)
        return Outcome(status, text, results, has_failed=True)
    # Every rank was stopped by someone else's signal, one that the launcher also sends.
    worst = next((failure.status for failure in failures if failure.status), 0)
    if worst:
        return Outcome(report.exit_status(worst), "", results, has_failed=True)
    return _well(statuses, results)


def _well(statuses: Mapping[int, int], results: Mapping[int, bytes]) -> Outcome:
    """No rank has failed; perhaps some have left early."""
    if RESUMABLE not in statuses.values():
        return Outcome(0, "", results)
    text = f"rabitrun: the job left before its end, to be started again (status {RESUMABLE}).\n"
    return Outcome(RESUMABLE, text, results)
