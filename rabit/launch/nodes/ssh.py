"""RemoteNode: the ranks of another host, run there by an agent that ssh starts."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rabit.errors import InvalidArgument
from rabit.launch.host_job import HostJob
from rabit.launch.hosts import Host
from rabit.launch.nodes.frames import GREETING, Decoder, Kind, frame
from rabit.launch.nodes.node import Events
from rabit.launch.nodes.way import AGENT, Way

__all__ = ["RemoteNode", "SshOptions", "ssh_command"]

_READ_BYTES = 1 << 18
_LONGEST_NOISE_BYTES = 1 << 16
_STREAM_SHIFT = 28  # OUTPUT and CLOSED carry stream << 28 | rank.
_FAREWELL_S = 2.0
_SSH_FAILED = 255


@dataclass(frozen=True)
class SshOptions:
    """How to call ssh.  Host keys are always checked, and passwords never asked for."""

    port: int | None = None
    identity_file: Path | None = None
    options: tuple[str, ...] = ()
    python: str = ""
    is_always: bool = False
    connect_timeout_s: int = 15
    program: str = "ssh"

    def command(self, host: Host, python_path: str = "", module: str = AGENT) -> list[str]:
        """See Way."""
        return ssh_command(host, self, python_path, module)

    def by_hand(self, host: Host) -> str:
        """See Way."""
        return f"{_hand_typed('ssh', host, self)} true"

    def missing(self) -> str:
        """See Way."""
        return "" if shutil.which("ssh") is not None else _NO_SSH

    def explain(self, host: Host, said: str, status: int | None) -> str:
        """See Way."""
        return _explain(host, said, status, self)


_NO_SSH = (
    "the program ssh is not in PATH. Install OpenSSH's client, or run the job on this machine alone."
)


def ssh_command(
    host: Host, ssh: SshOptions, python_path: str = "", module: str = AGENT
) -> list[str]:
    """The argument list that starts the agent, or another module, on `host`.  Nothing secret is in it."""
    command = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15"]
    command += ["-o", f"ConnectTimeout={ssh.connect_timeout_s}", "-o", "ForwardX11=no"]
    if ssh.port is not None:
        command += ["-p", str(ssh.port)]
    if ssh.identity_file is not None:
        command += ["-i", str(ssh.identity_file)]
    for option in ssh.options:
        command += ["-o", option]
    # ssh hands one text to a shell over there, so the words are quoted for it.
    agent = [ssh.python or sys.executable, "-m", module]
    if python_path:
        agent = ["env", f"PYTHONPATH={python_path}", *agent]
    return [*command, "--", host.name, "exec " + shlex.join(agent)]


class _Outbox:
    """What is on its way to the standard input of a process, which may take its time.  One thread only."""

    def __init__(self, file: IO[bytes], selector: selectors.BaseSelector) -> None:
        self._file = file
        self._selector = selector
        self._data = bytearray()
        self._is_registered = False

    def send(self, data: bytes) -> None:
        """Takes `data`; writes now what can be written without waiting."""
        if not self._file.closed:
            self._data += data
            self._write()

    def close(self, longest_s: float) -> None:
        """Closes the stream when all is written; after `longest_s` seconds at the latest, if that is above 0."""
        if self._file.closed:
            return
        deadline = time.monotonic() + longest_s
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._file, selectors.EVENT_WRITE)
            while self._data and (left := deadline - time.monotonic()) > 0:
                waiting.select(left)
                self._write()
        if longest_s or not self._data:
            self._register(False)
            self._file.close()

    def _write(self) -> None:
        try:
            while self._data:
                written = os.write(self._file.fileno(), self._data[:_READ_BYTES])
                del self._data[:written]
        except BlockingIOError:
            self._register(True)
            return
        except OSError:
            self._data.clear()  # The process has ended; its output tells why.
        self._register(False)

    def _register(self, wanted: bool) -> None:
        if wanted and not self._is_registered:
            self._selector.register(self._file, selectors.EVENT_WRITE, self._write)
        elif self._is_registered and not wanted:
            self._selector.unregister(self._file)
        self._is_registered = wanted


class RemoteNode:
    """One thread only.  The agent ends its ranks when this side's end of ssh closes.

    is_here: the agent runs on this machine, without ssh: it can outlive the launcher.
    """

    def __init__(
        self,
        host: Host,
        job: HostJob,
        way: Way,
        events: Events,
        selector: selectors.BaseSelector,
        is_here: bool = False,
    ) -> None:
        self.host = job.host
        self.ranks = tuple(rank.rank for rank in job.ranks)
        self._is_here = is_here
        self._target = host
        self._job = job
        self._way = way
        self._events = events
        self._selector = selector
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder = Decoder()
        self._noise: bytes | None = b""  # None once the agent has greeted
        self._complaints = b""  # what ssh, or the agent, wrote to the error stream
        self._outbox: _Outbox | None = None
        self._is_paused = False
        self._is_done = False
        self._running = set(self.ranks)
        self._leaves_by = 0.0  # when what is left is killed; 0: it has not been asked to end
        self.by_hand = "" if is_here else way.by_hand(host)

    def start(self) -> None:
        if not self._is_here and (missing := self._way.missing()):
            self._fail(missing)
            return
        try:
            self._process = subprocess.Popen(
                self._command(),
                env=self._job.environ if self._is_here else None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C at the terminal is the launcher's to pass on.
            )
        except OSError as error:
            self._fail(
                f"{self._program} cannot be started for {self.host}: {error.strerror}. Check the limits of the user "
                "('ulimit -a')."
            )
            return
        for file in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert file is not None
            os.set_blocking(file.fileno(), False)
        assert self._process.stdin is not None
        self._outbox = _Outbox(self._process.stdin, self._selector)
        self._register_stdout()
        self._listen(self._descriptor("stderr"), self._read_complaints)
        self._send(frame(Kind.JOB, 0, self._job.to_json()))

    def _command(self) -> list[str]:
        if self._is_here:
            return [sys.executable, "-m", AGENT]
        return self._way.command(self._target, self._job.environ.get("PYTHONPATH", ""))

    def signal(self, signum: int, whole_group: bool) -> None:
        self._send(frame(Kind.SIGNAL, signum, b"\1" if whole_group else b"\0"))

    def look(self, number: int, ask: Mapping[str, Any]) -> None:
        self._send(frame(Kind.LOOK, number, json.dumps(dict(ask)).encode()))

    def pause(self, is_paused: bool) -> None:
        if is_paused == self._is_paused or self._process is None:
            return
        self._is_paused = is_paused
        if is_paused:
            self._forget(self._descriptor("stdout"))
        else:
            self._register_stdout()

    def leave(self) -> None:
        if self._outbox is None or self._leaves_by:
            return
        self._leaves_by = time.monotonic() + self._job.grace_s + _FAREWELL_S
        if self._job.stores:  # Else the end of the connection says the same.
            self._send(frame(Kind.END))
        self._outbox.close(0.0)

    def finish(self) -> None:
        if self._process is None or self._outbox is None:
            return
        self.leave()
        # The agent takes it as: end everything and go.
        self._outbox.close(_FAREWELL_S)
        try:
            self._process.wait(max(0.0, self._leaves_by - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.pause(False)
        for file, read in (
            (self._process.stdout, self._read),
            (self._process.stderr, self._read_complaints),
        ):
            assert file is not None
            if not file.closed:
                read()
            if not file.closed:
                self._forget(file.fileno())
                file.close()
        self._process = None

    # Reading.

    def _register_stdout(self) -> None:
        if not self._is_paused:
            self._listen(self._descriptor("stdout"), self._read)

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        if self._process.stdout.closed:
            return
        try:
            data = os.read(self._process.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._forget(self._process.stdout.fileno())
            self._process.stdout.close()
            self._connection_ended()
            return
        if self._noise is not None:
            self._noise += data
            _, greeting, data = self._noise.partition(GREETING)
            if not greeting:
                self._noise = self._noise[-_LONGEST_NOISE_BYTES:]
                return
            self._noise = None
        try:
            for kind, number, payload in self._decoder.feed(data):
                self._handle(kind, number, payload)
        except InvalidArgument as error:
            self._fail(str(error))

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        if kind == Kind.HELLO:
            self._check_version(json.loads(payload))
        elif kind == Kind.STARTED:
            self._events.started(number, int(payload))
        elif kind == Kind.OUTPUT:
            rank = number & ((1 << _STREAM_SHIFT) - 1)
            self._events.output(rank, number >> _STREAM_SHIFT, payload)
        elif kind == Kind.CLOSED:
            rank = number & ((1 << _STREAM_SHIFT) - 1)
            self._events.closed(rank, number >> _STREAM_SHIFT)
        elif kind == Kind.EXITED:
            self._running.discard(number)
            self._events.exited(number, int(payload))
        elif kind == Kind.LOOKED:
            self._events.looked(self.host, number, json.loads(payload))
        elif kind == Kind.LAST:
            self._events.last_seen(number, json.loads(payload))
        elif kind == Kind.STALLED:
            self._events.stalled(number)
        elif kind == Kind.FAILED:
            document = json.loads(payload)
            self._fail(str(document["text"]), int(document["status"]))
        elif kind == Kind.DONE:
            self._is_done = True

    def _check_version(self, hello: dict[str, str]) -> None:
        if hello.get("version") != self._job.version:
            self._fail(
                f"{self.host} has mariza-rabit {hello.get('version')} (Python "
                f"{hello.get('python')}), this host has {self._job.version}. Install the same "
                "version on every host."
            )

    def _read_complaints(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        if self._process.stderr.closed:
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._process.stderr.fileno(), _READ_BYTES)
            self._complaints = (self._complaints + data)[-_LONGEST_NOISE_BYTES:]
            if not data:
                self._forget(self._process.stderr.fileno())
                self._process.stderr.close()

    def _connection_ended(self) -> None:
        assert self._process is not None
        if self._is_done or not self._running:
            return
        # ssh closes its output before it ends; what it complained about is worth the wait.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL_S)
        self._read_complaints()
        said = self._complaints.decode("utf-8", "replace").strip()
        status = self._process.poll()
        if self._noise is None:
            self._fail(
                f"the connection to {self.host} is lost ({self._program} ended with status {status}"
                f"{': ' + said if said else ''}). Its ranks end by themselves. Check the host and "
                "the network."
            )
            return
        self._fail(self._way.explain(self._target, said, status))

    @property
    def _program(self) -> str:
        return "its agent" if self._is_here else self._way.program

    def _fail(self, text: str, status: int = 1) -> None:
        self._is_done = True
        self._events.failed(self.host, text, status)

    def _send(self, data: bytes) -> None:
        if self._outbox is not None:
            self._outbox.send(data)

    # The selector.

    def _descriptor(self, name: str) -> int:
        assert self._process is not None
        file = getattr(self._process, name)
        return -1 if file is None or file.closed else int(file.fileno())

    def _listen(self, descriptor: int, read: Callable[[], None]) -> None:
        if descriptor >= 0:
            self._selector.register(descriptor, selectors.EVENT_READ, read)

    def _forget(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)


_REASONS = (
    ("Host key verification failed", "the key of the host is unknown or has changed. Run "
     "'{ssh}' once by hand and check the key, or add it to known_hosts"),
    ("Permission denied", "ssh needs a key that works without a password. Run '{copy}', or give "
     "--ssh-identity-file"),
    ("Could not resolve hostname", "the name does not resolve. Correct -H or --hostfile"),
    ("Connection refused", "no sshd listens there. Start it, or give --ssh-port"),
    ("timed out", "the host does not answer. Check that it is up and reachable"),
    ("No route to host", "the network has no way to it. Check the address"),
    ("No module named", "Python there has no rabit. Install mariza-rabit on {host}, or give "
     "--remote-python"),
    ("not found", "there is no {python} over there. Give --remote-python"),
    ("No such file or directory", "there is no {python} over there. Give --remote-python"),
)  # fmt: skip


def _hand_typed(program: str, host: Host, ssh: SshOptions) -> str:
    """How a user calls ssh, or ssh-copy-id, by hand for what rabitrun does on `host`."""
    words = [program]
    if ssh.port is not None:
        words += ["-p", str(ssh.port)]
    if ssh.identity_file is not None:
        words += ["-i", str(ssh.identity_file)]
    for option in ssh.options:
        words += ["-o", option]
    return shlex.join([*words, host.name])


def _explain(host: Host, said: str, status: int | None, ssh: SshOptions) -> str:
    shown = " / ".join(said.splitlines()[-3:]) or "nothing"
    python, by_hand = ssh.python or sys.executable, _hand_typed("ssh", host, ssh)
    # The last line says why; those before it may warn of something else.
    for line in reversed(said.splitlines()):
        for symptom, reason in _REASONS:
            if symptom in line:
                copy = _hand_typed("ssh-copy-id", host, ssh)
                advice = reason.format(host=host, python=python, ssh=by_hand, copy=copy)
                return f"the ranks on {host} cannot be started: {advice}. (ssh said: {shown})"
    what = "ssh failed" if status == _SSH_FAILED else f"the agent ended with status {status}"
    if status is not None and status < 0:
        what = f"ssh was killed by {signal.Signals(-status).name}"
    return (
        f"the ranks on {host} cannot be started: {what}; it said: {shown}. "
        f"Try by hand: {by_hand} {python} -m rabit.launch.nodes.agent"
    )
