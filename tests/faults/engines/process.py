"""What the engines of the table share: a job as a process with a log, and the processes of its ranks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
RANK = Path(__file__).with_name("rank.py")
CASES = ("start", "wrong count", "rank dies", "host dies", "stop signal", "second init")
SIZE = 4  # ranks, the first two of them on the first host
LIMIT_S = 120.0
# What a log must hold, as a pattern: for every rank, or the cause.
_LOGS = {
    "start": r"first sum of rank 3: 4",
    "wrong count": r"RABIT_SIZE is '5', but .* has started 4 ranks",
    "rank dies": r"rank 1 .*(was killed by SIGKILL|(is|was) lost)",
    "host dies": r"rank [23] .*(is|was) lost",
    "stop signal": r"rank 3 stops",
    "second init": r"second sum of rank 3: 4",
}
_STATUSES = {
    "start": 0,
    "wrong count": 1,
    "rank dies": 1,
    "host dies": 1,
    "stop signal": 75,
    "second init": 0,
}
# So that an engine which starts too few ranks is known soon.
_SETTINGS = {"OMP_NUM_THREADS": "1", "RABIT_CONNECT_TIMEOUT": "10s"}


@dataclass(frozen=True)
class Ended:
    """status: of the engine, as a shell has it.  log: what it and its ranks printed.  seconds: from the blow to the
    end, where there was one, else of the whole job.
    """

    status: int
    log: str
    seconds: float


class Engine(ABC):
    """An engine that starts ranks.  One instance serves all cases, one at a time."""

    name = ""
    # Where they differ from those of the other engines.
    statuses: Mapping[str, int] = {}
    logs: Mapping[str, str] = {}
    outlived: Collection[str] = ()  # cases after which ranks go on until their program ends

    @abstractmethod
    def missing(self) -> str:
        """Why it cannot run here; "": it can."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Inside of the block it can start jobs."""
        yield

    @abstractmethod
    def command(self, case: str, folder: Path) -> list[str]:
        """What starts the job of a case."""

    def environ(self, case: str, folder: Path) -> Mapping[str, str]:
        """On top of this process's variables."""
        return {}

    @abstractmethod
    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        """Ends all of the second host at once.  ranks: the process of each rank."""

    def stop(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        """Asks the job to stop as users of the engine do."""
        job.send_signal(signal.SIGTERM)

    def assert_good(self, case: str, ended: Ended) -> None:
        """Raises AssertionError if the engine has another status than it must, or its log does not say why."""
        status, log = {**_STATUSES, **self.statuses}[case], {**_LOGS, **self.logs}[case]
        assert ended.status == status, f"status {ended.status}, must be {status}\n{ended.log}"
        assert re.search(log, ended.log), f"{log!r} is not in the log\n{ended.log}"

    def log(self, folder: Path) -> str:
        return (folder / "log").read_text(errors="replace")

    def run(self, case: str, folder: Path) -> Ended:
        """Plays one case.  Raises AssertionError if the job does not end."""
        began = time.monotonic()
        environ = {
            **os.environ,
            **_SETTINGS,
            "PYTHONPATH": python_path(),
            **self.environ(case, folder),
        }
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(
                self.command(case, folder), env=environ, cwd=folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            if case in ("host dies", "stop signal"):
                ranks = self._await(folder, job)
                began = time.monotonic()
                (self.lose_host if case == "host dies" else self.stop)(job, ranks)
            status = job.wait(LIMIT_S)
            seconds = time.monotonic() - began
            if case not in self.outlived:
                self.assert_nothing_is_left(folder)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name}, {case}: no end\n{self.log(folder)}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        return Ended(128 - status if status < 0 else status, self.log(folder), seconds)

    def _await(self, folder: Path, job: subprocess.Popen[bytes]) -> list[int]:
        files = [folder / f"rank.{rank}" for rank in range(SIZE)]
        deadline = time.monotonic() + LIMIT_S
        while not all(file.exists() for file in files):
            is_over = job.poll() is not None or time.monotonic() > deadline
            assert not is_over, f"{self.name}: the ranks have not met\n{self.log(folder)}"
            time.sleep(0.05)
        return [int(file.read_text()) for file in files]

    def assert_nothing_is_left(self, folder: Path) -> None:
        """Ranks end by themselves, whatever became of their engine."""
        deadline = time.monotonic() + LIMIT_S
        while left := ranks_of(folder):
            if time.monotonic() > deadline:
                kill(left)
                raise AssertionError(f"{self.name}: ranks are left: {left}\n{self.log(folder)}")
            time.sleep(0.05)


def python_path() -> str:
    return os.pathsep.join([str(TESTS.parent), str(TESTS)])


def rank_words(case: str, folder: Path) -> list[str]:
    return [sys.executable, str(RANK), case, str(folder)]


# rabitrun ends with the status of the rank that failed, and counts slots before it starts any.
RABITRUN_STATUSES = {"wrong count": 2, "rank dies": 137}
RABITRUN_LOGS = {"wrong count": r"-np is 5, but the hosts have 4 slots"}


def rabitrun_words(*flags: str) -> list[str]:
    return [sys.executable, "-m", "rabit.launch", *flags]


def program(name: str) -> str | None:
    """Its path, where the packages of this Python or the system have it."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def ranks_of(folder: Path) -> list[int]:
    """Live processes that run rank.py for this folder, or have left their number there."""
    numbers = {int(file.read_text()) for file in folder.glob("rank.?")}
    return [
        pid
        for pid, words in _commands()
        if pid in numbers or (str(folder) in words and str(RANK) in words)
    ]


def by_command(*texts: str) -> list[int]:
    """Live processes whose command lines hold all of `texts`."""
    return [pid for pid, words in _commands() if all(text in words for text in texts)]


def _commands() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    words = (
                        (entry / "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
                    yield int(entry.name), words


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(pids: Sequence[int]) -> None:
    """All at once: stopped before the first is gone, so that none acts on the end of another."""
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
