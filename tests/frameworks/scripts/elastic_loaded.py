"""Loads the state of divided optimizers, and is continued by fewer or by new ranks before it has committed.

    elastic_loaded.py FOLDER SIZE [fresh] [early]

Process 1 is lost in the first step, with early while the ranks meet before it, and SIZE is how many ranks go on. Each
of them writes where its state differs from what was loaded, by optimizer and parameter; the processes that come for
others load nothing. fresh: nobody loads, and there are no copies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

import rabit_torch as rabit
from rabit.session import members_now
from rabit_torch import elastic, sharding

folder, size, is_fresh = Path(sys.argv[1]), int(sys.argv[2]), "fresh" in sys.argv
me = int(os.environ["RABIT_RANK"])
torch.set_num_threads(1)
rabit.init()
begun_with = rabit.size()


def made(dtype):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1)).to(dtype)


def wrapped(stage, model):
    if stage == "parameters":
        sharding.shard(model, keep=33)  # The biases stay whole.
    return rabit.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01),
        [(f"{stage}.{name}", value) for name, value in model.named_parameters()],
        shard="gradients" if stage == "sixteen" else stage,
        model=model if stage == "parameters" else None,
    )


models = {
    stage: made(torch.bfloat16 if stage == "sixteen" else torch.float32)
    for stage in ("optimizer", "gradients", "sixteen", *([] if is_fresh else ["parameters"]))
}
optimizers = {stage: wrapped(stage, model) for stage, model in models.items()}


def loaded(optimizer):
    generator = torch.Generator().manual_seed(1)
    state = {
        place.name: {
            **{key: torch.rand(place.parameter.shape, generator=generator) for key in ("exp_avg", "exp_avg_sq")},
            "step": torch.tensor(5.0),
        }
        for place in optimizer._rabit_places
    }
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


expected = {stage: loaded(optimizer) for stage, optimizer in optimizers.items()}
if me < begun_with and not is_fresh:
    for stage, optimizer in optimizers.items():
        optimizer.load_state_dict(expected[stage])
parts = {f"model {stage}": model for stage, model in models.items()}
parts |= {f"optimizer {stage}": optimizer for stage, optimizer in optimizers.items()}
state = elastic.TorchState(step=0, replicas=0 if is_fresh else 1, **parts)


def differing():
    return [
        [name, key]
        for stage, optimizer in optimizers.items()
        for name, values in optimizer.state_dict(whole=True)["state"].items()
        for key in ("exp_avg", "exp_avg_sq", "step")
        if not torch.equal(values.get(key, torch.tensor(0.0)), expected[stage]["state"][name][key])
    ]


if me == 1 and "early" in sys.argv:
    state.broadcast = lambda _: os.kill(os.getpid(), signal.SIGKILL)


@elastic.run
def train(state):
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if 1 in members_now()[1]:
        rabit.allreduce(torch.zeros(1), name="wait")
    assert rabit.size() == size
    return [] if is_fresh else differing()


found = train(state)
(folder / f"{me}.json").write_text(json.dumps(found))
rabit.shutdown()
