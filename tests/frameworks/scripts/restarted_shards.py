"""Trains by divided optimizers with a checkpoint after each step; a job that was killed is started again.

    restarted_shards.py FOLDER PLAN

PLAN as JSON: steps; kill: [start, step, rank, phase] of each end. Rank 0 writes what the job has come to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

import rabit_torch as rabit

folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
start = int(os.environ.get("RABIT_RESTART", "0"))
torch.set_num_threads(1)
rabit.init()


def made_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))


models = {stage: made_model() for stage in ("optimizer", "gradients")}
optimizers = {
    stage: rabit.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01),
        [(f"{stage}.{name}", value) for name, value in model.named_parameters()],
        shard=stage,
    )
    for stage, model in models.items()
}
now = 0


def meet(phase):
    if [start, now, rabit.rank(), phase] in plan["kill"]:
        os.kill(os.getpid(), signal.SIGKILL)


def meets(function, before, after):
    """`function`, and what it meets."""

    def called(*arguments):
        meet(before)
        result = function(*arguments)
        meet(after)
        return result

    return called


for optimizer in optimizers.values():
    optimizer._rabit_states.step = meets(optimizer._rabit_states.step, "scattered", "updated")
checkpoint = rabit.Checkpoint(folder / "saved", model=models, optimizer=optimizers)
restored = checkpoint.restore()
first = 0 if restored is None else restored.step
for now in range(first, plan["steps"]):
    random = torch.Generator().manual_seed(10 * now + rabit.rank())
    for stage, model in models.items():
        optimizers[stage].zero_grad()
        loss = model(torch.randn(8, 20, generator=random)).square().mean()
        meet("backward")
        loss.backward()
        optimizers[stage].step()
    checkpoint.save(step=now + 1)
    meet("saving")
    checkpoint.wait()
    meet("saved")
checkpoint.close()
found = [
    {name: value.numpy().tobytes().hex() for name, value in model.state_dict().items()}
    for model in models.values()
]
state = [optimizer.state_dict(whole=True)["state"] for optimizer in optimizers.values()]
moments = [
    [
        kept[key].numpy().tobytes().hex()
        for kept in each.values()
        for key in ("exp_avg", "exp_avg_sq")
    ]
    for each in state
]
if rabit.rank() == 0:
    (folder / "result.json").write_text(json.dumps([found, moments, start]))
rabit.shutdown()
