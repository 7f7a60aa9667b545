"""Trains by divided optimizers and by a whole one next to each other in an elastic job.

    elastic_shards.py FOLDER PLAN

PLAN as JSON: steps; kill: [step, process, phase] of each loss; sizes: {step: ranks that it waits for}; hosts:
{step: what the host file says from then on}. Each rank writes what it has come to: the parameters and moments of all
models must be equal, bit for bit.
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
from rabit_torch import elastic, sharding

STAGES = ("whole", "optimizer", "gradients", "parameters")

folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
me = int(os.environ["RABIT_RANK"])
torch.set_num_threads(1)
rabit.init()
inputs = torch.randn(256, 20, generator=torch.Generator().manual_seed(1))
targets = inputs.sum(1, keepdim=True)


def made_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))


models = {stage: made_model() for stage in STAGES}


def wrapped(stage, model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if stage == "parameters":
        sharding.shard(model, keep=33)  # The biases stay whole.
    return rabit.DistributedOptimizer(
        optimizer,
        [(f"{stage}.{name}", value) for name, value in model.named_parameters()],
        shard=None if stage == "whole" else stage,
        model=model if stage == "parameters" else None,
    )


optimizers = {stage: wrapped(stage, model) for stage, model in models.items()}
parts = {f"model {stage}": model for stage, model in models.items()}
parts |= {f"optimizer {stage}": optimizer for stage, optimizer in optimizers.items()}
state = elastic.TorchState(step=0, sizes=[], replicas=1, **parts)


def meet(phase):
    if [state.step, me, phase] in plan.get("kill", []):
        os.kill(os.getpid(), signal.SIGKILL)


def meets(function, before="", after=""):
    """`function`, and what it meets."""

    def called(*arguments):
        meet(before)
        result = function(*arguments)
        meet(after)
        return result

    return called


for optimizer in (optimizers["optimizer"], optimizers["gradients"]):
    optimizer._rabit_states.step = meets(optimizer._rabit_states.step, "scattered", "updated")
divided = optimizers["parameters"]
divided._rabit_states.step = meets(divided._rabit_states.step, "parts scattered", "parts updated")
models["parameters"][2].register_forward_pre_hook(lambda *_: meet("gathering"))
state._replicate = meets(state._replicate, "saved", "replicated")


def wait_for(size):
    if rabit.rank() == 0 and str(state.step) in plan.get("hosts", {}):
        (folder / "hosts.new").write_text(plan["hosts"].pop(str(state.step)))
        (folder / "hosts.new").rename(folder / "hosts")
    until = time.monotonic() + 90
    while rabit.size() != size:
        assert time.monotonic() < until, f"step {state.step} has {rabit.size()} ranks, not {size}"
        state.commit()
        time.sleep(0.01)


@elastic.run
def train(state):
    while state.step < plan["steps"]:
        if str(state.step) in plan.get("sizes", {}):
            wait_for(plan["sizes"][str(state.step)])
        first = 8 * (rabit.size() * state.step + rabit.rank()) % 240
        rows = slice(first, first + 8)
        for stage, model in models.items():
            optimizers[stage].zero_grad()
            loss = (model(inputs[rows]) - targets[rows]).square().mean()
            if stage == "gradients":
                meet("backward")
            if stage == "parameters":
                meet("parts backward")
            loss.backward()
            optimizers[stage].step()
        meet("stepped")
        state.step += 1
        state.sizes.append(rabit.size())
        state.commit()


train(state)


def found(stage):
    optimizer, model = optimizers[stage], models[stage]
    kept = optimizer.state_dict(**({} if stage == "whole" else {"whole": True}))["state"]
    keys = kept if stage == "whole" else [f"{stage}.{name}" for name, _ in model.named_parameters()]
    moments = [kept[key][part] for key in keys for part in ("exp_avg", "exp_avg_sq", "step")]
    with sharding.gathered(model):
        tensors = [*(value.detach().clone() for value in model.parameters()), *moments]
    return [tensor.numpy().tobytes().hex() for tensor in tensors]


(folder / f"{me}.json").write_text(
    json.dumps([{stage: found(stage) for stage in STAGES}, state.sizes])
)
rabit.shutdown()
