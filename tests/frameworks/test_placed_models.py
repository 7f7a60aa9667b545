"""rabit_torch.sharding.distribute: a plan of annotations on a model of torch, by DTensor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import blocks_of

pytest.importorskip("torch", minversion="2.13")
pytestmark = pytest.mark.timeout(300)

SETUP = """
import logging, time
import numpy as np
import torch.distributed as dist
import rabit_torch.distributed
from rabit import sharding
from rabit.sharding import Annotation, Mesh
from rabit_torch.sharding import distribute, reshardings

dist.init_process_group("rabit")
rank = dist.get_rank()
mesh = Mesh({"data": 2, "model": 2})

def counted(model):
    # Each dimension of the mesh has groups, and a group an engine of its own with counters.
    place = next(model.parameters()).device_mesh
    found = 0
    for dim in range(place.ndim):
        statistics = place.get_group(dim)._engine.statistics()
        found += statistics["totals"]["wire_bytes"] + statistics.get("inlined_bytes", 0)
    return found

def received(model, before, expected):
    # An operation is counted soon after it has ended.
    until = time.monotonic() + 20
    while counted(model) - before < expected and time.monotonic() < until:
        time.sleep(0.01)
    dist.barrier()
    return counted(model) - before

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 16, bias=False)
        self.second = torch.nn.Linear(16, 4, bias=False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def step(x, first_weight, second_weight):
    a = np.maximum(x @ first_weight.T, 0)
    y = a @ second_weight.T
    dh = (y @ second_weight) * (a > 0)
    return {"y": y, "d1": dh.T @ x, "d2": y.T @ a}

program = sharding.trace(step, (8, 4), (16, 4), (4, 16))
x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))

def trained(model, part):
    y = model(part)
    (y.square().sum() / 2).backward()
    return y
"""


def test_a_plan_gives_one_processs_values_with_the_bytes_of_its_table(on_ranks):
    script = """
alone = Net()
expected = trained(alone, x)
found = []
for said in (
    {"x": Annotation(("data", None))},
    {"x": Annotation(("data", None)), "first_weight": Annotation(("model", None))},
    {
        "x": Annotation(("data", None)),
        "first_weight": Annotation(store=("data", None)),
        "second_weight": Annotation(store=(None, "data")),
        "d1": Annotation(store=("data", None)),
        "d2": Annotation(store=(None, "data")),
    },
):
    plan = sharding.complete(program, mesh, said)
    model = distribute(Net(), plan)
    part = plan.part("x", x, rank)
    before = counted(model)
    y = trained(model, part)
    for parameter in model.parameters():
        parameter.grad.to_local().sum()  # Collectives of DTensor are waited for by who reads the result.
    # The counters have the whole array: for two ranks the bytes of an allreduce, and twice those of the others.
    counters = sum(
        step.bytes * (1 if step.kind == "allreduce" else 2) for move in plan.moves for step in move.steps
    )
    sent = received(model, before, counters)
    errors = [(y.full_tensor() - expected).abs().max().item()]
    errors += [
        (mine.grad.full_tensor() - theirs.grad).abs().max().item()
        for mine, theirs in zip(model.parameters(), alone.parameters())
    ]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.step()
    kept = sum(p.to_local().numel() for p in model.parameters())
    changed = [resharding.operation for resharding in reshardings(model) if not resharding.is_sum]
    found.append((max(errors), plan.bytes, counters, sent, kept, changed))
report(found)
"""
    for data, model, stored in on_ranks(4, SETUP + script):
        for error, _, counters, sent, _, changed in (data, model, stored):
            assert error < 1e-5
            assert sent == counters
            assert changed == []
        assert [case[1] for case in (data, model, stored)] == [512, 320, 512]
        assert [case[4] for case in (data, model, stored)] == [128, 64, 64]


ATTENTION = """
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, 4, 4).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        weights = torch.softmax(q @ k.transpose(2, 3) / 2, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, 16))

def attention(x, q_weight, q_bias, k_weight, k_bias, v_weight, v_bias, out_weight, out_bias):
    def heads(weight, bias):
        return np.transpose((x @ weight.T + bias).reshape(4, 6, 4, 4), (0, 2, 1, 3))
    q, k, v = heads(q_weight, q_bias), heads(k_weight, k_bias), heads(v_weight, v_bias)
    scores = np.exp(np.einsum("bhid,bhjd->bhij", q, k) / 2)
    weights = scores / scores.sum(axis=-1, keepdims=True)
    joined = np.transpose(np.einsum("bhij,bhjd->bhid", weights, v), (0, 2, 1, 3)).reshape(4, 6, 16)
    return {"y": joined @ out_weight.T + out_bias}

shapes = [(4, 6, 16), *[(16, 16), (16,)] * 4]
said = {"x": Annotation(("data", None, None)), "q_weight": Annotation(("model", None))}
plan = sharding.complete(sharding.trace(attention, *shapes), mesh, said)
x = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(1))
"""


def test_heads_of_attention_are_divided(on_ranks):
    script = """
alone = Attention()
expected = trained(alone, x)
model = distribute(Attention(), plan)
part = plan.part("x", x, rank)
before = counted(model)
y = model(part)
sent = received(model, before, plan.bytes)
(y.square().sum() / 2).backward()
errors = [(y.full_tensor() - expected).abs().max().item()]
errors += [
    (mine.grad.full_tensor() - theirs.grad).abs().max().item()
    for mine, theirs in zip(model.parameters(), alone.parameters())
]
report((max(errors), plan.bytes, sent, str(model.v.weight.placements), [str(r) for r in reshardings(model)]))
"""
    for error, planned, sent, placements, changed in on_ranks(4, SETUP + ATTENTION + script):
        print(planned, sent, placements, changed)
        assert error < 1e-5
        assert sent == planned == 4 // 2 * 6 * 16 * 4
        assert "Shard(dim=0)" in placements


def test_what_no_annotation_mentions_is_logged_or_refused(on_ranks):
    script = """
class Folded(Net):
    def forward(self, x):
        return super().forward(x.cumsum(0))

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("rabit_torch.sharding").addHandler(handler)
plan = sharding.complete(program, mesh, {"x": Annotation(("data", None))})
model = distribute(Folded(), plan)
for _ in range(2):
    model(plan.part("x", x, rank))
changed = [(r.operation, r.bytes, r.count) for r in reshardings(model) if not r.is_sum]
refused = distribute(Folded(), plan, strict=True)
try:
    refused(plan.part("x", x, rank))
except rabit.Unsupported as error:
    report((lines, changed, str(error)))
"""
    for rank, (lines, changed, error) in enumerate(on_ranks(4, SETUP + script)):
        assert len(lines) == (rank == 0)
        assert [entry[1:] for entry in changed] == [[64, 2]]
        assert changed[0][0].startswith("cumsum")
        assert "cumsum" in error and "64 bytes per rank" in error and "script.py:" in error


def test_what_does_not_fit_is_refused_with_the_reason(on_ranks):
    script = """
found = []
def attempt(what):
    try:
        what()
    except (rabit.InvalidArgument, rabit.Mismatch) as error:
        found.append(str(error))
x_by_data = {"x": Annotation(("data", None))}
plan = sharding.complete(program, mesh, x_by_data)
attempt(lambda: distribute(torch.nn.ModuleDict({"first": torch.nn.Linear(4, 8)}), plan))
attempt(lambda: distribute(Net(), sharding.complete(program, Mesh({"data": 3}), x_by_data)))
odd = sharding.trace(step, (8, 4), (15, 4), (4, 15))
plan_of_odd = sharding.complete(odd, mesh, {"first_weight": Annotation(("model", None))})
class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 15, bias=False), torch.nn.Linear(15, 4, bias=False)
attempt(lambda: distribute(Odd(), plan_of_odd))
attempt(lambda: distribute(Net(), plan)(x))
others = plan if rank else sharding.complete(program, mesh, {"first_weight": Annotation(("model", None))})
attempt(lambda: distribute(Net(), others))
report(found)
"""
    for shape, ranks, uneven, part, other in on_ranks(4, SETUP + script):
        assert (
            "'first_weight' has the shape (8, 4), and the program was traced with (16, 4)" in shape
        )
        assert "has 3 ranks, and the process group has 4" in ranks
        assert "dimension 0 of 'first_weight' has 15 rows" in uneven
        assert "its part of (8, 4) as (data, -) has (4, 4)" in part
        assert "rank 1 has another plan than rank 0" in other


def test_the_program_of_the_guide_runs(rank_server, tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "annotations.md").read_text()
    code = next(block for block in blocks_of(page) if block.startswith("# place.py"))
    (tmp_path / "place.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "4", *rank_server.command, "place.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "implicit" not in done.stderr
