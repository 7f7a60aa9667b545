"""LocalNode: the ranks that are children of this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rabit.diagnostics.ending import REPORT_FD
from rabit.errors import InvalidArgument
from rabit.launch.host_job import HostJob, RankJob
from rabit.launch.nodes import guard
from rabit.launch.nodes.node import REPORT, RESULT, STDERR, STDOUT, Events
from rabit.launch.nodes.records import HostRecords
from rabit.launch.processors import HostProcessors, bind_with_servers, thread_count
from rabit.launch.secret import memory_file
from rabit.threads import start_thread

__all__ = ["LocalNode"]

_READ_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_GUARD_TIMEOUT_S = 5.0
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # As a shell reports them.


@dataclass
class _Child:
    rank: int
    process: subprocess.Popen[bytes]
    watch: int  # readable when the process has ended
    streams: dict[int, int] = field(default_factory=dict)  # descriptor -> stream
    has_exited: bool = False


class LocalNode:
    """Starts ranks as children, each in a session of its own.  One thread only.

    A child that has ended stays a zombie until `finish`, so that its process group, which
    grandchildren may still populate, can be signalled without ever hitting a stranger.
    """

    by_hand = ""

    def __init__(self, job: HostJob, events: Events, selector: selectors.BaseSelector) -> None:
        self.host = job.host
        self.ranks = tuple(rank.rank for rank in job.ranks)
        self._job = job
        self._events = events
        self._selector = selector
        self._children: list[_Child] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        self._records = HostRecords(job, events, selector)
        self._record_environ: dict[str, str] = {}
        self._is_well = True

    def start(self) -> None:
        problem = _problem(self._job)
        if problem is not None:
            self._events.failed(self.host, *problem)
            return
        host = HostProcessors.here()
        try:
            # Servers are last.
            servers = sum(rank.is_server for rank in self._job.ranks)
            first_server = len(self._job.ranks) - servers
            ranks = self._job.slots or first_server
            places, serving = bind_with_servers(self._job.bind_to, ranks, servers, host)
        except InvalidArgument as error:
            self._events.failed(self.host, f"{self.host}: {error}", 1)
            return
        self._record_environ = self._records.environ()
        try:
            self._records.serve()
        except InvalidArgument as error:
            self._events.failed(self.host, f"{self.host}: {error}", 1)
            return
        inherited: list[int] = []
        try:
            self._guard = _start_guard(self._job.job)
            secret = payload = -1
            if self._job.secret is not None:
                secret = memory_file(self._job.secret.hex().encode(), "secret")
                inherited.append(secret)
            if self._job.payload is not None:
                payload = memory_file(self._job.payload, "call")
                inherited.append(payload)
            for index, each in enumerate(self._job.ranks):
                if each.is_server:
                    with _bound_to(serving[index - first_server]):
                        self._start_rank(each, 1, secret, -1)
                    continue
                slot = (self._job.first_slot + index) % len(places)
                threads = thread_count(slot, places, host.quota)
                with _bound_to(places[slot]):
                    self._start_rank(each, threads, secret, payload)
        except OSError as error:
            command = self._job.command[0] if self._job.command else sys.executable
            status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
            self._events.failed(
                self.host,
                f"{command!r} cannot be started on {self.host}: {error.strerror or error}. "
                "Check the command, its first line (#!), and the limits of the user.",
                status,
            )
        finally:
            for descriptor in inherited:
                os.close(descriptor)

    def _start_rank(self, rank: RankJob, threads: int, secret: int, payload: int) -> None:
        environ = {**self._job.environ, **rank.environ, **self._record_environ, guard.MARK: self._job.job}
        if self._job.sets_threads:
            environ.setdefault("OMP_NUM_THREADS", str(threads))
        passed = []
        if secret >= 0:
            passed.append(secret)
            environ["RABIT_SECRET_FD"] = str(secret)
        command = list(self._job.command)
        if rank.is_server:
            command = [sys.executable, "-m", "rabit.server"]
        # Of what the launcher reads besides the standard streams: our end -> the stream.
        ours: dict[int, int] = {}
        report_read, report_write = os.pipe()
        ours[report_read] = REPORT
        theirs = [report_write]
        environ[REPORT_FD] = str(report_write)
        if payload >= 0:
            result_read, result_write = os.pipe()
            ours[result_read] = RESULT
            theirs.append(result_write)
            passed.append(payload)
            command = [sys.executable, "-m", "rabit.launch.call", str(payload), str(result_write)]
        try:
            process = subprocess.Popen(
                command,
                cwd=self._job.directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=[*passed, *theirs],
            )
        except OSError:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._tell_guard(process.pid)
        child = _Child(rank.rank, process, _exit_watch(process.pid))
        self._children.append(child)
        assert process.stdout is not None and process.stderr is not None
        standard = {process.stdout.fileno(): STDOUT, process.stderr.fileno(): STDERR}
        # What is read first counts as said first: a reason before the text that goes with it.
        child.streams = {**ours, **standard}
        for descriptor in child.streams:
            os.set_blocking(descriptor, False)
            _enlarge(descriptor)
            self._listen(child, descriptor)
        self._selector.register(child.watch, selectors.EVENT_READ, lambda: self._ended(child))
        self._records.started(rank.rank, process.pid)
        self._events.started(rank.rank, process.pid)

    def _listen(self, child: _Child, descriptor: int) -> None:
        if not self._is_paused:
            self._selector.register(
                descriptor, selectors.EVENT_READ, lambda: self._read(child, descriptor)
            )

    def _read(self, child: _Child, descriptor: int) -> None:
        stream = child.streams.get(descriptor)
        if stream is None:
            return
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._events.output(child.rank, stream, data)
        else:
            self._close_stream(child, descriptor)

    def _close_stream(self, child: _Child, descriptor: int) -> None:
        stream = child.streams.pop(descriptor)
        with contextlib.suppress(KeyError):  # Paused streams are not registered.
            self._selector.unregister(descriptor)
        if stream in (RESULT, REPORT):
            os.close(descriptor)
        else:
            file = child.process.stdout if stream == STDOUT else child.process.stderr
            assert file is not None
            file.close()
        self._events.closed(child.rank, stream)

    def _ended(self, child: _Child) -> None:
        found = os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is None or child.has_exited:
            return
        child.has_exited = True
        self._selector.unregister(child.watch)
        os.close(child.watch)
        # What it wrote last explains why it ended: read that before telling of the end.
        for descriptor in list(child.streams):
            self._drain(child, descriptor)
        is_exit = found.si_code == os.CLD_EXITED
        is_well = is_exit and found.si_status == 0
        self._is_well = self._is_well and is_well
        if document := self._records.ended(child.rank, is_well):
            self._events.last_seen(child.rank, document)
        self._events.exited(child.rank, found.si_status if is_exit else -found.si_status)

    def _drain(self, child: _Child, descriptor: int) -> None:
        # Bounded: a grandchild may continue writing for ever.
        for _ in range(2 * _PIPE_BYTES // _READ_BYTES):
            if descriptor not in child.streams or self._is_paused:
                return
            before = _readable_bytes(descriptor)
            self._read(child, descriptor)
            if not before:
                return

    def signal(self, signum: int, whole_group: bool) -> None:
        for child in self._children:
            # The group of a rank that has ended may still have members.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if whole_group:
                    os.killpg(child.process.pid, signum)
                elif not child.has_exited:
                    os.kill(child.process.pid, signum)

    def look(self, number: int, ask: Mapping[str, Any]) -> None:
        self._records.look(number, dict(ask))

    def pause(self, is_paused: bool) -> None:
        if is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        for child in self._children:
            for descriptor in child.streams:
                if is_paused:
                    self._selector.unregister(descriptor)
                else:
                    self._listen(child, descriptor)

    def leave(self) -> None:
        self.signal(signal.SIGKILL, whole_group=True)

    def finish(self) -> None:
        sessions = {child.process.pid for child in self._children}
        self.leave()
        if self._children:
            guard.kill_members(self._job.job, sessions)
        self.pause(False)
        for child in self._children:
            child.process.wait()
            if not child.has_exited:
                self._selector.unregister(child.watch)
                os.close(child.watch)
                child.has_exited = True
            for descriptor in list(child.streams):
                self._drain(child, descriptor)
                if descriptor in child.streams:
                    self._close_stream(child, descriptor)
        self._records.finish(self._is_well and all(child.process.returncode == 0 for child in self._children))
        self._children.clear()
        if self._guard is not None:
            self._tell_guard("done")
            assert self._guard.stdin is not None
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
            try:
                self._guard.wait(_GUARD_TIMEOUT_S)
            except subprocess.TimeoutExpired:  # Somebody has stopped it, and it has nothing left to do.
                self._guard.kill()
                self._guard.wait()
            self._guard = None

    def _tell_guard(self, word: object) -> None:
        assert self._guard is not None and self._guard.stdin is not None
        with contextlib.suppress(OSError):  # Without a guard the job still runs and ends well.
            self._guard.stdin.write(f"{word}\n".encode())


def _problem(job: HostJob) -> tuple[str, int] | None:
    """Why the ranks cannot be started, and the exit status for it."""
    if not os.access(f"{job.directory}/.", os.X_OK):
        return (
            f"the working directory {job.directory} does not exist on {job.host}, or may not be entered. Make it "
            "there, or start rabitrun from a directory that all hosts have.",
            1,
        )
    if job.payload is not None:
        return None
    name = job.command[0]
    path = job.environ.get("PATH", os.defpath)
    file = Path(job.directory) / name
    if shutil.which(name if "/" not in name else str(file), path=path) is not None:
        return None
    try:
        is_file = stat.S_ISREG(file.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_file = False
    except OSError as error:
        return (
            f"the command {name!r} cannot be read on {job.host}: {error.strerror}. Correct its path, or the "
            "permissions of the file and of the folders above it.",
            _NOT_EXECUTABLE,
        )
    if not is_file:
        return (
            f"the command {name!r} is not found on {job.host}. Check its spelling"
            + ("." if "/" in name else f" and PATH ({path})."),
            _NOT_FOUND,
        )
    word = shlex.quote(name)
    if name.endswith(".py"):
        hint = f"Start it as: python {word}, or run: chmod +x {word}"
    elif "/" in name:
        hint = f"Run: chmod +x {word}"
    else:
        hint = f"Start it as: ./{word}, or run: chmod +x {word}"
    return (
        f"the command {name!r} is a file that is not executable or not in PATH on {job.host}. {hint}",
        _NOT_EXECUTABLE,
    )


@contextlib.contextmanager
def _bound_to(processors: frozenset[int]) -> Iterator[None]:
    """A child that this thread starts meanwhile may use only these processors."""
    before = os.sched_getaffinity(0)
    if processors == before:
        yield
        return
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _start_guard(job: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, job],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        bufsize=0,
        start_new_session=True,
    )


def _exit_watch(pid: int) -> int:
    """A descriptor that becomes readable when the child `pid` has ended."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        # An old kernel or a strict sandbox: a thread waits instead.
        read_end, write_end = os.pipe()

        def wait() -> None:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            os.close(write_end)

        start_thread(wait, f"wait-{pid}")
        return read_end


def _enlarge(descriptor: int) -> None:
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # The user's limit for pipes is used up.
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _readable_bytes(descriptor: int) -> int:
    import array
    import termios

    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
