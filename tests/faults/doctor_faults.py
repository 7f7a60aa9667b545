"""The doctor's campaign: jobs with one fault each, and whether the doctor names it, its rank and its fix.

    python tests/faults/doctor_faults.py [--only NAME,NAME] [--places 3] [--healthy 10] [--seed 0]

Places (rank, strength) are drawn, so that no row of the table can be fitted to one.  A score is printed by class: the
fault is the first cause (top-1), among the three (top-3), the rank is right, and what healthy jobs are accused of.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rabit

RANKS = 3
SCRIPT = str(Path(__file__).with_name("doctor_ranks.py"))
PACKAGE = str(Path(rabit.__file__).parents[1])
# Of each injection when the doctor looks: in seconds after the start, or after the end of the job.
DURING = [
    "branch",
    "cross-order",
    "fork-deadlock",
    "loader-slow",
    "data-skew",
    "checkpoint",
    "blocking-call",
    "gc",
    "stopped",
    "foreign-load",
    "pinned",
    "compile",
]
AFTER = ["uneven-steps", "left-early", "killed", "crashed", "disk-full", "not-finite"]
SLOW = {"leak": 12.0}
# Of rows whose injection takes more than this machine has, or that unit tests alone have.
BY_HAND = ["raised", "oversubscribed", "throttled", "gil-held", "terminated", "out-of-memory"]
# Nobody is late alone.
WITHOUT_RANK = {"foreign-load", "pinned", "oversubscribed"}


@dataclass(frozen=True)
class Answer:
    """What the doctor said of one job."""

    fault: str
    who: int
    document: dict[str, Any]
    seconds: float

    @property
    def classes(self) -> list[str]:
        return [each["class"] for each in self.document["causes"]]

    @property
    def is_top(self) -> bool:
        return self.classes[:1] == [self.fault]

    @property
    def is_among_three(self) -> bool:
        return self.fault in self.classes

    @property
    def is_rank_right(self) -> bool:
        found = next(
            (each for each in self.document["causes"] if each["class"] == self.fault), None
        )
        return found is not None and (self.fault in WITHOUT_RANK or self.who in found["ranks"])

    @property
    def is_confident_and_wrong(self) -> bool:
        first = self.document["causes"][:1]
        return (
            bool(first)
            and first[0]["confidence"] == "established"
            and first[0]["class"] != self.fault
        )


def _environ(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": PACKAGE,
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def doctor(folder: Path, *words: str) -> dict[str, Any]:
    """Its JSON."""
    command = [sys.executable, "-m", "rabit.launch", "doctor", "--json", *words]
    done = subprocess.run(command, env=_environ(folder), capture_output=True, text=True, timeout=60)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@contextlib.contextmanager
def job(
    folder: Path, fault: str, who: int, strength: float, *flags: str
) -> Iterator[subprocess.Popen[str]]:
    """A job with this fault, killed at the end of the block."""
    command = [
        sys.executable,
        "-m",
        "rabit.launch",
        "-np",
        str(RANKS),
        *flags,
        sys.executable,
        SCRIPT,
    ]
    with (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [*command, fault, str(who), str(strength)],
            env=_environ(folder),
            stdout=subprocess.DEVNULL,
            stderr=err,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.1)
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def seen(fault: str, who: int, strength: float) -> Answer:
    """What the doctor says of a job with this fault."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        started = time.monotonic()
        process = stack.enter_context(job(folder, fault, who, strength))
        if fault in AFTER:
            process.wait(60)
            records = [
                each for each in (folder / f"rabit-{os.getuid()}").iterdir() if each.is_dir()
            ]
            verdict = [
                line
                for line in (folder / "err").read_text().splitlines()
                if line.startswith("  ")
            ]
            return Answer(fault, who, _from_block(verdict, records), time.monotonic() - started)
        if fault == "foreign-load":
            for _ in range(2 * len(os.sched_getaffinity(0))):
                burner = subprocess.Popen(
                    [sys.executable, "-c", "while True: pass"], start_new_session=True
                )
                stack.callback(burner.wait)
                stack.callback(burner.kill)
        _wait_until_met(folder)
        time.sleep(SLOW.get(fault, 3.5))
        began = time.monotonic()
        document = doctor(folder)
        return Answer(fault, who, document, time.monotonic() - began)


def _wait_until_met(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while len(list(folder.glob("rabit-*/records-*/rank-*.rabit"))) < RANKS:
        assert time.monotonic() < deadline, "the ranks have not met"
        time.sleep(0.05)


def _from_block(lines: list[str], records: list[Path]) -> dict[str, Any]:
    """The document of what the block at the end of a failed job says."""
    causes = []
    for place, line in enumerate(lines):
        words = line.strip()
        confidence, colon, rest = words.partition(": ")
        if confidence not in ("established", "supported", "hypothesis") or not colon:
            continue
        evidence = " ".join(lines[place + 1 : place + 4])
        ranks = [rank for rank in range(RANKS) if f"rank {rank} " in evidence]
        name = rest.rpartition("(")[2].rstrip(")")
        causes.append({"class": name, "ranks": ranks, "confidence": confidence})
    return {"causes": causes, "records": [str(each) for each in records]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--places", type=int, default=3)
    parser.add_argument("--healthy", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    dice = random.Random(parsed.seed)
    faults = parsed.only.split(",") if parsed.only else [*DURING, *AFTER, *SLOW]
    answers: dict[str, list[Answer]] = defaultdict(list)
    for fault in faults:
        for _ in range(parsed.places):
            answer = seen(fault, dice.randrange(RANKS), dice.uniform(1.5, 4.0))
            answers[fault].append(answer)
            mark = "top-1" if answer.is_top else "top-3" if answer.is_among_three else "MISSED"
            print(
                f"{fault} on rank {answer.who}: {mark}, {answer.classes}, {answer.seconds:.1f} s",
                flush=True,
            )
    accused = []
    for _ in range(parsed.healthy):
        answer = seen("none", 0, 1.0)
        accused += [(each["class"], each["confidence"]) for each in answer.document["causes"]]
    print(
        f"\n{'fault':<16} {'jobs':>5} {'top-1':>6} {'top-3':>6} {'rank':>6} {'sure and wrong':>15}"
    )
    total = [answer for each in answers.values() for answer in each]
    for name, found in [*answers.items(), ("all", total)]:
        count = len(found) or 1
        print(
            f"{name:<16} {len(found):>5} {sum(e.is_top for e in found) / count:>6.0%} "
            f"{sum(e.is_among_three for e in found) / count:>6.0%} {sum(e.is_rank_right for e in found) / count:>6.0%} "
            f"{sum(e.is_confident_and_wrong for e in found):>15}"
        )
    established = [name for name, confidence in accused if confidence == "established"]
    print(
        f"{parsed.healthy} healthy jobs: {len(established)} causes established, {len(accused)} in all {accused}"
    )
    is_good = not total or sum(each.is_top for each in total) >= 0.9 * len(total)
    return 0 if is_good and not established else 1


if __name__ == "__main__":
    sys.exit(main())
