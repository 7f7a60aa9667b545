"""Training while the autotuner works: every rank ends with the same weights, and the same as alone."""

from __future__ import annotations

import csv

import pytest

torch = pytest.importorskip("torch")

from support.processes import assert_all_ended_well, run_processes  # noqa: E402

SCRIPT = """
import itertools

import torch
import rabit_torch as rabit

def changes():
    return rabit.statistics()["tunables"]["changes"]

def train(optimizer, model, steps):
    data, is_alone = torch.Generator().manual_seed(5), steps is not None
    for step in itertools.count():
        if step == steps or not is_alone and not rabit.any_rank(changes() < 4):
            return step
        inputs, targets = torch.randn(8, 64, generator=data), torch.randn(8, 8, generator=data)
        if not is_alone:
            inputs, targets = inputs[rabit.rank() :: 2], targets[rabit.rank() :: 2]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

def make():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 800), torch.nn.ReLU(), torch.nn.Linear(800, 8))
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

rabit.init()
model, inner = make()
steps = train(rabit.DistributedOptimizer(inner, model.named_parameters()), model, None)
assert rabit.statistics()["steps"] == steps < 3000, steps
for name, weight in model.state_dict().items():
    both = rabit.allgather(weight[None], name=name)
    assert torch.equal(both[0], both[1]), name
alone, inner = make()
train(inner, alone, steps)
for mine, theirs in zip(model.parameters(), alone.parameters()):
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
"""


def test_weights_stay_equal_while_the_tuner_works(tmp_path):
    ended = run_processes(
        2,
        SCRIPT,
        tmp_path,
        {
            "OMP_NUM_THREADS": "1",
            "RABIT_AUTOTUNE": "1",
            "RABIT_AUTOTUNE_CACHE": "off",
            "RABIT_AUTOTUNE_WARMUP_SAMPLES": "1",
            "RABIT_AUTOTUNE_STEPS_PER_SAMPLE": "3",
        },
    )
    assert_all_ended_well(ended)


OVERLAPS = """
import torch
import rabit_torch as rabit
from rabit import default_engine

def train(overlap, steps):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300), torch.nn.Linear(300, 8)
    )
    inner = torch.optim.Adam(model.parameters(), 0.001)
    optimizer = rabit.DistributedOptimizer(inner, model.named_parameters(), overlap=overlap)
    data, modes = torch.Generator().manual_seed(rabit.rank()), []
    while len(modes) != steps:
        if steps is None and not rabit.any_rank(default_engine().is_tuning or len(modes) < 30):
            steps = len(modes) + 3  # the last proposal is still on its way
        inputs, targets = torch.randn(8, 64, generator=data), torch.randn(8, 8, generator=data)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        modes.append(optimizer.overlap)
        assert len(modes) < 5000
    optimizer.flush()
    return modes, model.state_dict()

rabit.init()
modes, weights = train("auto", None)
assert set(modes) == {"backward", "next-forward", "reduce-scatter"}, set(modes)
assert all(each == modes for each in rabit.allgather_object(modes)), "changed at different steps"
found = rabit.statistics()["overlap"]
assert (found["phase"], found["overlap"]) == ("done", modes[-1]), found
if rabit.rank() == 0:
    assert rabit.statistics()["autotune"]["values"]["overlap"] == modes[-1]
_, barrier = train("backward", len(modes))
for name, weight in weights.items():
    assert torch.equal(weight, barrier[name]), name
    both = rabit.allgather(weight[None], name=name)
    assert torch.equal(both[0], both[1]), name
"""


def test_the_tuner_changes_the_overlap_on_all_ranks_after_the_same_step(tmp_path):
    """And no weight differs by a bit: a sum of two ranks has one result, whatever its algorithm."""
    log = tmp_path / "log.csv"
    ended = run_processes(
        2,
        OVERLAPS,
        tmp_path,
        {
            "OMP_NUM_THREADS": "1",
            "RABIT_AUTOTUNE": "1",
            "RABIT_AUTOTUNE_LOG": str(log),
            "RABIT_AUTOTUNE_CACHE": "off",
            "RABIT_AUTOTUNE_KNOBS": "overlap,lanes",
            "RABIT_AUTOTUNE_WARMUP_SAMPLES": "1",
            "RABIT_AUTOTUNE_STEPS_PER_SAMPLE": "3",
        },
    )

    assert_all_ended_well(ended)
    rows = list(csv.DictReader(log.open()))
    assert {row["overlap"] for row in rows} == {"backward", "next-forward", "reduce-scatter"}
    assert len({row["fusion_bytes"] for row in rows}) == 1, "a knob that is not named stays"
    assert rows[-1]["phase"] in ("chosen", "off")
