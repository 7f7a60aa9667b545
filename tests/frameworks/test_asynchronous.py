"""Parameters on servers: rabit.ServerParameters, and DistributedOptimizer with RABIT_PS_ASYNC=1."""

from __future__ import annotations

import os
import subprocess
import sys

LEARN = """
import os, sys
import numpy as np, torch
import rabit, rabit_torch
rabit.init()
rank, size = rabit.rank(), rabit.size()
is_async = rabit.default_engine().config.ps_async
centres = np.random.default_rng(4).standard_normal((10, 20))
def data(seed, count):
    random = np.random.default_rng(seed)
    labels = random.integers(10, size=count)
    points = centres[labels] + 0.9 * random.standard_normal((count, 20))
    return torch.tensor(points, dtype=torch.float32), torch.tensor(labels)
torch.manual_seed(rank)
model = torch.nn.Linear(20, 10)
rabit_torch.broadcast_parameters(model.state_dict(), root_rank=0)
lr = 0.1 / (size if is_async else 1)  # Steps of all ranks add up on the servers.
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
staleness = 3 if is_async else 0
optimizer = rabit_torch.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), staleness=staleness)
for step in range(150):
    points, labels = data([5, rank, step], 16)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(points), labels).backward()
    optimizer.step()
rabit.barrier(name="end")
points, labels = data([6], 4000)
if is_async:  # What is on the servers now, equal everywhere.
    flat = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy() * 0
    name = ", ".join(name for name, _ in model.named_parameters())
    rabit.ServerParameters(flat, name=name)
    w, b = torch.tensor(flat[:200]).reshape(10, 20), torch.tensor(flat[200:])
    found = rabit.statistics()["backend_details"]["ps"]["updates"]
    assert found["ahead_max"] <= 3, found
    assert found["steps"] == 150, found
else:
    w, b = model.weight, model.bias
right = ((points @ w.T + b).argmax(1) == labels).float().mean().item()
print("right", round(right, 4), flush=True)
"""

LATE = """
import numpy as np, rabit
rabit.init()
rank = rabit.rank()
values = np.zeros(70_000, np.float32)
if rank == 0:
    shared = rabit.ServerParameters(values, name="w")
    for step in range(10):
        shared.add(np.ones(70_000, np.float32))
        assert shared.end_step() == step + 1
rabit.barrier(name="ten")
if rank == 1:
    shared = rabit.ServerParameters(values, name="w", staleness=0)
    assert (values == 10).all()
    delta = np.full(70_000, 5, np.float32)
    shared.add(delta)
    assert (delta == 15).all()
    assert shared.end_step() == 0
try:
    shared.add(np.ones(3, np.float32))
except rabit.InvalidArgument as error:
    print("refused", error, flush=True)
rabit.shutdown()
"""


def run(*words, environ=None):
    return subprocess.run(
        [sys.executable, "-m", "rabit.launch", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def accuracy_of(rank_server, script, environ):
    done = run("-np", "3", "-s", "2", *rank_server.command, script, environ=environ)

    assert done.returncode == 0, done.stderr
    found = [float(line.split()[-1]) for line in done.stdout.splitlines() if "right" in line]
    assert len(found) == 3
    return min(found)


def test_asynchronous_steps_learn_as_much_as_synchronous_ones(rank_server, tmp_path):
    script = tmp_path / "learn.py"
    script.write_text(LEARN)

    asynchronous = accuracy_of(rank_server, str(script), {"BYTEPS_ENABLE_ASYNC": "1"})

    assert asynchronous >= accuracy_of(rank_server, str(script), {}) - 0.01


CHANGED = """
import torch, rabit_torch as rabit
rabit.init()
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.load_state_dict({name: torch.full_like(each, 2.0) for name, each in model.state_dict().items()})
optimizer = rabit.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
def step():
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
step()
step()
with torch.no_grad():
    model[1].weight.clamp_(min=5.0)
try:
    step()
except rabit.InvalidArgument as error:
    print("refused", error, flush=True)
"""


def test_what_is_changed_outside_of_steps_is_refused():
    done = run("-np", "2", "-s", "1", sys.executable, "-c", CHANGED, environ={"RABIT_PS_ASYNC": "1"})

    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"refused parameter '1.weight' on rank {rank} was changed outside of step()" in done.stdout


def test_whoever_comes_late_gets_what_is_there():
    done = run("-np", "2", "-s", "1", sys.executable, "-c", LATE, environ={"RABIT_PS_ASYNC": "1"})

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is float32[70000] on the servers, and this is float32[3]") == 2


def test_without_servers_there_is_nobody_to_keep_parameters():
    script = "import rabit; rabit.init()"

    done = run("-np", "2", sys.executable, "-c", script, environ={"RABIT_PS_ASYNC": "1"})

    assert done.returncode == 1
    assert "the job has no summation servers that could keep parameters" in done.stderr


ARGUMENTS = """
import torch, rabit_torch as rabit
rabit.init()
model = torch.nn.Linear(3, 2)
named = list(model.named_parameters())
for arguments in (
    {"check_finite": True}, {"check_replicas": 5}, {"num_groups": 2}, {"groups": [[model.weight]]},
    {"row_sparse": True}, {"sparse_as_dense": True}, {"priorities": {"bias": 1}}, {"gradient_predivide_factor": 2.0},
    {"find_unused_parameters": True}, {"backward_passes_per_step": 2, "overlap": "none"}, {"strategy": "topk"},
):
    try:
        rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named, **arguments)
        print("taken", arguments)
    except rabit.InvalidArgument as error:
        print(f"on rank {rabit.rank()} takes no {', '.join(sorted(arguments))}: " in str(error) or error)
optimizer = rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named)
try:
    rabit.DistributedOptimizer(optimizer, named)
except rabit.InvalidArgument as error:
    print("is wrapped by DistributedOptimizer already" in str(error), flush=True)
"""


def test_arguments_that_asynchronous_steps_have_no_use_for_are_refused():
    done = run("-np", "2", "-s", "1", sys.executable, "-c", ARGUMENTS, environ={"RABIT_PS_ASYNC": "1"})

    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["True"] * 24, done.stdout


SETTINGS = """
import torch, rabit_torch as rabit
rabit.init()
try:
    rabit.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(3, 2).parameters(), lr=0.1))
except rabit.InvalidArgument as error:
    print(error, flush=True)
"""


def test_settings_that_asynchronous_steps_have_no_use_for_are_refused():
    settings = {"RABIT_CHECK_FINITE": "1", "RABIT_CHECK_REPLICAS": "3", "RABIT_STRATEGY": "topk"}
    done = run(
        "-np", "2", "-s", "1", sys.executable, "-c", SETTINGS, environ={"RABIT_PS_ASYNC": "1", **settings}
    )

    assert "takes no RABIT_STRATEGY, RABIT_CHECK_FINITE, RABIT_CHECK_REPLICAS" in done.stdout, done.stderr
