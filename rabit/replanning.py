"""A job whose plan was probed notices a network that gets slower, and makes a new plan while it trains."""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

from rabit.engine.engine import Engine
from rabit.ops.votes import Vote
from rabit.planned import FollowedPlan, exchanged, put_in_force, report_probe
from rabit.planner.document import PlanDocument, described, document_of
from rabit.planner.plan import Plan
from rabit.planner.reach import changed_links, reached
from rabit.probe import Probe, probe

__all__ = ["ExchangeRates", "PlanWatch"]

# A window has enough steps, and lasts long enough, for a busy moment not to count.
_STEPS_MIN, _STEPS_MAX = 5, 1000
_WINDOW_S = 2.0
# All probes after the first one together: of the time since the start.
_PROBING_SHARE = 0.02
# When the network is probed to see whether it is as it was: so many times what a probe takes after the last one.
_LATER = 100
_SLOWER = 0.8  # of the usual rate
_BETTER = 1.05  # what a new plan has to gain by
_WANTS_PROBE = 1


class ExchangeRates:
    """How fast a job exchanges, by windows of some training steps; it has a usual rate after three of them."""

    def __init__(self) -> None:
        self._rates: list[float] = []
        self._step_bytes = 0.0
        self._usual = 0.0

    def note(self, steps: int, sent_bytes: int, seconds: float) -> float:
        """How many times as long as usual the last two windows took; 1 if no longer.

        sent_bytes, seconds: what all exchanges of the window carried, and for how long at least one was under way.
        A window that exchanges other amounts than the one before, as an evaluation does, is compared with none before.
        """
        if sent_bytes <= 0 or seconds <= 0 or steps <= 0:
            return 1.0
        before, self._step_bytes = self._step_bytes, sent_bytes / steps
        if abs(before - self._step_bytes) > 0.1 * self._step_bytes:
            self._rates.clear()
        self._rates.append(sent_bytes / seconds)
        del self._rates[:-3]
        if len(self._rates) < 3:
            return 1.0
        self._usual = max(self._usual, median(self._rates))
        best = max(self._rates[-2:])
        return self._usual / best if best < _SLOWER * self._usual else 1.0

    def restart(self) -> None:
        """What was usual no longer is."""
        self._rates.clear()
        self._usual = 0.0


class PlanWatch:
    """Looks at the rate of the exchanges of a job and replaces its plan; of one rank, in the thread that trains.

    Rank 0 decides, and a vote after the last step of each window makes its decision that of all ranks, at the step
    after it. Nothing is sent to measure before exchanges take longer than usual. Source of the idea: Luo et al., PLink:
    Discovering and Exploiting Locality for Accelerated Distributed Training (2020).
    """

    def __init__(self, engine: Engine, followed: FollowedPlan) -> None:
        self._engine = engine
        self._followed = followed
        self._rates = ExchangeRates()
        self._began = self._probed_at = self._window_at = time.monotonic()
        self._probing_s = 0.0
        self._later_s = 0.0  # 0: nothing has changed so far
        self._slower = 1.0
        self._counted: tuple[int, int] | None = None  # bytes, microseconds
        self._steps = 0
        self._window_steps = _STEPS_MIN
        self._votes_at = _STEPS_MIN
        self._vote: Vote | None = None

    def end_step(self) -> None:
        """After each training step, on every rank."""
        self._steps += 1
        if self._steps < self._votes_at:
            return
        if self._vote is None:
            self._vote = Vote(self._wish(), "rabit.plan.watch", engine=self._engine)
            return
        decided, self._vote = self._vote.wait(), None
        self._window_steps = decided >> 1
        if not self._window_steps:  # Rank 0 has joined, and watches no more.
            self._engine.plan_watch = None
            return
        if decided & _WANTS_PROBE:
            self._probe_again()
        self._votes_at = self._steps + self._window_steps - 1

    def _wish(self) -> int:
        """What rank 0 wants: the steps of the next window, and whether to probe."""
        if self._engine.rank != 0:
            return 0
        now = time.monotonic()
        took, self._window_at = now - self._window_at, now
        steps = min(
            max(round(self._window_steps * _WINDOW_S / max(took, 1e-3)), _STEPS_MIN), _STEPS_MAX
        )
        self._slower = self._measure()
        wants = self._slower > 1 or (0 < self._later_s < now - self._probed_at)
        can = self._probing_s + self._followed.found.seconds <= _PROBING_SHARE * (now - self._began)
        return steps << 1 | (_WANTS_PROBE if wants and can else 0)

    def _measure(self) -> float:
        document = self._engine.statistics()
        counted = int(document["totals"]["wire_bytes"]), int(document["communication_us"])
        before, self._counted = self._counted, counted
        if before is None or self._engine.is_tuning:  # It changes rates itself.
            return 1.0
        return self._rates.note(
            self._window_steps, counted[0] - before[0], (counted[1] - before[1]) * 1e-6
        )

    def _probe_again(self) -> None:
        began = time.perf_counter()
        engine, before = self._engine, self._followed
        if (
            len(exchanged(engine, {})) < engine.size
        ):  # A rank has joined: others wait for the end of the data alone.
            engine.plan_watch = None
            return
        found = probe(engine, before.hosts)
        report_probe(engine, found)
        told = exchanged(engine, self._better(found) if engine.rank == 0 else {})[0]
        document = document_of(told["plan"]) if told["plan"] else before.document
        if told["plan"]:
            put_in_force(engine, document, before.hosts, "auto", began)
        self._followed = FollowedPlan(before.hosts, found, document)
        report = engine.reports["plan"]
        report["probes"] = report.get("probes", 1) + 1
        report["replanned_at"] = [
            *report.get("replanned_at", []),
            *([engine.steps] if told["plan"] else []),
        ]
        self._restart(time.perf_counter() - began, is_changed=bool(told["changes"]))
        if engine.rank == 0:
            print(f"rabit: step {engine.steps}: {told['text']}", file=sys.stderr)

    def _restart(self, took_s: float, *, is_changed: bool) -> None:
        self._probing_s += took_s
        self._later_s = _LATER * took_s if is_changed else 2 * self._later_s
        self._probed_at = self._window_at = time.monotonic()
        self._counted = None
        self._rates.restart()

    def _better(self, found: Probe) -> dict[str, Any]:
        """The plan that is put in force, or None for the one that is; what has changed, and what is printed of it."""
        plan, before = Plan(found.topology), self._followed.document
        document = described(plan)
        after = document_of(document)
        gain = max(_gain(before, after, found, kind) for kind in ("allreduce", "allgather"))
        changes = changed_links(self._followed.topology, found.topology)
        why = (
            f"exchanges take {self._slower:.1f} times as long as before; "
            if self._slower > 1
            else ""
        )
        text = f"{why}the network was probed in {found.seconds:.1f} s: {', '.join(changes) or 'as before'}"
        if gain < _BETTER:
            return {"plan": None, "changes": changes, "text": f"{text}; the plan stays"}
        rates = [reached(way, found.topology) for way in (after, before)]
        text += f"; a new plan is in force: an allreduce can reach {rates[0]:.4g} Mbit/s, {rates[1]:.4g} along the last"
        return {"plan": document, "changes": changes, "text": text}


def _gain(before: PlanDocument, after: PlanDocument, found: Probe, kind: str) -> float:
    return reached(after, found.topology, kind) / reached(before, found.topology, kind)
