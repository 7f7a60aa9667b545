"""Knobs that change while ranks train: results stay equal, and the tuner ends, remembers, freezes."""

from __future__ import annotations

import csv
import json
from collections import Counter

import pytest
from support.processes import assert_all_ended_well, run_processes

UNDER_TRAFFIC = """
import random
import numpy as np
import rabit

rabit.init()
rank, size, engine = rabit.rank(), rabit.size(), rabit.default_engine()
sizes = [0, 1, 1000, 70_001, 262_144, 300_007]
order, knobs = random.Random(rank), random.Random(9)
for step in range(12):
    arrays = [np.arange(n, dtype=np.float64) % 1000 + rank + step for n in sizes for _ in range(3)]
    handles = {}
    for index in order.sample(range(len(arrays)), len(arrays)):
        handles[index] = rabit.allreduce_async(arrays[index], name=f"t{index}", op=rabit.Sum)
        if rank == 0 and knobs.random() < 0.3:
            engine.propose_tunables(
                partition_bytes=knobs.choice([1 << 14, 1 << 16, 1 << 20]),
                fusion_bytes=knobs.choice([0, 1 << 16, 1 << 24]),
                credit_bytes=knobs.choice([0, 1 << 14, 1 << 18, 1 << 22]),
                lanes=knobs.choice([None, 1, 2, 3]),
            )
    if step % 5 == 0:
        assert rabit.allgather(np.full(rank + 1, rank), name="g").sum() == sum(
            r * (r + 1) for r in range(size)
        )
    for index, handle in handles.items():
        n = sizes[index // 3]
        expected = size * (np.arange(n) % 1000 + step) + size * (size - 1) / 2
        np.testing.assert_array_equal(rabit.synchronize(handle), expected)
rabit.barrier()
changes = rabit.allgather([rabit.statistics()["tunables"]["changes"]])
in_force = rabit.statistics()["tunables"]
assert rabit.broadcast_object(in_force, 0) == in_force
assert changes.min() == changes.max() > 5, changes
if rank == 1:
    for change in (lambda: engine.propose_tunables(lanes=1), engine.reset_tunables):
        try:
            change()
        except rabit.InvalidArgument as error:
            assert "only rank 0" in str(error), error
        else:
            raise AssertionError("rank 1 may not propose")
elif rank == 0:
    engine.reset_tunables()
rabit.barrier(name="told")
rabit.barrier(name="in force")
start = {name: getattr(engine.config, name) for name in in_force if name != "changes"}
assert start.items() <= rabit.statistics()["tunables"].items(), rabit.statistics()["tunables"]
"""


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_results_stay_equal_while_the_knobs_change(transport, tmp_path):
    environ = {"RABIT_TRANSPORT": transport, "RABIT_LANES": "3"}
    assert_all_ended_well(run_processes(3, UNDER_TRAFFIC, tmp_path, environ))


TUNED = """
import sys
import numpy as np
import rabit

def train(deterministic=False):
    rabit.init(config=rabit.Config.from_environ(deterministic=deterministic or None))
    engine, rank = rabit.default_engine(), rabit.rank()
    gradient, steps, is_tuning = np.ones(600_000, np.float32), 0, True
    while rabit.any_rank(engine.is_tuning or steps < 3):
        handles = [rabit.allreduce_async(gradient + rank, name=f"g{i}", op=rabit.Sum) for i in range(3)]
        for handle in handles:
            assert (rabit.synchronize(handle) == 3.0).all()
        rabit.mark_step()
        steps += 1
        assert steps < 5000
    rabit.barrier()
    statistics = rabit.statistics()
    assert statistics["steps"] == steps
    in_force = {key: value for key, value in statistics["tunables"].items() if key != "changes"}
    if rank == 0 and not deterministic:
        assert statistics["autotune"]["phase"] == "done"
        chosen = statistics["autotune"]["values"]
        assert chosen.pop("overlap") == "" and chosen == in_force
    assert rabit.broadcast_object(in_force, 0) == in_force
    rabit.shutdown()
    return steps, statistics["tunables"]["changes"], statistics.get("autotune", {})

first, changes, tuned = train()
assert changes >= 3, changes
second, _, _ = train()
if tuned.get("is_off"):  # What was chosen has to win again, and may not on a busy machine.
    assert second < first, (first, second)
frozen, changes, _ = train(deterministic=True)
assert (frozen, changes) == (3, 0), (frozen, changes)
"""


def test_the_tuner_ends_remembers_and_freezes(tmp_path):
    log = tmp_path / "log.csv"
    ended = run_processes(
        2,
        TUNED,
        tmp_path,
        {
            "RABIT_AUTOTUNE": "1",
            "RABIT_AUTOTUNE_LOG": str(log),
            "RABIT_AUTOTUNE_CACHE": str(tmp_path / "cache"),
            "RABIT_AUTOTUNE_WARMUP_SAMPLES": "1",
            "RABIT_AUTOTUNE_STEPS_PER_SAMPLE": "3",
            "RABIT_AUTOTUNE_SAMPLES": "4",
        },
    )

    assert_all_ended_well(ended)
    said = [line for line in ended[0].errors.splitlines() if "autotune" in line]
    assert len(said) == 3, ended[0].errors
    assert "as remembered" in said[1] or "chose" in said[0]
    assert "RABIT_DETERMINISTIC=1 freezes" in said[2]
    assert "autotune" not in ended[1].errors
    (remembered,) = (tmp_path / "cache").glob("*.json")
    document = json.loads(remembered.read_text())
    assert document["key"]["topology"].startswith("2 ranks, 1 hosts")
    phases = [row["phase"] for row in csv.DictReader(log.open())]
    assert phases.count("chosen") + phases.count("off") == 2
    ends = [index for index, phase in enumerate(phases) if phase in ("chosen", "off")]
    searched = Counter(phases[: ends[0]])
    assert (searched["explore"], searched["explore-off"]) == (3, 1)
