"""A job that loses ranks and continues: the state of the last commit, on the ranks that are left.

    rabitrun -np 3 --min-np 1 python examples/torch_elastic.py --lose 40:1 --lose 70:0

--lose STEP:RANK kills that process at that step; the others repeat the step without it.
"""

import argparse
import os
import signal

import torch

import rabit_torch as rabit
from rabit_torch import elastic

parser = argparse.ArgumentParser(description="Linear regression that survives lost ranks.")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=16, help="samples of a rank in a step")
parser.add_argument("--lose", action="append", default=[], metavar="STEP:RANK")
arguments = parser.parse_args()

rabit.init()
process = rabit.rank()  # at the start; the rank changes when others are lost
losses = {(int(step), int(rank)) for step, _, rank in (each.partition(":") for each in arguments.lose)}

torch.manual_seed(0)
inputs = torch.randn(2000, 10)
targets = inputs @ torch.arange(10.0).unsqueeze(1)
model = torch.nn.Linear(10, 1)
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters()
)
sampler = elastic.ElasticSampler(inputs)
state = elastic.TorchState(model, optimizer, sampler=sampler, step=0)


def tell() -> None:
    if rabit.rank() == 0:
        print(f"going on with {rabit.size()} ranks at step {state.step}", flush=True)


state.register_reset_callbacks([tell])


@elastic.run
def train(state: elastic.TorchState) -> float:
    loss = torch.zeros(())
    while state.step < arguments.steps:
        sampler.reset()
        if len(sampler) < arguments.batch:
            sampler.set_epoch(sampler.epoch + 1)
        rows = sampler.indices[: arguments.batch]
        optimizer.zero_grad()
        loss = (model(inputs[rows]) - targets[rows]).square().mean()
        loss.backward()
        if (state.step, process) in losses:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        sampler.record_batch(0, len(rows))
        state.step += 1
        state.commit()
    return loss.item()


loss = train(state)
if rabit.rank() == 0:
    print(f"step {state.step}, {rabit.size()} ranks: loss {loss:.4f}")
