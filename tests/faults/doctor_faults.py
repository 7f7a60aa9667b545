"""The doctor's campaign: jobs with one fault each, and whether the doctor names it, its rank and its fix.

    python tests/faults/doctor_faults.py [--only NAME,NAME] [--places 3] [--healthy 20] [--seed 0]

Places (rank or host, strength) are drawn by the seed, so that no row of the table can be fitted to one.  Half of the
jobs that a fault can happen to in any program train with torch: DistributedOptimizer, or DDP.  A score is printed by
class: the fault is the first cause (top-1), among the three (top-3), the rank or host is right, and what
healthy jobs are accused of.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.links import unwinding
from faults import doctor_places as places
from faults.doctor_places import Place

import rabit

RANKS = 3
SCRIPT = str(Path(__file__).with_name("doctor_ranks.py"))
PACKAGE = str(Path(rabit.__file__).parents[1])
DURING, AFTER, FOLDER, BEFORE = "during", "after", "folder", "before"
Around = Callable[[Place], "contextlib.AbstractContextManager[list[str]]"]


@dataclass(frozen=True)
class Injection:
    """How a fault is brought about.

    when: the doctor looks: during the job, at its end, at the folder of its records afterwards, or before it.
    around: from outside; None: doctor_ranks.py does it.  wait_s: until the doctor looks at a job that runs.
    names: "rank": the rank that is to be named; "host": the host; "": nobody is late alone.
    """

    when: str = DURING
    around: Around | None = None
    wait_s: float = 3.5
    ranks: int = RANKS
    threads: int = 1
    elements: int = 1000
    names: str = "rank"
    is_lab: bool = False
    is_alone: bool = False  # a process that no launcher has started
    at_once: Callable[[subprocess.Popen[str], list[int]], None] | None = None


def _kill_launcher(process: subprocess.Popen[str], _: list[int]) -> None:
    process.kill()


def _end_ranks(_: subprocess.Popen[str], pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)


# By name: the class of the table, and after a slash which of its faults.
INJECTIONS: dict[str, Injection] = {
    "branch": Injection(),
    "cross-order": Injection(),
    "uneven-steps": Injection(AFTER),
    "left-early": Injection(AFTER),
    "gil-held": Injection(),
    "fork-deadlock": Injection(),
    "loader-slow": Injection(),
    "loader-disk": Injection(around=places.slow_reads),
    "data-skew": Injection(),
    "compile": Injection(),
    "checkpoint": Injection(),
    "checkpoint/disk": Injection(around=places.slow_saves),
    "blocking-call": Injection(),
    "gc": Injection(),
    "crashed": Injection(AFTER),
    "crashed/illegal": Injection(AFTER),
    "not-finite": Injection(AFTER),
    "not-finite/guard": Injection(AFTER),
    "replicas-differ": Injection(AFTER),
    "leak": Injection(wait_s=14.0),
    "foreign-load": Injection(around=places.foreign_load, names=""),
    "oversubscribed": Injection(threads=6, names=""),
    "one-thread": Injection(ranks=1, names=""),
    "throttled": Injection(around=places.throttled, names=""),
    "pinned": Injection(names=""),
    "stopped": Injection(wait_s=1.5),
    "stopped/after": Injection(AFTER),
    "swapping": Injection(around=places.thrashing, wait_s=5.0),
    "out-of-memory": Injection(AFTER, places.little_memory),
    "killed": Injection(AFTER),
    "terminated": Injection(AFTER),
    "terminated/all": Injection(AFTER, at_once=_end_ranks, names=""),
    "too-many-files": Injection(AFTER, places.few_open_files),
    "shm-full": Injection(AFTER, places.full_shm),
    "disk-full": Injection(AFTER, places.full_disk),
    "storage-hangs": Injection(around=places.dead_files),
    "port-in-use": Injection(AFTER, places.taken_port),
    "ports-exhausted": Injection(AFTER),
    "program-differs": Injection(around=places.other_program),
    "launcher-died": Injection(FOLDER, at_once=_kill_launcher, names=""),
    "slow-link": Injection(
        around=places.slow_link, wait_s=5.0, elements=100_000, names="host", is_lab=True
    ),
    "lossy-link": Injection(
        around=places.lossy_link, wait_s=5.0, elements=100_000, names="host", is_lab=True
    ),
    "dead-link": Injection(
        AFTER, around=places.dead_link, elements=10_000, names="host", is_lab=True
    ),
    "far-host": Injection(around=places.far_host, wait_s=5.0, names="host", is_lab=True),
    "own-world": Injection(
        FOLDER, places.allocation, ranks=1, names="", is_alone=True, at_once=_kill_launcher
    ),
    "no-start/python": Injection(BEFORE, places.other_python, names="host"),
    "no-start/key": Injection(BEFORE, places.no_key, names="host"),
    "versions-differ": Injection(BEFORE, places.other_version, names="host"),
    "loopback-name": Injection(BEFORE, places.loopback_name, names="host"),
    "slow-names": Injection(BEFORE, places.silent_names, names="host"),
    "unreachable": Injection(BEFORE, places.firewall, names="host"),
    "unreachable/silent": Injection(BEFORE, places.silent_firewall, names="host"),
    "data-stuck": Injection(BEFORE, places.mtu_hole, names="host"),
    "slow-network": Injection(BEFORE, places.slow_network, names="host"),
    "families-differ": Injection(BEFORE, places.one_family, names="host"),
    "apart": Injection(BEFORE, places.containers, names="host"),
    "slow-link/before": Injection(BEFORE, places.thin_link, names="host"),
    "clocks-differ": Injection(BEFORE, places.other_clock, names="host"),
    "small-shm": Injection(BEFORE, places.small_shm, names="host"),
    "disk-full/before": Injection(BEFORE, places.full_tmp, names="host"),
    "few-files": Injection(BEFORE, places.few_files, names="host"),
    "locked-memory": Injection(BEFORE, places.little_locked, names="host"),
    "quota": Injection(BEFORE, places.quota, names="host"),
    "left-over": Injection(BEFORE, places.left_over, names=""),
}
FRAMEWORKS = ("numpy", "torch", "numpy", "ddp")
# torch counts steps by itself, and is larger than the limit of memory.
NUMPY_ONLY = ("left-early", "out-of-memory")
# Of rows that unit tests have: what it takes is not on every machine, or the report of the job names it already.
BY_HAND = ["raised", "unknown-name", "instructions-differ"]


@dataclass(frozen=True)
class Answer:
    """What the doctor said of one job.  who: a rank, or the address of a host; "": nobody alone."""

    fault: str
    who: int | str
    document: dict[str, Any]
    seconds: float
    # Others used the machine: that the doctor says so is right as well, and is left out.
    is_shared: bool = False

    @property
    def causes(self) -> list[dict[str, Any]]:
        return [
            cause
            for cause in self.document["causes"]
            if cause["class"] != "foreign-load" or self.name == "foreign-load" or not self.is_shared
        ]

    @property
    def name(self) -> str:
        """Of the row that is to be found."""
        return self.fault.partition("/")[0]

    @property
    def classes(self) -> list[str]:
        return [cause["class"] for cause in self.causes]

    @property
    def is_top(self) -> bool:
        return self.classes[:1] == [self.name]

    @property
    def is_among_three(self) -> bool:
        return self.name in self.classes[:3]

    @property
    def is_rank_right(self) -> bool:
        found = [cause for cause in self.causes if cause["class"] == self.name]
        return any(
            self.who == "" or self.who in [*cause["ranks"], *cause["hosts"]] for cause in found
        )

    @property
    def is_confident_and_wrong(self) -> bool:
        first = self.causes[:1]
        return (
            bool(first)
            and first[0]["confidence"] == "established"
            and first[0]["class"] != self.name
        )


def is_shared() -> bool:
    """Whether processes that are not ours use more than a tenth of the processors."""

    def spent() -> list[int]:
        return [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]

    before = spent()
    time.sleep(0.3)
    grown = [after - first for first, after in zip(before, spent(), strict=True)]
    return grown[3] + grown[4] < 0.9 * sum(grown)


def _environ(place: Place, threads: int = 1) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": PACKAGE,
        "TMPDIR": str(place.folder),
        "OMP_NUM_THREADS": str(threads),
        **place.environ,
    }


def doctor(place: Place, *words: str) -> dict[str, Any]:
    """Its JSON."""
    command = [sys.executable, "-m", "rabit.launch", "doctor", "--json", *words]
    done = subprocess.run(command, env=_environ(place), capture_output=True, text=True, timeout=60)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@contextlib.contextmanager
def job(
    place: Place, fault: str, injection: Injection, prefix: list[str]
) -> Iterator[subprocess.Popen[str]]:
    """A job with this fault, killed at the end of the block."""
    hosts = ["-H", places.hosts_of(place, 1)] if injection.is_lab else []
    rabitrun = [sys.executable, "-m", "rabit.launch", "-np", str(injection.ranks), *hosts]
    command = [*prefix, *([] if injection.is_alone else rabitrun)]
    command += [sys.executable, SCRIPT, fault, str(place.who), str(place.strength)]
    environ = {**_environ(place, injection.threads), "DOCTOR_COUNT": str(injection.elements)}
    with (place.folder / "err").open("w") as err:
        process = subprocess.Popen(
            command,
            env=environ,
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


def framework_of(fault: str, number: int) -> str:
    """Of the job with this number that has this fault, or none."""
    injection = INJECTIONS.get(fault, Injection())
    if injection.when == BEFORE or fault in NUMPY_ONLY:
        return "numpy"
    found = FRAMEWORKS[(number + list(INJECTIONS).index(fault)) % 4 if fault in INJECTIONS else number % 4]
    # Buckets of DDP have no names, so that ranks with another one go on.
    return "torch" if fault == "program-differs" and found == "ddp" else found


def seen(fault: str, who: int, strength: float, framework: str = "numpy") -> Answer:
    """What the doctor says of a job with this fault."""
    injection = INJECTIONS.get(fault, Injection())
    was_shared = is_shared()
    with tempfile.TemporaryDirectory(prefix="doctor-") as name, contextlib.ExitStack() as stack:
        place = Place(Path(name), who % injection.ranks, strength)
        place.environ["DOCTOR_FRAMEWORK"] = framework
        started = time.monotonic()
        prefix: list[str] = []
        if injection.around is not None:
            prefix = stack.enter_context(injection.around(place))
        culprit: int | str = {"rank": place.who, "": ""}.get(injection.names, "")
        if injection.names == "host":
            culprit = places.address_of(place)
        if injection.when == BEFORE:
            document = doctor(place, "-H", places.hosts_of(place))
            return Answer(fault, culprit, document, time.monotonic() - started)
        process = stack.enter_context(job(place, fault, injection, prefix))
        if injection.at_once or place.at_once:
            _wait_until_met(place, injection.ranks, 1.0)
        if place.at_once:
            place.at_once()
        if injection.at_once:
            injection.at_once(process, _pids(place.folder))
        if injection.when != DURING and not _ends(process):
            return Answer(fault, culprit, {"causes": [], "phase": "has not ended"}, 0.0)
        if injection.when == FOLDER:
            time.sleep(1.0)
            folder = next((place.folder / f"rabit-{os.getuid()}").glob("records-*"))
            began = time.monotonic()
            return Answer(fault, culprit, doctor(place, str(folder)), time.monotonic() - began)
        if injection.when == AFTER:
            said = (place.folder / "err").read_text().splitlines()
            return Answer(fault, culprit, _from_block(said), time.monotonic() - started)
        _wait_until_met(place, injection.ranks, injection.wait_s)
        began = time.monotonic()
        document = doctor(place)
        return Answer(fault, culprit, document, time.monotonic() - began, was_shared)


def _ends(process: subprocess.Popen[str]) -> bool:
    """Whether a job that has a fault ends in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(90)
    return process.returncode is not None


def _records(folder: Path) -> list[Path]:
    return list(folder.glob("rabit-*/records-*/rank-*.rabit"))


def _counter(path: Path, name: str) -> int:
    from rabit.errors import InvalidArgument
    from rabit.record.reader import read_counters

    try:
        return read_counters(path).counters[name]
    except InvalidArgument:
        return 0  # It is being made.


def _pids(folder: Path) -> list[int]:
    from rabit.record.reader import read_counters

    return [int(read_counters(path).header["pid"]) for path in _records(folder)]


def _wait_until_met(place: Place, ranks: int, more_s: float) -> None:
    """Until all ranks have begun their first step, and `more_s` longer."""
    # Between the first operation and the first step DDP loads modules for seconds.
    sign = "steps" if place.environ.get("DOCTOR_FRAMEWORK") == "ddp" else "submitted"
    deadline = time.monotonic() + 90
    while sum(_counter(path, sign) > 0 for path in _records(place.folder)) < ranks:
        assert time.monotonic() < deadline, "the ranks have not met"
        time.sleep(0.05)
    time.sleep(more_s)


def _from_block(said: list[str]) -> dict[str, Any]:
    """The document of what the block at the end of a failed job says."""
    causes: list[dict[str, Any]] = []
    lines = [line.strip() for line in said if line.startswith("  ")]
    fix = next((line[5:] for line in lines if line.startswith("fix: ")), "")
    for number, line in enumerate(lines):
        confidence, colon, rest = line.partition(": ")
        if confidence in ("established", "supported", "hypothesis") and colon:
            evidence = " ".join(lines[number + 1 : number + 4])
            ranks = [rank for rank in range(RANKS) if f"rank {rank} " in evidence]
            name = rest.rpartition("(")[2].rstrip(")")
            hosts = [word.strip(",;:()") for word in evidence.split() if word[:3] == "10."]
            cause = {"class": name, "ranks": ranks, "hosts": hosts, "confidence": confidence}
            causes.append({**cause, "fix": fix})
        if confidence == "or":
            for words in rest.split(", "):
                name, _, sure = words.partition(" (")
                causes.append(
                    {"class": name, "ranks": [], "hosts": [], "confidence": sure.rstrip(")")}
                )
    return {"causes": causes, "said": said}


def _healthy(count: int) -> list[tuple[str, str]]:
    """What the doctor says against healthy jobs: a third next to other load, one whose ranks have unequal work."""
    accused = []
    for number in range(count):
        fault = "none/unequal" if number == 1 else "none"
        with places.burners(4) if number % 3 == 2 else contextlib.nullcontext():
            framework = framework_of(fault, number)
            answer = seen(fault, 0, 1.0, framework)
        causes = [(cause["class"], cause["confidence"]) for cause in answer.causes]
        print(f"healthy job {number} ({framework}): {causes or 'no cause'}", flush=True)
        accused += causes
    return accused


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--places", type=int, default=3)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--json", default="", help="a file for the answers")
    parsed = parser.parse_args()
    if why := places.missing():
        print(f"skipped: {why}")
        return 0
    answers: dict[str, list[Answer]] = defaultdict(list)
    for fault in parsed.only.split(",") if parsed.only else INJECTIONS:
        dice = random.Random(f"{parsed.seed} {fault}")
        for number in range(parsed.places):
            framework = framework_of(fault, number)
            answer = seen(fault, dice.randrange(RANKS), dice.uniform(1.5, 4.0), framework)
            answers[fault].append(answer)
            mark = "top-1" if answer.is_top else "top-3" if answer.is_among_three else "MISSED"
            place = "" if answer.is_rank_right else ", another place"
            print(
                f"{fault} at {answer.who} ({framework}): {mark}{place}, {answer.classes}, {answer.seconds:.1f} s",
                flush=True,
            )
            if not answer.is_top or place:
                print(f"    {json.dumps(answer.document)[:1500]}", flush=True)
    accused = _healthy(parsed.healthy)
    is_good = _print_scores(answers)
    established = [name for name, confidence in accused if confidence == "established"]
    print(
        f"{parsed.healthy} healthy jobs: {len(established)} causes established, {len(accused)} in all {accused}"
    )
    return 0 if is_good and not established else 1


def _print_scores(answers: dict[str, list[Answer]]) -> bool:
    """By class and in all; whether they are good enough."""
    print(
        f"\n{'fault':<20} {'jobs':>5} {'top-1':>6} {'top-3':>6} {'place':>6} {'sure and wrong':>15}"
    )
    total = [answer for found in answers.values() for answer in found]
    for name, found in [*answers.items(), ("all", total)]:
        count = len(found) or 1
        right = [answer for answer in found if answer.is_among_three]
        print(
            f"{name:<20} {len(found):>5} {sum(answer.is_top for answer in found) / count:>6.0%} "
            f"{len(right) / count:>6.0%} "
            f"{sum(answer.is_rank_right for answer in right) / (len(right) or 1):>6.0%} "
            f"{sum(answer.is_confident_and_wrong for answer in found):>15}"
        )
    return not total or sum(answer.is_top for answer in total) >= 0.9 * len(total)


if __name__ == "__main__":
    with unwinding():  # What a job's fault has started ends with this program.
        sys.exit(main())
