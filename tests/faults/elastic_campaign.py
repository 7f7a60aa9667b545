"""Random losses in elastic jobs of four processes, and what each costs.

    python tests/faults/elastic_campaign.py [--runs 100] [--seed 0] [--transport auto] [--spares 0]

Each run loses one to three of four ranks, at random steps: before a step, while its data travels, before the
commit, or while the others recover. Every run must end with the sum that the ranks of each step make, to the bit.
Printed are milliseconds from a kill to each survivor's exception, and to the end of its next step; a run that
fails prints the seed that plays it again.  With the transport `mixed` each two neighbours count as a host of their
own: shared memory inside, TCP between.  With spares a run loses one rank, or a second one that is lost while the
others recover; its next step has a spare in its place, and the times to the next step are those of such steps.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import seeds

RANKS, STEPS = 4, 15
PHASES = ("before", "sent", "commit", "reset")
SCRIPT = """
import json, os, pathlib, signal, sys, time
import numpy as np
import rabit, rabit.elastic

folder, plan, steps = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
wanted, spares = int(sys.argv[4]), int(sys.argv[5])
me = int(os.environ["RABIT_RANK"])
if sys.argv[6] == "mixed":  # two hosts, as far as the ranks know: shared memory inside each, TCP between
    os.environ["RABIT_HOST_KEY"] = f"host{me // 2}"
times = []  # (what, seconds of a clock that all processes of this machine share)

def note(what):
    times.append((what, time.clock_gettime(time.CLOCK_MONOTONIC)))

def meet(step, phase):
    if [step, phase, me] in plan:
        note("killed")
        (folder / f"killed.{me}").write_text(json.dumps(times[-1][1]))
        os.kill(os.getpid(), signal.SIGKILL)

rabit.init()
state = rabit.elastic.ObjectState(step=0, weights=np.zeros(50_000), sizes=[])
resets = []
state.register_reset_callbacks([lambda: (resets.append(1), meet(len(resets), "reset"))])

def step(state):
    meet(state.step, "before")
    gradient = np.full(50_000, (rabit.rank() + 1) * (state.step + 1), np.float64)
    handle = rabit.allreduce_async(gradient, op=rabit.Sum, name="gradient")
    meet(state.step, "sent")
    state.weights += handle.result()
    state.step += 1
    state.sizes.append(rabit.size())
    meet(state.step, "commit")
    state.commit()

def spares_wait():
    # The campaign is about spares that are there: one that starts up takes as long as its imports.
    from rabit.rendezvous.membership import KEY, Membership
    from rabit.rendezvous.store_client import StoreClient
    config = rabit.default_engine().config
    store, version, held = StoreClient(config.store_address, config.secret), 0, None
    while held is None or len(held.waiting) < spares:
        version, value = store.watch(KEY, version, 60)
        held = Membership.from_json(value)
    store.close()

@rabit.elastic.run
def train(state):
    if spares and rabit.rank() == 0 and state.step == 0:
        spares_wait()
    rabit.barrier()
    while state.step < steps:
        try:
            step(state)
        except rabit.RabitError:
            note("exception")
            raise
        if times and times[-1][0] == "exception":
            note("next step" if rabit.size() >= wanted else "smaller step")
    return float(state.weights[0])

result = train(state)
assert (state.weights == state.weights[0]).all()
(folder / f"{me}.json").write_text(json.dumps([result, state.sizes, times]))
"""


def plan_of(dice: random.Random, spares: int) -> list[tuple[int, str, int]]:
    """(step, or number of the recovery; phase; process) of each loss."""
    members = dice.sample(range(RANKS), dice.randint(1, min(spares, 2) if spares else RANKS - 1))
    found = []
    for number, member in enumerate(members):
        phase = dice.choice(PHASES if number else PHASES[:3])
        at = number if phase == "reset" else dice.randrange(1, STEPS)
        found.append((at, phase, member))
    return found


def run(seed: int, transport: str, spares: int) -> tuple[list[float], list[float]]:
    """Milliseconds to exceptions and to next steps of one run; raises AssertionError."""
    plan = plan_of(random.Random(seed), spares)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(SCRIPT)
        command = [
            *(sys.executable, "-m", "rabit.launch", "-np", str(RANKS), "--min-np", "1"),
            *("--spares", str(spares), "--transport", "auto" if transport == "mixed" else transport),
            *(sys.executable, str(script), name, json.dumps(plan), str(STEPS)),
            *(str(RANKS if spares else 0), str(spares), transport),
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=name, env=environ, capture_output=True, text=True, timeout=120, check=False)
        killed = sorted(json.loads(each.read_text()) for each in folder.glob("killed.*"))
        results = {each.stem: json.loads(each.read_text()) for each in folder.glob("*.json")}
        said = f"plan {plan}: {results}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, said
        assert len(results) == RANKS - (0 if spares else len(killed)), said
        weights = np.arange(1, STEPS + 1)
        to_exception, to_step = [], []
        for result, sizes, times in results.values():
            assert len(sizes) == STEPS, said
            assert result == sum(weights * [size * (size + 1) // 2 for size in sizes]), said
            for what, at in times:
                last = max((each for each in killed if each <= at), default=None)
                assert last is not None, said
                if what != "smaller step":
                    (to_exception if what == "exception" else to_step).append(1000 * (at - last))
    return to_exception, to_step


def main() -> int:
    parser = seeds.options(__doc__, runs=100)
    parser.add_argument("--transport", default="auto", choices=("auto", "tcp", "shm", "mixed"))
    parser.add_argument("--spares", type=int, default=0, help="processes that take the place of lost ones")
    given = parser.parse_args()
    to_exception: list[float] = []
    to_step: list[float] = []

    def one(seed: int) -> None:
        exceptions, steps = run(seed, given.transport, given.spares)
        to_exception.extend(exceptions)
        to_step.extend(steps)

    status = seeds.play(given, one)
    for what, found in (("exception", to_exception), ("next step", to_step)):
        if found:
            p50, p99 = np.percentile(found, [50, 99])
            print(f"kill to {what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, of {len(found)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
