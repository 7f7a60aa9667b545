"""Supervisor: oversees every rank of a job, from the start to the exit status."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rabit.launch import report
from rabit.launch.alarms import Alarms
from rabit.launch.crew import Crew
from rabit.launch.job import Job
from rabit.launch.losses import Losses
from rabit.launch.nodes.node import REPORT, RESULT, STDERR, STDOUT, Node
from rabit.launch.nodes.signals import TERMINATING, handle_signals
from rabit.launch.nodes.sink import Sink
from rabit.launch.outcome import BROKEN_PIPE_STATUS, Outcome, Problem, conclude
from rabit.launch.output.output import Output
from rabit.launch.problems import missed_text, too_late_text
from rabit.launch.roster import Roster
from rabit.launch.server_losses import ServerLosses
from rabit.launch.shutdown import Shutdown
from rabit.launch.window import Window
from rabit.types import RESUMABLE

__all__ = ["Supervisor"]

# A rank that misses another may notice before the launcher sees that one end, or needs a moment to say so.
_SETTLE_S = 1.0


class Supervisor:
    """One thread runs it; signals arrive in that thread.  Implements `Events`.

    Alarms: "start": ranks have to run by then.  "settle": a failure has no explanation that is still awaited.
    "kill" and "give up": see Shutdown.
    """

    def __init__(
        self,
        job: Job,
        roster: Roster,
        output: Output,
        sinks: Mapping[int, Sink],
        selector: selectors.BaseSelector,
        say: Callable[[str], None],
        losses: Losses | None = None,
    ) -> None:
        """losses: of an elastic job; None: it may lose no rank."""
        self._plan = job.plan
        self._start_s, self._grace_s = job.start_s, job.grace_s
        self._roster = roster
        self._output = output
        self._sinks = sinks
        self._selector = selector
        self._say = say
        self._nodes: list[Node] = []
        self._began = time.monotonic()
        losses = losses or Losses(job.plan.size, job.plan.size, roster)
        servers = ServerLosses(job.plan, roster)
        self.crew = Crew(roster, losses, servers, job.plan.name_of, self.note, self._add)
        self._alarms = Alarms()
        self._shutdown = Shutdown(self._nodes, self._alarms, job.grace_s, say, self._give_up)
        self.window = Window(roster, self._nodes, selector, job.plan.size, self.note, job.command)
        self._problem: Problem | None = None
        self._user_signal = 0

    def run(self, nodes: Sequence[Node]) -> Outcome:
        """Starts the ranks of `nodes` and stays until all have ended.  Blocks."""
        self._nodes += nodes
        self._began = time.monotonic()
        self._alarms.set("start", self._began + self._start_s, self._start_is_late)
        with handle_signals(self._selector, self._signalled):
            self.window.open()
            try:
                for node in nodes:
                    if self._problem is None:
                        node.start()
                while not self._is_over():
                    for key, _ in self._selector.select(self._wait_s()):
                        key.data()
                    self._tick(time.monotonic())
            finally:
                self.window.close()
                for node in self._nodes:
                    node.leave()
                for node in self._nodes:
                    node.finish()
        self._output.finish()
        return self._outcome()

    # Events.
    def started(self, rank: int, pid: int) -> None:
        self._roster.started(rank, pid)
        self._say(f"{self._plan.name_of(rank)} runs on {self._roster[rank].host} as process {pid}")
        if self._roster.have_all_started:
            self._alarms.clear("start")

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream == RESULT:
            self._roster[rank].result.extend(data)
        elif stream == REPORT:
            self._roster.hear(rank, data, self._now_s())
            self.crew.take_news()
            self._stop_if_missed()
        else:
            self._output.feed(rank, stream, data)

    def closed(self, rank: int, stream: int) -> None:
        if stream not in (RESULT, REPORT):
            self._output.close(rank, stream)

    def exited(self, rank: int, status: int) -> None:
        self._say(f"{self._plan.name_of(rank)} {report.describe_status(status)}")
        # A rank that leaves with RESUMABLE has done what it could, like one that has done it all.
        is_released = self._shutdown.is_releasing and rank >= self._plan.size
        is_well = status in (0, RESUMABLE) or is_released
        was_stopped = self._shutdown.has_caused(status)
        self._roster.ended(rank, status, 0 if is_well else status, self._now_s(), was_stopped)
        if self._shutdown.is_stopping:
            return
        if self.crew.ended(rank, is_well) or is_well:
            self._release_rest()
            self._stop_if_missed()
        else:
            self._stop_when_explained(rank)

    def looked(self, host: str, number: int, document: Mapping[str, Any]) -> None:
        self.window.looked(host, number, document)

    def last_seen(self, rank: int, document: Mapping[str, Any]) -> None:
        self.window.last_seen(rank, document)

    def stalled(self, rank: int) -> None:
        self.window.stalled(rank)

    def failed(self, host: str, text: str, status: int) -> None:
        if self._survives_host(host, text):
            return
        self._set_problem(text, status)
        # Ranks of a lost host have ended as far as anyone can tell.
        self._roster.vanished(self._plan.numbers_on(host), -signal.SIGKILL)
        if not self._shutdown.is_stopping:
            self._stop(signal.SIGTERM)

    def _survives_host(self, host: str, text: str) -> bool:
        """True if the job continues without a host whose processes had started."""
        lost = self._roster.not_ended(self._plan.numbers_on(host))
        if self._shutdown.is_stopping or not lost or not self._roster.have_started(lost):
            return False
        if not self.crew.lost_host(lost, text):
            return False
        self._roster.vanished(lost, -signal.SIGKILL)
        return True

    def _stop_when_explained(self, rank: int) -> None:
        """Ends a job that does not survive the end of `rank`, as soon as the cause can be known."""
        awaited = self._roster.awaited(rank)
        if not awaited and not self._roster.have_met:
            self._stop(signal.SIGTERM)
            return

        def stop() -> None:
            self._stop(signal.SIGTERM)

        # Who is missed may be writing its last words to disk; who misses it says so and ends by itself.
        is_ending = any(self._roster.is_ending(number) for number in awaited)
        until = time.monotonic() + (self._grace_s if is_ending else _SETTLE_S)
        (self._alarms.put_off if awaited else self._alarms.set)("settle", until, stop)

    def _stop_if_missed(self) -> None:
        """Ends a job whose ranks wait in init() for one that has ended without it."""
        text = missed_text(self._roster, self._plan)
        if text and not self._shutdown.is_stopping and not self.crew.is_elastic:
            self._set_problem(text, 1)
            self._stop(signal.SIGTERM)

    def _add(self, number: int, host: str, node: Node) -> None:
        """Starts one more process of an elastic job."""
        self._roster.add(number, host)
        self._output.add(number, f"{host}:{number}" if len(self._plan.hosts) > 1 else str(number))
        self._nodes.append(node)
        node.start()

    def _release_rest(self) -> None:
        """Ends servers and newcomers that are no ranks, once no rank is left; they hold nothing."""
        if self._roster.have_ranks_ended and not self._shutdown.is_releasing and not self._is_over():
            self._shutdown.release()

    # The loop.
    def _is_over(self) -> bool:
        if self._problem is not None and not self._roster.is_any_running:
            return True
        # What the others have given up is stopped perhaps, and ends with the job.
        return self._roster.is_over

    def _wait_s(self) -> float | None:
        """Seconds until something is due; None: nothing is."""
        times = (self._alarms.due(), self._output.due(), self.crew.due(), self.window.due())
        due = min((at for at in times if at is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _tick(self, now: float) -> None:
        self._output.tick(now)
        self.window.tick(now)
        is_ending = self._shutdown.is_ending or self._problem is not None
        self.crew.may_grow = not is_ending and not self._alarms.is_set("start")
        self.crew.grow()
        is_full = any(sink.is_full for sink in self._sinks.values())
        for node in self._nodes:
            node.pause(is_full)
        out = self._sinks[STDOUT]
        if out.is_broken and not out.is_closed and not self._shutdown.is_stopping:
            self._set_problem("nobody reads the output any more: the job is stopped.", BROKEN_PIPE_STATUS)
            self._stop(signal.SIGTERM)
        self._alarms.ring(now)

    def _start_is_late(self) -> None:
        late = [node for node in self._nodes if not self._roster.have_started(node.ranks)]
        self.failed(late[0].host, too_late_text(late, self._start_s), 1)

    def _give_up(self) -> None:
        for on_host in self._plan.hosts:
            if self._roster.not_ended(on_host.numbers):
                self.failed(str(on_host.host), f"the host {on_host.host} does not answer.", 1)
        self._roster.vanished(self._roster.numbers, -signal.SIGKILL)

    def _signalled(self, signum: int) -> None:
        if signum not in TERMINATING:
            for node in self._nodes:
                node.signal(signum, whole_group=False)
            return
        name = signal.Signals(signum).name
        if self._shutdown.is_stopping and (self._user_signal or signum == signal.SIGINT):
            if signum == signal.SIGINT:
                self.note(f"{name} again: killing all ranks.")
                self._shutdown.kill()
            return
        self._user_signal = signum
        self.note(
            f"{name}: stopping all ranks; those that have not ended after "
            f"{self._grace_s:g} s are killed (at once on a second Ctrl-C)."
        )
        self._stop(signum)

    def _stop(self, signum: int) -> None:
        self._roster.stopping(self._now_s())
        self._shutdown.stop(signum)

    def _now_s(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def note(self, text: str) -> None:
        """Tells the user what the job does."""
        self._output.end_line()
        self._sinks[STDERR].write_text(f"rabitrun: {text}\n")

    def _outcome(self) -> Outcome:
        roster = self._roster
        replaced = self.crew.replaced_servers
        return conclude(
            [failure for failure in roster.failures() if failure.rank not in replaced],
            roster.rank_statuses,
            {number: bytes(roster[number].result) for number in roster.numbers},
            size=self._plan.size if self._plan.servers else len(roster),
            problem=self._problem,
            user_signal=self._user_signal,
            survived=frozenset() if self._shutdown.is_stopping else roster.lost,
        )

    def _set_problem(self, text: str, status: int) -> None:
        if self._problem is None:
            self._problem = Problem(f"rabitrun: {text}\n", status, self._now_s())
