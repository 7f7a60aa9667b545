"""Training while the autotuner works: every rank ends with the same weights, and the same as alone."""

from __future__ import annotations

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
