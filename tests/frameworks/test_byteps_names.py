"""Scripts for BytePS run with another import, and its names mean here what they mean there."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.pages import run_program_of

import rabit_torch

SCRIPT = Path(__file__).parent / "scripts" / "byteps_training.py"
GUIDE = Path(__file__).parents[2] / "docs" / "start" / "from_byteps.md"

# The names of byteps.torch 0.2 with their first arguments, in order.
FUNCTIONS = {
    "init": [],
    "shutdown": [],
    "rank": [],
    "size": [],
    "local_rank": [],
    "local_size": [],
    "declare": ["name"],
    "poll": ["handle"],
    "synchronize": ["handle"],
    "push_pull": ["tensor", "average", "name", "version", "priority", "compression"],
    "push_pull_async": ["tensor", "average", "name", "version", "priority"],
    "push_pull_inplace": ["tensor", "average", "name", "version", "priority"],
    "push_pull_async_inplace": ["tensor", "average", "name", "version", "priority"],
    "broadcast_parameters": ["params", "root_rank"],
    "broadcast_optimizer_state": ["optimizer", "root_rank"],
    "DistributedOptimizer": [
        *("optimizer", "named_parameters", "compression", "backward_passes_per_step"),
    ],
    "DistributedDataParallel": ["module", "device_ids", "broadcast_buffers", "compression"],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_has_the_arguments(name):
    found = list(inspect.signature(getattr(rabit_torch, name)).parameters)

    assert name in rabit_torch.__all__
    assert found[: len(FUNCTIONS[name])] == FUNCTIONS[name]


@pytest.mark.parametrize("flags", [[], ["--fp16-pushpull"]])
def test_a_script_for_byteps_runs_with_another_import(rank_server, tmp_path, flags):
    text = SCRIPT.read_text().replace("import byteps.torch as bps", "import rabit_torch as bps")
    (tmp_path / "train.py").write_text(text)

    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "2", "-s", "1", *rank_server.command, "train.py", *flags],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "loss fell True" in done.stdout
    sums = {line.rpartition("checksum ")[2] for line in done.stdout.splitlines() if "checksum" in line}
    assert len(sums) == 1


def test_the_program_of_the_guide_runs(tmp_path):
    run_program_of(GUIDE.read_text(), tmp_path)


def test_push_pull_sums_averages_and_has_a_gradient(on_ranks):
    script = """
    rank = rabit.rank()
    mine = torch.full((3,), float(rank + 1))
    weight = torch.ones(2, requires_grad=True)
    (rabit.push_pull(weight * (rank + 1), name="weight")).sum().backward()
    waiting = [rabit.push_pull_async(mine, False, f"p{i}", priority=i) for i in range(3)]
    in_place = mine.clone()
    same = rabit.push_pull_inplace(in_place, name="in place")
    report({
        "mean": rabit.push_pull(mine, name="mean").tolist(),
        "sum": rabit.push_pull(mine, False, "sum").tolist(),
        "half": rabit.push_pull(mine, name="half", compression=rabit.Compression.fp16).tolist(),
        "unnamed": rabit.push_pull(mine).tolist(),
        "waiting": [rabit.synchronize(each).tolist() for each in waiting],
        "in_place": in_place.tolist(), "is_same": same is in_place,
        "gradient": weight.grad.tolist(),
    })
    """

    for rank, found in enumerate(on_ranks(2, script)):
        assert found["mean"] == found["half"] == found["unnamed"] == found["in_place"] == [1.5] * 3
        assert found["sum"] == [3] * 3
        assert found["waiting"] == [[3] * 3] * 3
        assert found["is_same"]
        assert found["gradient"] == [rank + 1] * 2


TRAINING = """
import copy
from torch.nn import BatchNorm1d, Linear, ReLU, Sequential
rank, size = rabit.rank(), rabit.size()
torch.manual_seed(rank)
model = Sequential(Linear(6, 8), BatchNorm1d(8), ReLU(), Linear(8, 2))
wrapped = rabit.DistributedDataParallel(model)
reference = copy.deepcopy(model)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
data = torch.randn(4, size, 5, 6, generator=torch.Generator().manual_seed(3))
gap = 0.0
for step in range(4):
    if step == 2:  # Two passes that add up.
        with wrapped.no_sync():
            wrapped(data[0][rank]).square().mean().backward()
    wrapped(data[step][rank]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    buffers = copy.deepcopy(list(reference.buffers()))
    passes = [data[0], data[step]] if step == 2 else [data[step]]
    after = None
    for batch in passes:
        before = copy.deepcopy(list(reference.buffers()))
        for other in range(size):  # The buffers of rank 0 count.
            for buffer, value in zip(reference.buffers(), before):
                buffer.copy_(value)
            (reference(batch[other]).square().mean() / size).backward()
            if other == 0:
                after = copy.deepcopy(list(reference.buffers()))
        for buffer, value in zip(reference.buffers(), after):
            buffer.copy_(value)
    plain.step()
    plain.zero_grad()
    gap = max(gap, max((a - b).abs().max().item() for a, b in zip(model.parameters(), reference.parameters())))
wrapped.eval()
report({"gap": gap, "names": list(wrapped.state_dict())[0], "mean": sum(p.sum().item() for p in model.parameters())})
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_data_parallel_trains_as_one_process(on_ranks, ranks):
    found = on_ranks(ranks, TRAINING)

    assert len({each["mean"] for each in found}) == 1
    for each in found:
        assert each["gap"] < 1e-5
        assert each["names"] == "module.0.weight"


def test_data_parallel_says_that_a_parameter_took_no_part(on_ranks):
    script = """
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

        def forward(self, x, uses_right):
            return self.right(self.left.weight * x) if uses_right else self.left(x)

    model = rabit.DistributedDataParallel(Branches())
    model(torch.ones(2), False).sum().backward()
    try:
        model(torch.ones(2), False)
        told = ""
    except rabit.InvalidArgument as error:
        told = str(error)
    model.synchronize()
    rest = model.module.right.weight.grad.abs().sum().item()
    model(torch.ones(2), False)
    report({"told": told, "rest": rest})
    """

    for rank, found in enumerate(on_ranks(2, script)):
        assert f"rank {rank}: " in found["told"]
        assert "right.weight" in found["told"]
        assert "Call synchronize()" in found["told"]
        assert found["rest"] == 0


def test_what_cannot_be_is_refused(on_ranks):
    script = """
    def told(call):
        try:
            call()
        except rabit.InvalidArgument as error:
            return str(error)
        return "nothing"

    model = torch.nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    report([
        told(lambda: rabit.DistributedOptimizer(sgd, model.named_parameters(), staleness=1)),
        told(lambda: rabit.DistributedDataParallel(model, device_ids=[0, 1])),
        told(lambda: rabit.declare("")),
    ])
    """
    staleness, devices, name = on_ranks(1, script)[0]

    assert staleness.startswith("staleness is 1, and the servers of this job keep no parameters")
    assert "device_ids is [0, 1]; a rank has one device" in devices
    assert name == "declare: the name of a tensor is ''; it must be a text"


def test_all_buffers_travel_in_one_broadcast(on_ranks):
    script = """
    from torch.nn import BatchNorm1d, Linear, Sequential
    model = Sequential(Linear(2, 3), BatchNorm1d(3), BatchNorm1d(3))
    odd = torch.full((6,), float(rabit.rank()), dtype=torch.bfloat16)[::3]
    model.register_buffer("odd", odd, persistent=False)
    wrapped = rabit.DistributedDataParallel(model)
    counts = []
    for _ in range(2):
        model[1].running_mean.fill_(rabit.rank() + 1.0)
        model[2].num_batches_tracked.fill_(rabit.rank() + 7)
        before = rabit.statistics()["submitted"]
        with torch.no_grad():
            wrapped(torch.zeros(4, 2))
        counts.append(rabit.statistics()["submitted"] - before)
    report([counts, model[2].num_batches_tracked.item(), model.odd.tolist()])
    """

    for counts, tracked, odd in on_ranks(2, textwrap.dedent(script)):
        assert counts == [1, 1]
        assert tracked == 8 and odd == [0.0, 0.0]


def test_a_layer_that_is_thawed_later_is_reduced(on_ranks):
    script = """
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    model[0].requires_grad_(False)
    wrapped = rabit.DistributedDataParallel(model)
    for step in range(3):
        model[0].requires_grad_(step > 0)
        model.zero_grad()
        (wrapped(torch.ones(1, 2)).sum() * (rabit.rank() + 1)).backward()
    report([each.grad.reshape(-1).tolist() for each in model.parameters()])
    """
    first, second = on_ranks(2, textwrap.dedent(script))

    assert first == second and first[-1] == [1.5]
