"""Random schedules of elastic jobs: one to four losses at any moment, while ranks also come.

    python tests/faults/elastic_schedules.py [--runs 100] [--seed 0] [--show]

A seed decides everything: two to four ranks, spares and slots to grow into, what they train (an array, or a table by
one of torch's optimizers with a schedule and a DataLoader; every state holds a sampler), and who is killed when: before
a step, while its data travels, before the commit, some milliseconds into a recovery, in a reset callback, while a
checkpoint is written, while a newcomer starts, waits or has just been let in.  Another one is killed up to 200 ms after
it sees the first loss.  One of the first ranks is spared, since somebody must have the state.
Every job must end well, and every process that ends in it must have the weights that the ranks of each step make, to
the bit; no step that a survivor has committed may be repeated; every epoch that is over must have had each sample; and
the newest checkpoint must be whole and of that history.  No wait for a connection may run into its limit, which is
longer than a job may take.  A job that goes wrong prints its seed, which plays it again.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.elastic_work import SAMPLES, weights_of
from support import seeds
from support.rank_server import RankServer
from support.thread_peers import Room, ThreadPeers

from rabit.checkpoint import Checkpoint

STEPS = 16
LIMIT_S = 180.0
QUANTILES = {"median": 0.5, "99 %": 0.99, "longest": 1.0}
SCRIPT = Path(__file__).with_name("elastic_schedule_rank.py")
OF_ALL = ("before", "sent", "commit", "recovery", "reset", "save")
OF_NEWCOMERS = ("start", "admitted")
OPTIMIZERS = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam",
    "RMSprop", "Rprop", "SGD", "SparseAdam",
)  # fmt: skip


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
    """A job and its losses.  kind: the optimizer; "": an array by hand."""

    kind: str
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
    kills.append(Kill(dice.choice(others), "recovery", 1, dice.randint(0, 200)))
    kind = dice.choice(OPTIMIZERS) if dice.random() < 0.8 else ""
    return Schedule(kind, ranks, most, spares, tuple(kills))


@dataclass(frozen=True)
class Played:
    """phases: in which processes were killed.  gaps_s: of each survivor, from a kill to its next step among others."""

    phases: list[str]
    gaps_s: list[float]


def run(seed: int, torch_command: Sequence[str] = (sys.executable,)) -> Played:
    """Plays a schedule.  Raises AssertionError.  torch_command: starts a script that imports torch."""
    schedule = schedule_of(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            *(sys.executable, "-m", "rabit.launch", "-np", str(schedule.ranks), "--min-np", "1"),
            *("--max-np", str(schedule.most), "--spares", str(schedule.spares), "-H", "localhost:16"),
            *(*(torch_command if schedule.kind else (sys.executable,)), str(SCRIPT), name, str(STEPS)),
            *(json.dumps([dataclasses.astuple(each) for each in schedule.kills]), schedule.kind),
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "RABIT_CONNECT_TIMEOUT": f"{2 * LIMIT_S:g}s"}
        try:
            done = subprocess.run(
                command, cwd=name, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{schedule}\nhangs: {error.stdout!r}\n{error.stderr!r}") from error
        said = f"{schedule}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"status {done.returncode}: {said}"
        results = {each.name: json.loads(each.read_text()) for each in folder.glob("result.*")}
        killed = [json.loads(each.read_text()) for each in folder.glob("killed.*")]
        check(schedule.kind, results, said)
        check_checkpoint(schedule.kind, folder, next(iter(results.values()))["sizes"], said)
        gaps_s = [gap for _, at_s in killed for each in results.values() for gap in gaps_after(at_s, each["commits"])]
        return Played([phase for phase, _ in killed], gaps_s)


def check(kind: str, results: dict[str, Any], said: str) -> None:
    """What the processes have left behind is one history, without a gap."""
    assert results, said
    histories = {json.dumps([each["sizes"], each["seen"]]) for each in results.values()}
    assert len(histories) == 1, f"{histories}: {said}"
    sizes, seen = json.loads(histories.pop())
    assert len(sizes) == STEPS, said
    expected = weights_of(kind, sizes)
    for name, each in results.items():
        weights = np.array(each["weights"], expected.dtype)
        assert (weights == expected).all(), f"{name}: {weights} in place of {expected}, {sizes}: {said}"
        for step, size, *_ in each["commits"]:
            assert sizes[step - 1] == size, f"{name} has committed step {step} with {size} ranks, of {sizes}: {said}"
    for epoch in range(seen[-1][0]):
        rows = {row for at, rows in seen if at == epoch for row in rows}
        assert rows == set(range(SAMPLES)), f"epoch {epoch} has had {sorted(rows)}: {said}"


def check_checkpoint(kind: str, folder: Path, sizes: list[int], said: str) -> None:
    found = Checkpoint(folder / "checkpoints", peers=ThreadPeers(Room(1), 0)).restore()
    if found is not None:
        saved: Any = found.state
        assert saved["sizes"] == sizes[: found.step], f"saved {saved['sizes']} of {sizes}: {said}"
        assert (saved["weights"] == weights_of(kind, saved["sizes"])).all(), said


def gaps_after(killed_s: float, commits: Sequence[tuple[int, int, int, float]]) -> list[float]:
    """From the kill to the first commit after the ranks have changed; nothing if they have not."""
    before = [resets for _, _, resets, at_s in commits if at_s <= killed_s]
    after = [at_s for _, _, resets, at_s in commits if at_s > killed_s and before and resets > before[-1]]
    return [after[0] - killed_s] if after else []


def main() -> int:
    parser = seeds.options(__doc__, runs=100)
    parser.add_argument("--show", action="store_true", help="print the schedules, and play none")
    given = parser.parse_args()
    if given.show:
        for seed in range(given.seed, given.seed + given.runs):
            print(seed, schedule_of(seed))
        return 0
    killed = Counter[str]()
    gaps_s: list[float] = []
    server = RankServer("torch")

    def play(seed: int) -> None:
        played = run(seed, server.command)
        killed.update(played.phases)
        gaps_s.extend(played.gaps_s)

    try:
        status = seeds.play(given, play, about=schedule_of)
    finally:
        server.close()
    print(f"killed: {killed.total()}, {dict(sorted(killed.items()))}")
    if gaps_s:
        shown = ", ".join(f"{name} {np.quantile(gaps_s, share):.3f} s" for name, share in QUANTILES.items())
        print(f"from a kill to the next step of each survivor, {len(gaps_s)} times: {shown}")
    return status


if __name__ == "__main__":
    sys.exit(main())
