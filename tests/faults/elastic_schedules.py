"""Random schedules of elastic jobs: one to four losses at any moment, while ranks also come.

    python tests/faults/elastic_schedules.py [--runs 100] [--seed 0] [--show]

A seed decides everything: two to four ranks, spares and slots to grow into, and who is killed when: before a step,
while its data travels, before the commit, some milliseconds into a recovery, in a reset callback, while a checkpoint
is written, while a newcomer starts, waits or has just been let in.  One of the first ranks is spared, since somebody
must have the state.
Every job must end well, and every process that ends in it must have the sum that the ranks of each step make, to the
bit; no step that a survivor has committed may be repeated; and the newest checkpoint must be whole and of that history.
A job that goes wrong prints its seed, which plays it again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import seeds
from support.thread_peers import Room, ThreadPeers

from rabit.checkpoint import Checkpoint

STEPS = 16
LIMIT_S = 180.0
SCRIPT = Path(__file__).with_name("elastic_schedule_rank.py")
OF_ALL = ("before", "sent", "commit", "recovery", "reset", "save")
OF_NEWCOMERS = ("start", "admitted")


@dataclass(frozen=True)
class Kill:
    """A process, by the number that it keeps, and the moment at which it is killed.

    at: the step, or the number of the recovery or newcomer's moment.  after_ms: so much later.
    """

    member: int
    phase: str
    at: int
    after_ms: int


@dataclass(frozen=True)
class Schedule:
    """A job and its losses."""

    ranks: int
    most: int
    spares: int
    kills: tuple[Kill, ...]


def schedule_of(seed: int) -> Schedule:
    dice = random.Random(seed)
    ranks = dice.randint(2, 4)
    most = ranks + dice.choice((0, 0, 1))
    spares = dice.choice((0, 0, 1))
    safe = dice.randrange(ranks)
    others = [each for each in range(ranks) if each != safe]
    newcomers = list(range(ranks, ranks + 3))
    kills = []
    for _ in range(dice.randint(1, 4)):
        is_newcomer = (spares or most > ranks or bool(kills)) and dice.random() < 0.3
        member = dice.choice(newcomers if is_newcomer else others)
        phase = dice.choice(OF_ALL + OF_NEWCOMERS if is_newcomer else OF_ALL)
        at = dice.randint(1, 2) if phase in ("recovery", "reset") else dice.randrange(1, STEPS)
        at = at // 3 * 3 + 3 if phase == "save" else at  # so often it saves
        kills.append(Kill(member, phase, at, dice.choice((0, 1, 3, 10, 30, 100, 300))))
    return Schedule(ranks, most, spares, tuple(kills))


def run(seed: int) -> list[str]:
    """Plays a schedule; the phases in which processes were killed.  Raises AssertionError."""
    schedule = schedule_of(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            *(sys.executable, "-m", "rabit.launch", "-np", str(schedule.ranks), "--min-np", "1"),
            *("--max-np", str(schedule.most), "--spares", str(schedule.spares), "-H", "localhost:16"),
            *(sys.executable, str(SCRIPT), name, str(STEPS)),
            json.dumps([dataclasses.astuple(each) for each in schedule.kills]),
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, cwd=name, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{schedule}\nhangs: {error.stdout!r}\n{error.stderr!r}") from error
        said = f"{schedule}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"status {done.returncode}: {said}"
        check(folder, said)
        return [each.read_text() for each in folder.glob("killed.*")]


def check(folder: Path, said: str) -> None:
    """What the processes have left behind is one history, without a gap."""
    results = {each.name: json.loads(each.read_text()) for each in folder.glob("result.*")}
    assert results, said
    histories = {json.dumps(each["sizes"]) for each in results.values()}
    assert len(histories) == 1, f"{histories}: {said}"
    sizes = json.loads(histories.pop())
    assert len(sizes) == STEPS, said
    for name, each in results.items():
        assert each["weight"] == weight_of(sizes), f"{name}: {each} of {sizes}: {said}"
        for step, size in each["commits"]:
            assert sizes[step - 1] == size, f"{name} has committed step {step} with {size} ranks, of {sizes}: {said}"
    found = Checkpoint(folder / "checkpoints", peers=ThreadPeers(Room(1), 0)).restore()
    if found is not None:
        saved: Any = found.state
        assert saved["sizes"] == sizes[: found.step], f"saved {saved['sizes']} of {sizes}: {said}"
        assert (saved["weights"] == weight_of(saved["sizes"])).all(), said


def weight_of(sizes: list[int]) -> float:
    """What the weights come to when each step has so many ranks: exact in float64."""
    ranks = np.array([size * (size + 1) // 2 for size in sizes])
    return float((np.arange(1, len(sizes) + 1) * ranks).sum())


def main() -> int:
    parser = seeds.options(__doc__, runs=100)
    parser.add_argument("--show", action="store_true", help="print the schedules, and play none")
    given = parser.parse_args()
    if given.show:
        for seed in range(given.seed, given.seed + given.runs):
            print(seed, schedule_of(seed))
        return 0
    killed = Counter[str]()
    status = seeds.play(given, lambda seed: killed.update(run(seed)))
    print(f"killed: {killed.total()}, {dict(sorted(killed.items()))}")
    return status


if __name__ == "__main__":
    sys.exit(main())
