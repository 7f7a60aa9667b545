"""Supervisor: oversees every rank of a job, from the start to the exit status."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from rabit.launch import report
from rabit.launch.crew import Crew
from rabit.launch.ends import Ends
from rabit.launch.job import Job
from rabit.launch.losses import Losses
from rabit.launch.nodes.node import REPORT, RESULT, STDERR, STDOUT, Node
from rabit.launch.nodes.signals import TERMINATING, handle_signals
from rabit.launch.nodes.sink import Sink
from rabit.launch.outcome import BROKEN_PIPE_STATUS, Outcome, Problem, conclude
from rabit.launch.output.output import Output
from rabit.launch.problems import missed_text, too_late_text
from rabit.launch.server_losses import ServerLosses
from rabit.types import RESUMABLE

__all__ = ["Supervisor"]

# A rank that misses another may notice before the launcher sees that one end, or needs a moment to say so.
_SETTLE_S = 1.0
# After SIGKILL a process vanishes at once; on another host, as soon as the news arrives.
_GIVE_UP_S = 5.0


class Supervisor:
    """One thread runs it; signals arrive in that thread.  Implements `Events`."""

    def __init__(
        self,
        job: Job,
        output: Output,
        sinks: Mapping[int, Sink],
        selector: selectors.BaseSelector,
        say: Callable[[str], None],
        losses: Losses | None = None,
    ) -> None:
        """losses: of an elastic job; None: it may lose no rank."""
        self._plan = plan = job.plan
        self._start_s, self._grace_s = job.start_s, job.grace_s
        self._output = output
        self._sinks = sinks
        self._selector = selector
        self._say = say
        self._nodes: list[Node] = []
        self._began = time.monotonic()
        self._host_of = {number: str(each.host) for each in plan.hosts for number in each.numbers}
        self._is_started: set[int] = set()
        self._statuses: dict[int, int] = {}
        self._ends = Ends(self._host_of, output.tail)
        losses = losses or Losses(plan.size, plan.size)
        self.crew = Crew(
            losses, ServerLosses(plan), plan.name_of, self._host_of, self.note, self._add
        )
        self._problem: Problem | None = None
        self._results: dict[int, bytearray] = {}
        self._sent: set[int] = set()
        self._is_releasing = False  # servers and newcomers, since all ranks have ended
        self._user_signal = 0
        self._is_stopping = False
        self._start_by: float | None = None
        self._settle_at: float | None = None
        self._kill_at: float | None = None
        self._give_up_at: float | None = None

    def run(self, nodes: Sequence[Node]) -> Outcome:
        """Starts the ranks of `nodes` and stays until all have ended.  Blocks."""
        self._nodes = list(nodes)
        self._began = time.monotonic()
        self._start_by = self._began + self._start_s
        with handle_signals(self._selector, self._signalled):
            try:
                for node in nodes:
                    if self._problem is None:
                        node.start()
                while not self._is_over():
                    for key, _ in self._selector.select(self._wait_s()):
                        key.data()
                    self._tick(time.monotonic())
            finally:
                for node in self._nodes:
                    node.leave()
                for node in self._nodes:
                    node.finish()
        self._output.finish()
        return self._outcome()

    # Events.
    def started(self, rank: int, pid: int) -> None:
        self._is_started.add(rank)
        self._say(f"{self._plan.name_of(rank)} runs on {self._host_of[rank]} as process {pid}")
        if len(self._is_started) == self._plan.processes:
            self._start_by = None

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream == RESULT:
            self._results.setdefault(rank, bytearray()).extend(data)
        elif stream == REPORT:
            self._ends.hear(rank, data, time.monotonic() - self._began)
            self.crew.take_news(self._ends)
            self._stop_if_missed()
        else:
            self._output.feed(rank, stream, data)

    def closed(self, rank: int, stream: int) -> None:
        if stream not in (RESULT, REPORT):
            self._output.close(rank, stream)

    def exited(self, rank: int, status: int) -> None:
        now = time.monotonic()
        self._statuses[rank] = status
        self._say(f"{self._plan.name_of(rank)} {report.describe_status(status)}")
        was_stopped = any(status in (-each, 128 + each) for each in self._sent)
        # A rank that leaves with RESUMABLE has done what it could, like one that has done it all.
        is_well = status in (0, RESUMABLE) or (self._is_releasing and rank >= self._plan.size)
        self._ends.add(rank, 0 if is_well else status, now - self._began, was_stopped)
        if self._is_stopping:
            return
        if self.crew.ended(rank, self._ends, is_well) or is_well:
            self._release_rest()
            self._stop_if_missed()
            return
        awaited = self._ends.awaited(rank)
        if not awaited and not self._ends.have_met:
            self._stop(signal.SIGTERM)
            return
        # Who is missed may be writing its last words to disk; who misses it says so and ends by itself.
        is_ending = any(self._ends.is_ending(each) for each in awaited)
        until = now + (self._grace_s if is_ending else _SETTLE_S)
        self._settle_at = max(self._settle_at or until, until) if awaited else until

    def _stop_if_missed(self) -> None:
        """Ends a job whose ranks wait in init() for one that has ended without it."""
        text = missed_text(self._ends, self._plan, self._host_of)
        if text and not self._is_stopping and not self.crew.is_elastic:
            self._set_problem(text, 1)
            self._stop(signal.SIGTERM)

    def _add(self, number: int, host: str, node: Node) -> None:
        """Starts one more process of an elastic job."""
        self._host_of[number] = host
        self._output.add(number, f"{host}:{number}" if len(self._plan.hosts) > 1 else str(number))
        self._nodes.append(node)
        node.start()

    def failed(self, host: str, text: str, status: int) -> None:
        if self._survives_host(host, text):
            return
        self._set_problem(text, status)
        for each in self._plan.hosts:
            if str(each.host) == host:
                for number in each.numbers:
                    # Ranks of a lost host have ended as far as anyone can tell.
                    self._statuses.setdefault(number, -signal.SIGKILL)
        if not self._is_stopping:
            self._stop(signal.SIGTERM)

    def _survives_host(self, host: str, text: str) -> bool:
        """True if the job goes on without a host whose processes had started."""
        lost = [each for each in self._plan.numbers_on(host) if each not in self._statuses]
        if self._is_stopping or not lost or not self._is_started.issuperset(lost):
            return False
        if not self.crew.lost_host(lost, text):
            return False
        self._statuses.update(dict.fromkeys(lost, -signal.SIGKILL))
        return True

    # The loop.
    def _is_over(self) -> bool:
        if self._problem is not None and not self._is_started - set(self._statuses):
            return True
        # What the others have given up is stopped perhaps, and ends with the job.
        return self._host_of.keys() <= self.crew.lost.union(self._statuses)

    def _release_rest(self) -> None:
        """Ends servers and newcomers that are no ranks, once no rank is left; they hold nothing."""
        ended = self.crew.lost.union(self._statuses)
        if self._is_releasing or self._is_over() or not self.crew.ranks <= ended:
            return
        self._is_releasing = True
        self._kill_at = time.monotonic() + self._grace_s
        for node in self._nodes:
            node.signal(signal.SIGTERM, whole_group=False)

    def _wait_s(self) -> float | None:
        due = (self._output.due(), self.crew.due())
        return _left_s(self._start_by, self._settle_at, self._kill_at, self._give_up_at, *due)

    def _tick(self, now: float) -> None:
        self._output.tick(now)
        is_ending = self._is_stopping or self._is_releasing or self._problem is not None
        self.crew.may_grow = self._start_by is None and not is_ending
        self.crew.grow()
        is_full = any(sink.is_full for sink in self._sinks.values())
        for node in self._nodes:
            node.pause(is_full)
        out = self._sinks[STDOUT]
        if out.is_broken and not out.is_closed and not self._is_stopping:
            self._set_problem("nobody reads the output any more: the job is stopped.", BROKEN_PIPE_STATUS)
            self._stop(signal.SIGTERM)
        if self._start_by is not None and now >= self._start_by:
            self._start_by = None
            late = [each for each in self._nodes if not self._is_started.issuperset(each.ranks)]
            self.failed(late[0].host, too_late_text(late, self._start_s), 1)
        if self._settle_at is not None and now >= self._settle_at and not self._is_stopping:
            self._stop(signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            self._say("the grace time is over: killing what is left")
            self._kill(now)
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            for each in self._plan.hosts:
                if any(number not in self._statuses for number in each.numbers):
                    self.failed(str(each.host), f"the host {each.host} does not answer.", 1)
            self._statuses = {**dict.fromkeys(self._host_of, -signal.SIGKILL), **self._statuses}

    def _signalled(self, signum: int) -> None:
        if signum not in TERMINATING:
            for node in self._nodes:
                node.signal(signum, whole_group=False)
            return
        name = signal.Signals(signum).name
        if self._is_stopping and (self._user_signal or signum == signal.SIGINT):
            if signum == signal.SIGINT:
                self.note(f"{name} again: killing all ranks.")
                self._kill(time.monotonic())
            return
        self._user_signal = signum
        self.note(
            f"{name}: stopping all ranks; those that have not ended after "
            f"{self._grace_s:g} s are killed (at once on a second Ctrl-C)."
        )
        self._stop(signum)

    def _stop(self, signum: int) -> None:
        self._is_stopping = True
        self._ends.stopping(time.monotonic() - self._began)
        self._settle_at = self._start_by = None
        self._sent.add(signum)
        self._kill_at = time.monotonic() + self._grace_s
        for node in self._nodes:
            node.signal(signum, whole_group=True)
            # A stopped (SIGSTOP) process acts on a signal only when it goes on.
            node.signal(signal.SIGCONT, whole_group=True)

    def _kill(self, now: float) -> None:
        self._kill_at = None
        self._give_up_at = now + _GIVE_UP_S
        self._sent.add(signal.SIGKILL)
        for node in self._nodes:
            node.signal(signal.SIGKILL, whole_group=True)

    def note(self, text: str) -> None:
        """Tells the user what the job does."""
        self._output.end_line()
        self._sinks[STDERR].write_text(f"rabitrun: {text}\n")

    def _outcome(self) -> Outcome:
        return conclude(
            [each for each in self._ends.all() if each.rank not in self.crew.replaced_servers],
            {rank: each for rank, each in self._statuses.items() if rank in self.crew.ranks},
            {rank: bytes(data) for rank, data in self._results.items()},
            size=self._plan.size if self._plan.servers else len(self._host_of),
            problem=self._problem,
            user_signal=self._user_signal,
            survived=frozenset() if self._is_stopping else self.crew.lost,
        )

    def _set_problem(self, text: str, status: int) -> None:
        if self._problem is None:
            self._problem = Problem(f"rabitrun: {text}\n", status, time.monotonic() - self._began)


def _left_s(*times: float | None) -> float | None:
    """Seconds until the first of those that are set; None: none is."""
    given = [each for each in times if each is not None]
    return max(0.0, min(given) - time.monotonic()) if given else None
