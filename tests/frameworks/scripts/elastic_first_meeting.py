"""Loses a rank when the first ranks meet: one has finished, and another, rank 1, is in the last exchange.

    elastic_first_meeting.py FOLDER CASE

CASE parts: all have loaded their parts, and rank 2, which has none, is lost. committed: so, and rank 0 loads something
else and commits before it sees the loss. one: rank 0 alone has loaded, and is lost. The ranks that go on write where
they differ from what was loaded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import rabit_torch as rabit
from rabit.session import members_now
from rabit_torch import elastic, sharding

folder, case, me = Path(sys.argv[1]), sys.argv[2], int(os.environ["RABIT_RANK"])
lost, late, finished = (0, 1, 2) if case == "one" else (2, 1, 0)
torch.set_num_threads(1)
rabit.init()
torch.manual_seed(0)
model = torch.nn.Linear(20, 6, bias=False)  # two rows of 64 elements
expected = {"weight": model.weight.detach().clone(), "exp_avg": torch.rand(6, 20), "exp_avg_sq": torch.rand(6, 20)}
if case == "one":
    expected = {"weight": torch.ones(6, 20)}
else:
    sharding.shard(model, keep=0)
optimizer = rabit.DistributedOptimizer(
    torch.optim.AdamW(model.parameters()),
    model.named_parameters(),
    shard="optimizer" if case == "one" else "parameters",
    model=None if case == "one" else model,
)
other = torch.nn.Linear(20, 6)
method = rabit.DistributedOptimizer(
    torch.optim.SGD(other.parameters(), lr=0.1), other.named_parameters("other"), strategy="powersgd:small=0"
)
state = elastic.TorchState(model, optimizer, other=other, method=method, step=0)


def load(moments, rate):
    options = [{**group, "lr": rate} for group in optimizer.state_dict()["param_groups"]]
    kept = {"weight": {**moments, "step": torch.tensor(5.0)}} if moments else {"weight": {}}
    optimizer.load_state_dict({"state": kept, "param_groups": options})


if case != "one":
    load({key: expected[key].clone() for key in ("exp_avg", "exp_avg_sq")}, 0.5)
    assert (optimizer.part(model.weight) is None) == (me == lost)
elif me == 0:
    load({}, 0.5)
    model.load_state_dict({"weight": expected["weight"].clone()})
take_own = state.take_own


def interrupted(*arguments):
    take_own(*arguments)
    if lost in members_now()[1]:
        rabit.barrier(name="the last exchange")


if me == late:
    state.take_own = interrupted


@elastic.run
def train(state):
    if me == lost:
        until = time.monotonic() + 60
        while not (folder / "has begun").exists():
            assert time.monotonic() < until, f"rank {finished} has not finished the first sync()"
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if lost in members_now()[1]:
        (folder / "has begun").touch()
        if case == "committed":
            state.step = 1
            load({key: torch.zeros(6, 20) for key in ("exp_avg", "exp_avg_sq")}, 0.25)
            state.commit()
        rabit.allreduce(torch.zeros(1), name="wait")
    found = optimizer.state_dict(whole=True)["state"]["weight"]
    with sharding.gathered(model):
        found["weight"] = model.weight.detach().clone()
    differing = [key for key, value in expected.items() if not torch.equal(found[key], value)]
    rates = [group["lr"] for group in optimizer.param_groups]
    other(torch.full((1, 20), 1.0 + me)).sum().backward()
    method.step()
    weights = rabit.allgather(other.weight.detach().reshape(1, -1))
    return differing, rates, state.step, bool((weights == weights[0]).all())


(folder / f"{me}.json").write_text(json.dumps(train(state)))
rabit.shutdown()
