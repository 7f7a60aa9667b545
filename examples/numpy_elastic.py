"""Linear regression that loses ranks, gets others, and goes through every sample once in each epoch.

    rabitrun -np 2 --min-np 2 --spares 1 python examples/numpy_elastic.py --lose 3:1

--lose STEP:PROCESS kills that process at that step; the spare takes its place, and the step is repeated.
"""

import argparse
import os
import signal

import numpy as np

import rabit
from rabit import elastic

parser = argparse.ArgumentParser(description="Linear regression that survives lost ranks.")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch", type=int, default=25, help="samples of a rank in a step")
parser.add_argument("--lose", action="append", default=[], metavar="STEP:PROCESS")
arguments = parser.parse_args()

# What needs no rank stands before init(): there a spare waits.
process = int(os.environ.get("RABIT_RANK", "0"))
losses = {(int(step), int(which)) for step, _, which in (each.partition(":") for each in arguments.lose)}
random = np.random.default_rng(0)
inputs = random.standard_normal((1000, 10))
targets = inputs @ np.arange(10.0)

rabit.init()
sampler = elastic.ElasticSampler(inputs)
state = elastic.ObjectState(sampler=sampler, weights=np.zeros(10), step=0)

for batch in elastic.batches(sampler, state, arguments.batch, arguments.epochs):
    with batch as rows:
        if (state.step, process) in losses:
            os.kill(os.getpid(), signal.SIGKILL)
        slope = inputs[rows].T @ (inputs[rows] @ state.weights - targets[rows]) / len(rows)
        state.weights -= 0.3 * rabit.allreduce(slope, name="slope")
        state.step += 1

if rabit.rank() == 0:
    loss = np.square(inputs @ state.weights - targets).mean()
    print(f"step {state.step}, {rabit.size()} ranks, loss {loss:.6f}")
