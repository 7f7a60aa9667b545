"""Loses a rank without parts when the first ranks meet: rank 0 has finished, rank 1 is in the last exchange.

    elastic_first_meeting.py FOLDER

The ranks that go on write whether they have what was loaded.
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

folder, me = Path(sys.argv[1]), int(os.environ["RABIT_RANK"])
torch.set_num_threads(1)
rabit.init()
torch.manual_seed(0)
model = torch.nn.Linear(20, 6, bias=False)  # two rows of 64 elements
expected = {"weight": model.weight.detach().clone(), "exp_avg": torch.rand(6, 20), "exp_avg_sq": torch.rand(6, 20)}
sharding.shard(model, keep=0)
optimizer = rabit.DistributedOptimizer(
    torch.optim.AdamW(model.parameters()), model.named_parameters(), shard="parameters", model=model
)
state = elastic.TorchState(model, optimizer, step=0)
moments = {key: expected[key].clone() for key in ("exp_avg", "exp_avg_sq")}
options = optimizer.state_dict()["param_groups"]
optimizer.load_state_dict({"state": {"weight": {**moments, "step": torch.tensor(5.0)}}, "param_groups": options})
assert (optimizer.part(model.weight) is None) == (me == 2)
take_own = state.take_own


def interrupted(*arguments):
    take_own(*arguments)
    if 2 in members_now()[1]:
        rabit.barrier(name="the last exchange")


if me == 1:
    state.take_own = interrupted


@elastic.run
def train(state):
    if me == 2:
        while not (folder / "has begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if 2 in members_now()[1]:
        (folder / "has begun").touch()
        rabit.allreduce(torch.zeros(1), name="wait")
    found = optimizer.state_dict(whole=True)["state"]["weight"]
    with sharding.gathered(model):
        found["weight"] = model.weight.detach().clone()
    return [key for key, value in expected.items() if not torch.equal(found[key], value)]


(folder / f"{me}.json").write_text(json.dumps(train(state)))
rabit.shutdown()
