"""Boards: where rank 0 leaves the address and the secret of a job for ranks of other hosts, by what the cluster gives.

A launcher that is not ours starts the ranks, and no file was copied: PMI, a home folder that all hosts share, or the
store of a framework that its launcher serves carries them.  All are open to the user of the job alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rabit.descriptors import is_ready
from rabit.errors import InvalidArgument, TimedOut
from rabit.rendezvous.environments import JobMarks
from rabit.rendezvous.offers import Board, offered_board
from rabit.rendezvous.private_file import read_private_file

__all__ = ["Board", "Found", "HomeBoard", "PmiBoard", "board_of"]

_LONGEST_PAUSE_S = 0.2
# Their numbers of jobs do not come again.
_WITH_UNIQUE_JOBS = ("srun (Slurm)", "flux run", "mpiexec (PALS)", "jsrun")


class Found(NamedTuple):
    """What rank 0 leaves."""

    store_address: str
    secret: bytes

    def to_json(self) -> str:
        return json.dumps({"store": self.store_address, "secret": self.secret.hex()})

    @classmethod
    def from_json(cls, text: str) -> Found:
        document = json.loads(text)
        return cls(str(document["store"]), bytes.fromhex(document["secret"]))


def board_of(marks: JobMarks, environ: Mapping[str, str], timeout: float) -> Board | None:
    """The board of this job; None: the cluster gives none."""
    board = offered_board(marks.launcher, environ, timeout)
    if board is not None:
        return board
    if environ.get("PMI_FD", "").isdigit():
        return PmiBoard(int(environ["PMI_FD"]), marks.rank, timeout)
    if marks.launcher in _WITH_UNIQUE_JOBS and marks.job:
        restart = environ.get("SLURM_RESTART_COUNT", "0")
        return HomeBoard(Path(environ.get("HOME", "/")), f"{marks.launcher} {marks.job} {restart}", timeout)
    return None


class PmiBoard:
    """The key-value space of PMI version 1, over the descriptor of PMI_FD: srun --mpi=pmi2, Hydra.

    A program that calls MPI_Init afterwards begins its own conversation on the same descriptor, as PMI allows.
    Source: PMI: A Scalable Parallel Process-Management Interface (Balaji et al., EuroMPI 2010).
    """

    _KEY = "rabit-meeting"

    def __init__(self, descriptor: int, rank: int, timeout: float) -> None:
        self._descriptor, self._rank = descriptor, rank
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._rest = b""

    def put(self, text: str) -> None:
        space = self._begin()
        # Blanks end a value.
        self._ask(f"cmd=put kvsname={space} key={self._KEY} value={text.encode().hex()}", "put_result")
        self._ask("cmd=barrier_in", "barrier_out")

    def take(self) -> str:
        space = self._begin()
        self._ask("cmd=barrier_in", "barrier_out")
        answer = self._ask(f"cmd=get kvsname={space} key={self._KEY}", "get_result")
        return bytes.fromhex(answer["value"]).decode()

    def _begin(self) -> str:
        self._ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
        return self._ask("cmd=get_my_kvsname", "my_kvsname")["kvsname"]

    def _ask(self, question: str, wanted: str) -> dict[str, str]:
        try:
            os.write(self._descriptor, question.encode() + b"\n")
        except OSError as error:
            raise self._broken(f"it cannot be written: {error.strerror}") from error
        answer = dict(
            word.partition("=")[::2] for word in self._line(question).split() if "=" in word
        )
        if answer.get("cmd") != wanted or answer.get("rc", "0") != "0":
            raise self._broken(f"{question.split()[0]!r} was answered by {answer!r}")
        return answer

    def _line(self, question: str) -> str:
        while b"\n" not in self._rest:
            left = self._deadline - time.monotonic()
            if left <= 0 or not is_ready(self._descriptor, select.POLLIN, left):
                raise TimedOut(
                    f"rank {self._rank} waited {self._timeout:g} s for PMI ({question.split()[0]}): some rank has not "
                    "called init(). Call it on every rank, or set RABIT_CONNECT_TIMEOUT higher."
                )
            data = os.read(self._descriptor, 4096)
            if not data:
                raise self._broken("the launcher has closed it")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("ascii", "replace")

    def _broken(self, why: str) -> InvalidArgument:
        return InvalidArgument(
            f"rank {self._rank} cannot use PMI (PMI_FD={self._descriptor}) to meet the others: {why}. Start the ranks "
            "with srun --mpi=pmi2 or a Hydra mpiexec, or set RABIT_SECRET_FILE and RABIT_STORE_ADDRESS."
        )


class HomeBoard:
    """A file of mode 0600 in a home folder that all hosts share.  job: a text that no later job has."""

    def __init__(self, home: Path, job: str, timeout: float) -> None:
        self._folder = home / ".rabit"
        self._path = self._folder / f"{hashlib.sha256(job.encode()).hexdigest()[:24]}.json"
        self._timeout = timeout

    def put(self, text: str) -> None:
        import atexit

        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._path.with_suffix(f".{os.uname().nodename}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        fresh.replace(self._path)
        atexit.register(_remove, self._path, os.getpid())

    def take(self) -> str:
        deadline = time.monotonic() + self._timeout
        pause = 0.005
        while True:
            with contextlib.suppress(FileNotFoundError):
                return read_private_file(self._path, "meeting file")
            if time.monotonic() >= deadline:
                raise TimedOut(
                    f"rank 0 has not written {self._path} within {self._timeout:g} s. Call init() on every rank. If "
                    "hosts do not share the home folder, set RABIT_SECRET_FILE or RABIT_SECRET_KEY_FILE."
                )
            # A file is all that the hosts share, so this waits by looking again.
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # A forked child runs the exit handlers of its parent.
        path.unlink(missing_ok=True)
