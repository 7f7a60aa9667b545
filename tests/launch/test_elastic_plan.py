"""Elastic jobs with RABIT_PLAN=auto: the ranks that meet again probe their network and follow a new plan."""

import json
import sys

# Every process counts as a host of its own. Rank 0 waits at a step for so many ranks as its plan says.
TRAIN = """
import json, os, pathlib, signal, sys, time
import numpy as np
import rabit, rabit.elastic

folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
me = int(os.environ["RABIT_RANK"])
os.environ["RABIT_HOST_KEY"] = f"host{me}"
rabit.init()
state = rabit.elastic.ObjectState(step=0, weights=np.zeros(50_000), seen=[])

def wait_for(size):
    until = time.monotonic() + 60
    while rabit.size() != size:
        assert time.monotonic() < until, f"step {state.step} has {rabit.size()} ranks, not {size}"
        state.commit()
        time.sleep(0.01)

@rabit.elastic.run
def train(state):
    while state.step < steps:
        if state.step == 8:
            wait_for(4)
        if state.step == 4 and me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = np.full(50_000, (rabit.rank() + 1) * (state.step + 1), np.float64)
        state.weights += rabit.allreduce(gradient, op=rabit.Sum, name="gradient")
        rabit.mark_step()
        state.step += 1
        state.seen.append((rabit.size(), rabit.statistics()["plan"]["hosts"]))
        state.commit()
    return float(state.weights[0]), float(state.weights[-1])

(folder / f"{me}.json").write_text(json.dumps([train(state), state.seen]))
"""
STEPS = 12


def test_ranks_that_are_lost_and_replaced_are_planned_for(start, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    job = start("-np", 4, "--min-np", 3, "--max-np", 4, "--plan", "auto", sys.executable, script, tmp_path, STEPS)

    assert job.wait() == 0, job.err
    found = {int(path.stem): json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert sorted(found) == [0, 2, 3, 4], job.err
    sums, seen = found[0]
    assert all(of_rank == [sums, seen] for of_rank in found.values())
    assert sums[0] == sums[1] == sum((step + 1) * size * (size + 1) / 2 for step, (size, _) in enumerate(seen))
    assert seen[0] == [4, ["host0", "host1", "host2", "host3"]]
    assert seen[-1] == [4, ["host0", "host2", "host3", "host4"]]
    assert all(size == len(hosts) for size, hosts in seen)
    job.assert_nothing_is_left()
