"""The agent: runs the ranks of one host for a launcher on another.

ssh starts it.  The job, with its secret, comes as one frame over standard input; what happens
to the ranks goes back over standard output.  When standard input closes, the launcher is gone
and the ranks are stopped; in a job with several stores they continue, as long as a majority answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import selectors
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rabit.errors import InvalidArgument
from rabit.launch import report
from rabit.launch.host_job import HostJob
from rabit.launch.nodes.aftermath import Aftermath
from rabit.launch.nodes.frames import GREETING, Decoder, Kind, frame
from rabit.launch.nodes.local import LocalNode
from rabit.launch.nodes.node import REPORT, RESULT, STDERR, STDOUT
from rabit.launch.nodes.signals import handle_signals
from rabit.launch.nodes.sink import Sink
from rabit.types import RESUMABLE
from rabit.version import __version__

if TYPE_CHECKING:
    from rabit.launch.nodes.keeper import Keeper

__all__ = ["main"]

_READ_BYTES = 1 << 18
_STREAM_SHIFT = 28
_JOB_TIMEOUT_S = 60.0
# A launcher that takes no output for so long is taken to be lost, where ranks continue without it.
_STUCK_S = 30.0


class Agent:
    """One thread only.  Implements `Events` by passing everything on."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._out = Sink(1, selector)
        self._decoder = Decoder()
        self._node: LocalNode | None = None
        self._job: HostJob | None = None
        self._running: set[int] = set()
        self._grace_s = 5.0
        self._is_orphan = False
        self._keeper: Keeper | None = None  # where ranks continue without the launcher
        self._aftermath: Aftermath | None = None  # since it is gone
        self._full_since: float | None = None
        self._kill_at: float | None = None
        self._job_by: float | None = time.monotonic() + _JOB_TIMEOUT_S

    def run(self) -> int:
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ, self._read)
        hello = {"version": __version__, "python": platform.python_version()}
        self._out.write(GREETING + frame(Kind.HELLO, 0, json.dumps(hello).encode()))
        with handle_signals(self._selector, self._signalled):
            try:
                while not self._is_over():
                    for key, _ in self._selector.select(self._wait_s()):
                        key.data()
                    self._tick(time.monotonic())
            finally:
                if self._node is not None:
                    self._node.finish()
                self._take_leave()
        self._out.write(frame(Kind.DONE))
        self._out.flush(self._grace_s)
        return 0

    def _is_over(self) -> bool:
        if self._node is None:
            return self._is_orphan
        return not self._running

    def _wait_s(self) -> float | None:
        stuck_at = None if self._full_since is None else self._full_since + _STUCK_S + 1.0
        times = [e for e in (self._kill_at, self._job_by, stuck_at) if e is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _take_leave(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        if self._aftermath is not None:
            if self._keeper is not None and self._keeper.outcome:
                self._aftermath.note(f"{self._keeper.outcome}.")
            self._aftermath.close()

    def _tick(self, now: float) -> None:
        if self._node is not None:
            is_full = self._out.is_full and self._aftermath is None
            self._full_since = (self._full_since or now) if is_full else None
            if is_full and self._keeper is not None and now - (self._full_since or now) > _STUCK_S:
                self._launcher_gone()
            self._node.pause(is_full and self._aftermath is None)
            if self._kill_at is not None and now >= self._kill_at:
                self._kill_at = None
                self._node.signal(signal.SIGKILL, whole_group=True)
        if self._out.is_broken:
            self._launcher_gone()
        if self._job_by is not None and now >= self._job_by:
            self._job_by = None
            self._orphaned()

    def _read(self) -> None:
        try:
            data = os.read(0, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(0)
            self._launcher_gone()
            return
        for kind, number, payload in self._decoder.feed(data):
            if kind == Kind.JOB and self._node is None:
                self._start(payload)
            elif kind == Kind.SIGNAL and self._node is not None:
                with contextlib.suppress(ValueError):
                    self._node.signal(signal.Signals(number), payload == b"\1")
            elif kind == Kind.LOOK and self._node is not None:
                self._node.look(number, json.loads(payload))
            elif kind == Kind.END:
                self._orphaned()

    def _start(self, payload: bytes) -> None:
        self._job_by = None
        job = HostJob.from_json(payload)
        self._grace_s = job.grace_s
        if job.version != __version__:
            return  # The launcher has seen our version and tells the user.
        # This host's own variables, such as HOME, and the job's on top.
        job = _with_own_environ(job)
        self._running = {rank.rank for rank in job.ranks}
        self._node = LocalNode(job, self, self._selector)
        self._job = job
        if job.stores:
            self._keeper = self._make_keeper(job)
        self._node.start()

    def _make_keeper(self, job: HostJob) -> Keeper:
        # Other jobs need no native library here.
        from rabit.launch.nodes.keeper import Keeper
        from rabit.rendezvous.replicated_store import several_stores

        assert job.secret is not None
        store = several_stores(job.stores, job.secret)
        return Keeper(store, self._running, self._selector, self._unwanted)

    def _unwanted(self, why: str) -> None:
        """Said when the launcher is gone."""
        if self._aftermath is not None and not self._is_orphan:
            self._aftermath.note(f"{why}: what is left of the job on this host ends.")
        self._orphaned()

    def _launcher_gone(self) -> None:
        if self._keeper is None or self._is_orphan:
            self._orphaned()
            return
        if self._aftermath is not None:
            return
        assert self._job is not None
        self._aftermath = Aftermath(self._job.directory, self._job.host)
        self._aftermath.note(
            "the launcher is gone. The ranks of this host continue while most of the stores of the job answer; "
            f"what they write comes here. To end them: kill {os.getpid()}"
        )
        self._keeper.alone()

    def _orphaned(self) -> None:
        if self._is_orphan:
            return
        self._is_orphan = True
        if self._node is not None:
            self._node.signal(signal.SIGTERM, whole_group=True)
            self._kill_at = time.monotonic() + self._grace_s

    def _signalled(self, signum: int) -> None:
        # Where ranks continue without the launcher they continue without the terminal.
        is_theirs = signum != signal.SIGHUP or self._keeper is None
        if self._node is not None and is_theirs:
            self._node.signal(signum, whole_group=signum not in (signal.SIGUSR1, signal.SIGUSR2))
        if signum == signal.SIGTERM:
            self._orphaned()
        elif signum == signal.SIGHUP:
            self._launcher_gone()

    # Events.

    def started(self, rank: int, pid: int) -> None:
        self._out.write(frame(Kind.STARTED, rank, str(pid).encode()))

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if self._aftermath is not None:
            if stream in (STDOUT, STDERR):
                self._aftermath.output(rank, stream, data)
            return
        self._out.write(frame(Kind.OUTPUT, stream << _STREAM_SHIFT | rank, data))

    def closed(self, rank: int, stream: int) -> None:
        if stream in (STDOUT, STDERR, RESULT, REPORT):
            self._out.write(frame(Kind.CLOSED, stream << _STREAM_SHIFT | rank))

    def exited(self, rank: int, status: int) -> None:
        self._running.discard(rank)
        self._out.write(frame(Kind.EXITED, rank, str(status).encode()))
        how = "" if status in (0, RESUMABLE) else report.describe_status(status)
        if self._keeper is not None:
            self._keeper.ended(rank, how)
        if self._aftermath is not None:
            self._aftermath.note(f"rank {rank} {how or report.describe_status(status)}")

    def looked(self, host: str, number: int, document: Mapping[str, Any]) -> None:
        self._out.write(frame(Kind.LOOKED, number, json.dumps(document).encode()))

    def last_seen(self, rank: int, document: Mapping[str, Any]) -> None:
        self._out.write(frame(Kind.LAST, rank, json.dumps(document).encode()))

    def stalled(self, rank: int) -> None:
        self._out.write(frame(Kind.STALLED, max(0, rank)))

    def failed(self, host: str, text: str, status: int) -> None:
        self._running.clear()
        document = json.dumps({"text": text, "status": status})
        self._out.write(frame(Kind.FAILED, 0, document.encode()))


def _with_own_environ(job: HostJob) -> HostJob:
    import dataclasses

    return dataclasses.replace(job, environ={**os.environ, **job.environ})


def main() -> int:
    with selectors.DefaultSelector() as selector:
        try:
            return Agent(selector).run()
        except InvalidArgument as error:
            print(f"rabit agent: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
