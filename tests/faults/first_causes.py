"""Jobs in which one rank fails at a random moment: rabitrun must show that rank, whoever ends first.

    python tests/faults/first_causes.py [--runs 40] [--seed 0] [--ssh] [--flags "-H a:3,b:3 …"]

--ssh: the ranks lie on two hosts, which an sshd on this one stands for.

Two to five ranks; the one that fails raises, exits, is killed, or returns early without an error, in some
step, and may take its time to end.  The others take the loss as it comes, hide it behind an error or a
status of their own, or compute for a while before they notice it.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import seeds, sshd

SCRIPT = """
import atexit, os, signal, sys, time
import numpy as np
import rabit

how, who = sys.argv[1], int(sys.argv[2])
others, moment, lingers_s = sys.argv[3:] or ("plain", "2", "0")
rabit.init()

def step(number):
    if number == int(moment) and rabit.rank() == who:
        atexit.register(time.sleep, float(lingers_s))
        if how == "raise":
            raise ValueError("sample 7 is bad")
        if how == "exit":
            sys.exit(3)
        if how == "return":
            sys.exit(0)
        if how == "vanish":
            os._exit(4)
        os.kill(os.getpid(), getattr(signal, how))
    if number == int(moment) and others == "busy":
        time.sleep(0.3)
    rabit.allreduce(np.ones(100), name=f"x{number}")

try:
    for number in range(5):
        step(number)
except rabit.RabitError as error:
    if others == "hide":
        raise RuntimeError("training failed") from None
    if others == "status":
        sys.exit(5)
    raise
"""

# How a rank fails: the status of rabitrun, and what it says of the rank.
HEADLINES = {
    "raise": (1, "raised ValueError: sample 7 is bad\n"),
    "exit": (3, "exited with status 3, "),
    "return": (1, "ended without an error while others waited for it: did it call fewer"),
    "vanish": (4, "exited with status 4, "),
    "SIGKILL": (137, "was killed by SIGKILL (signal 9), "),
    "SIGTERM": (143, "was killed by SIGTERM (signal 15), "),
    "SIGSEGV": (139, "was killed by SIGSEGV (signal 11), "),
}
LIMIT_S = 120.0


@dataclass(frozen=True)
class Failure:
    """One job: how many ranks, which fails how and when, and what the others do."""

    size: int
    who: int
    how: str
    others: str
    moment: int
    lingers_s: float
    transport: str

    @staticmethod
    def drawn(dice: random.Random) -> Failure:
        size = dice.randint(2, 5)
        return Failure(
            size,
            dice.randrange(size),
            dice.choice(list(HEADLINES)),
            dice.choice(("plain", "hide", "status", "busy")),
            dice.randrange(5),
            dice.choice((0.0, 0.0, 0.5)),
            dice.choice(("auto", "tcp")),
        )

    @property
    def status(self) -> int:
        """Of rabitrun.  Who returns early has no status of failure, so the others' counts."""
        is_theirs = self.how == "return" and self.others == "status"
        return 5 if is_theirs else HEADLINES[self.how][0]

    @property
    def headline(self) -> str:
        return HEADLINES[self.how][1]


@contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Gives the flags that spread ranks over two hosts by ssh.  Raises sshd.NoSshd."""
    with tempfile.TemporaryDirectory() as name, sshd.started(Path(name)) as port:
        # Rank 0 is alone, so that two ranks are on two hosts already.
        yield [*sshd.flags(Path(name), port), "-H", "127.0.0.1:1,localhost:4"]


def run(failure: Failure, flags: Sequence[str] = ()) -> None:
    """Raises AssertionError if rabitrun shows another rank, or ends with another status."""
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "train.py"
        script.write_text(SCRIPT)
        told = (failure.how, failure.who, failure.others, failure.moment, failure.lingers_s)
        job = subprocess.run(
            [*(sys.executable, "-m", "rabit.launch", "-np", str(failure.size)),
             *("--transport", failure.transport, *flags),
             *(sys.executable, str(script), *map(str, told))],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=name, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    said = f"{failure}: status {job.returncode}\n{job.stdout}{job.stderr}"
    lines = [line for line in job.stderr.splitlines(True) if line.startswith("rabitrun: rank ")]
    blamed = f"rabitrun: rank {failure.who} of {failure.size} (host "
    assert lines and lines[0].startswith(blamed), said
    assert lines[0].partition(") ")[2].startswith(failure.headline), said
    assert job.returncode == failure.status, f"must be {failure.status}: {said}"


def main() -> int:
    parser = seeds.options(__doc__, runs=40)
    parser.add_argument("--flags", default="", help="further ones for rabitrun, such as hosts")
    parser.add_argument("--ssh", action="store_true", help="two hosts, by an sshd on this one")
    given = parser.parse_args()
    if not given.ssh:
        return play(given, ())
    with two_hosts() as flags:
        return play(given, flags)


def play(given: argparse.Namespace, flags: Sequence[str]) -> int:
    drawn: Counter[str] = Counter()

    def one(seed: int) -> None:
        failure = Failure.drawn(random.Random(seed))
        drawn[failure.how] += 1
        run(failure, (*flags, *shlex.split(given.flags)))

    status = seeds.play(given, one, jobs="jobs showed the rank that failed")
    print("they failed by " + ", ".join(f"{how} {count}" for how, count in sorted(drawn.items())))
    return status


if __name__ == "__main__":
    sys.exit(main())
