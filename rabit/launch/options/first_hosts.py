"""Of how many ranks a job starts, and where, as Horovod's flags of elastic jobs have it."""

from __future__ import annotations

import errno
import os
import re
import selectors
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host, decoded_hosts, parse_host_lines

__all__ = ["HostScript", "bounded_size"]

_SCRIPT_TIMEOUT_S = 60
_MOST_BYTES = 1 << 20


def bounded_size(size: int | None, slots: int | None, least: int | None, most: int | None) -> int:
    """The number of ranks: `size`, else as many as there are slots, at most `most`.

    slots: of all hosts, or None if no hosts are given.
    Raises InvalidArgument if that is unknown, or not between `least` and `most`.
    """
    if size is None and slots is None:
        raise InvalidArgument(
            "the number of ranks is not given. Use -np N for this machine, or -H or --hostfile "
            "for several. Inside of a job of Slurm, PBS, LSF, Grid Engine or SkyPilot its hosts are used."
        )
    found = size if size is not None else min(slots or 0, most or slots or 0)
    if (least is not None and found < least) or (most is not None and found > most):
        bounds = f"at least {least or 1}" + (f" and at most {most}" if most is not None else "")
        raise InvalidArgument(
            f"the job would have {found} ranks, and --min-np and --max-np ask for {bounds}. "
            "Correct them, -np, or the hosts."
        )
    return found


class HostScript:
    """The script of --host-discovery-script: prints one "host:slots" or "host" in a line.  Thread-safe.

    default_slots: for a host without a number (1).  Its processes are a group of their own, which ends when the
    script takes too long and when this is closed.
    """

    def __init__(self, script: Path, default_slots: int | None) -> None:
        self._source = f"--host-discovery-script {script}"
        self._path = str(script) if os.sep in str(script) else f".{os.sep}{script}"
        self._default_slots = default_slots
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def hosts(self) -> list[Host]:
        """What the script prints now.  Blocks.  Raises InvalidArgument for anything but hosts."""
        process = self._start()
        try:
            out, complaint = self._read(process)
        finally:
            self._end(process)
        if process.returncode:
            said = (complaint.strip() or out.strip()).decode(errors="backslashreplace") or "nothing"
            raise InvalidArgument(
                f"{self._source} exited with status {process.returncode} and said: {said}. Run it by hand."
            )
        lines = decoded_hosts(out, self._source).splitlines()
        if self._default_slots is not None:
            lines = [_with_slots(line, self._default_slots) for line in lines]
        return parse_host_lines("\n".join(lines), self._source)

    def close(self) -> None:
        """Ends the script if it runs, and what it has started; from now on it is not run."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for process in running:
            self._end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise InvalidArgument(f"{self._source} is not run any more: the job has ended.")
            try:
                process = subprocess.Popen(
                    [self._path],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
            except OSError as error:
                raise InvalidArgument(
                    f"{self._source} cannot be run: {error}. {_remedy(error, self._path)}"
                ) from error
            self._running.add(process)
            return process

    def _read(self, process: subprocess.Popen[bytes]) -> tuple[bytearray, bytearray]:
        """What it writes to its output and its error stream until it ends."""
        assert process.stdout is not None and process.stderr is not None
        out, complaint = bytearray(), bytearray()
        deadline = time.monotonic() + _SCRIPT_TIMEOUT_S
        with selectors.DefaultSelector() as waiting, process.stdout, process.stderr:
            waiting.register(process.stdout, selectors.EVENT_READ, out)
            waiting.register(process.stderr, selectors.EVENT_READ, complaint)
            while waiting.get_map():
                ready = waiting.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise self._too_late()
                for key, _ in ready:
                    data = os.read(key.fd, _MOST_BYTES)
                    key.data.extend(data)
                    if not data:
                        waiting.unregister(key.fileobj)
                if len(out) + len(complaint) > _MOST_BYTES:
                    raise InvalidArgument(
                        f"{self._source} has printed more than {_MOST_BYTES >> 20} MiB. Run it by hand: it is to "
                        "print the hosts and to end."
                    )
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._too_late() from None
        return out, complaint

    def _too_late(self) -> InvalidArgument:
        return InvalidArgument(
            f"{self._source} has not ended within {_SCRIPT_TIMEOUT_S} s. Run it by hand: it is to print the hosts "
            "and to end."
        )

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the script with its children, unless it has ended."""
        with self._lock:
            self._running.discard(process)
            if process.poll() is None:
                # Nobody has waited for it: its number cannot be that of another group yet.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _remedy(error: OSError, path: str) -> str:
    if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return "Raise the limit of the user or the container ('ulimit -a')."
    if isinstance(error, PermissionError):
        return f"Run: chmod +x {shlex.quote(path)}"
    if error.errno == errno.ENOEXEC:
        return "Let its first line say what runs it, such as #!/bin/sh."
    return "Correct the path, or that of the program in its first line."


def _with_slots(line: str, slots: int) -> str:
    has_slots = not line.strip() or re.search(r":\d+\s*$|slots=", line)
    return line if has_slots else f"{line} slots={slots}"
