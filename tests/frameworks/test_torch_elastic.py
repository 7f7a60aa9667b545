"""Elastic training with torch: equal, bit for bit, to a job that had these ranks from the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from rabit import InvalidArgument
from rabit.testing import run_ranks
from rabit_torch.elastic import TorchState

TRAIN = """
import json, os, pathlib, signal, sys
import torch
import rabit_torch as rabit
from rabit_torch import elastic

folder, begin, steps = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
victims = [tuple(each) for each in json.loads(sys.argv[4])]
options = json.loads(sys.argv[5])
torch.set_num_threads(1)
torch.manual_seed(0)
me = int(os.environ["RABIT_RANK"])
rabit.init()
model = torch.nn.Sequential(
    torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 1)
)
optimizer = rabit.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), named_parameters=model.named_parameters(), **options
)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer._rabit_inner, 0.9)
inputs = torch.randn(257, 20)
targets = inputs.sum(1, keepdim=True)
sampler = elastic.ElasticSampler(range(len(inputs)), seed=3)
state = elastic.TorchState(model, optimizer, step=0, sampler=sampler, schedule=schedule, sizes=[])
if begin:
    kept = torch.load(folder / begin, weights_only=False)
    for name in ("model", "optimizer", "sampler", "schedule"):
        getattr(state, name).load_state_dict(kept[name])
    state.step = kept["step"]
    state.save()

@elastic.run
def train(state):
    while state.step < steps:
        sampler.reset()
        if len(sampler) < 8:
            sampler.set_epoch(sampler.epoch + 1)
        rows = sampler.indices[:8]
        optimizer.zero_grad()
        loss = ((model(inputs[rows]) - targets[rows]) ** 2).mean()
        if (state.step, me) in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        schedule.step()
        sampler.record_batch(0, len(rows))
        state.step += 1
        state.sizes.append(rabit.size())
        state.commit()

train(state)
contents = {name: getattr(state, name).state_dict() for name in ("model", "optimizer", "sampler", "schedule")}
if rabit.rank() == 0:
    torch.save({**contents, "step": state.step}, folder / f"at.{steps}")
digest = rabit.allgather_object([p.detach().numpy().tobytes().hex() for p in model.parameters()])
assert all(each == digest[0] for each in digest), "ranks differ"
if rabit.rank() == 0:
    (folder / "result.json").write_text(json.dumps([digest[0], state.sizes, sampler.state_dict()]))
"""


@pytest.fixture
def train(tmp_path, rank_server):
    """train(ranks, steps): what rank 0 has come to; begin: the file to continue from."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    def run(ranks, steps, *, least=0, spares=0, begin="", victims=(), fails=False, **options):
        bounds = ["--min-np", str(least), "--spares", str(spares)] if least else []
        command = [
            *(sys.executable, "-m", "rabit.launch", "-np", str(ranks), *bounds),
            *(*rank_server.command, str(script), str(tmp_path), begin, str(steps)),
            *(json.dumps(victims), json.dumps(options)),
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "RABIT_DETERMINISTIC": "1"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100, check=False
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        if fails:
            return done.stdout + done.stderr
        return json.loads((tmp_path / "result.json").read_text())

    return run


@pytest.mark.parametrize("options", [{}, {"overlap": "none"}, {"num_groups": 2}], ids=str)
def test_two_losses_leave_the_bits_of_jobs_that_had_these_ranks(train, options):
    elastic = train(4, 14, least=2, victims=[(4, 0), (9, 2)], **options)

    train(4, 4, **options)
    train(3, 9, begin="at.4", **options)
    reference = train(2, 14, begin="at.9", **options)
    assert elastic[0] == reference[0]
    assert elastic[1] == [4] * 4 + [3] * 5 + [2] * 5
    assert elastic[2] == reference[2]


def test_a_spare_that_takes_over_leaves_the_bits_of_jobs_that_had_these_ranks(train):
    # With so many ranks at least the others wait for the spare, however late it comes.
    elastic = train(3, 12, least=3, spares=1, victims=[(5, 0)])

    train(3, 5)
    reference = train(3, 12, begin="at.5")
    assert elastic[0] == reference[0]
    assert elastic[1] == [3] * 12
    assert elastic[2] == reference[2]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"overlap": "next-forward"}, "an overlap that crosses"),
        ({"overlap": "auto"}, "an overlap that crosses"),
        ({"row_sparse": ["3.weight"]}, "row_sparse"),
        ({"check_replicas": 2}, "check_finite or check_replicas"),
    ],
    ids=str,
)
def test_what_has_no_way_back_is_refused(train, options, name):
    said = train(2, 2, least=1, fails=True, **options)

    assert f"DistributedOptimizer with {name} in an elastic job (--min-np 1)" in said


def test_what_changes_after_a_restore_does_not_reach_the_commit():
    def fn(engine):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step():
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        step()
        state = TorchState(model, optimizer)
        found = []
        for _ in range(3):
            step()
            found.append([each.tolist() for each in model.parameters()])
            state.restore()
        return found

    ((first, second, third),) = run_ranks(1, fn)
    assert first == second == third


def saved(state, name):
    return state._saved["tensors"][name]


@pytest.mark.parametrize("value", [3, torch.nn.Linear(1, 1)], ids=["value", "model"])
def test_values_do_not_take_the_place_of_what_the_state_has(value):
    with pytest.raises(InvalidArgument, match=r"TorchState: .* is called commit\. Give the value another"):
        TorchState(commit=value)


def test_commits_go_into_the_memory_of_the_last_one():
    def fn(engine):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(model.parameters())
        state = TorchState(model, optimizer, step=0)
        model(torch.ones(1, 3, 8, 8)).sum().backward()
        optimizer.step()  # Makes the state of the optimizer.
        state.save()
        held = [saved(state, "model")[name].data_ptr() for name in model.state_dict()]
        held += [each["exp_avg"].data_ptr() for each in saved(state, "optimizer")["state"].values()]
        optimizer.step()
        state.save()
        assert held == [
            *(saved(state, "model")[name].data_ptr() for name in model.state_dict()),
            *(each["exp_avg"].data_ptr() for each in saved(state, "optimizer")["state"].values()),
        ]
        wanted = [each.tolist() for each in model.state_dict().values()]
        optimizer.step()
        state.restore()
        return wanted == [each.tolist() for each in model.state_dict().values()]

    assert run_ranks(1, fn) == [True]


def test_parameters_that_share_memory_share_it_in_the_commits():
    """A copy of one tensor of a flat buffer keeps all of the buffer: they would be as many buffers as tensors."""

    def fn(engine):
        flat = torch.arange(6.0)
        model = torch.nn.ParameterList([torch.nn.Parameter(each) for each in flat.split(2)])
        model.append(torch.nn.Parameter(flat[1:3]))  # lies across two others
        state = TorchState(model, None)
        flat += 1
        state.save()
        places = {each.untyped_storage().data_ptr() for each in saved(state, "model").values()}
        flat += 1
        state.restore()
        return len(places), flat.tolist()

    assert run_ranks(1, fn) == [(1, [1, 2, 3, 4, 5, 6])]


def test_parameters_that_share_memory_no_more_have_copies_of_their_own():
    def fn(engine):
        model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2))])
        model.append(torch.nn.Parameter(model[0].data))
        state = TorchState(model, None)
        model[1].data = torch.full((2,), 2.0)
        model[0].data += 1
        state.save()
        state.restore()
        return [each.tolist() for each in model]

    assert run_ranks(1, fn) == [[[1, 1], [2, 2]]]


@pytest.mark.parametrize("change", ["dtype", "shape", "inference", "expanded"])
def test_what_does_not_fit_into_the_last_commit_is_copied_anew(change):
    def fn(engine):
        state = TorchState(torch.nn.BatchNorm1d(3), None)
        held = saved(state, "model")["running_mean"]
        with torch.inference_mode(change == "inference"):
            state.model.running_mean = {
                "dtype": torch.ones(3, dtype=torch.float64), "shape": torch.ones(4),
                "inference": torch.ones(3), "expanded": torch.ones(1).expand(3),
            }[change]  # fmt: skip
        state.save()
        found = saved(state, "model")["running_mean"]
        return found is not held and held.tolist() == [0, 0, 0] and found.eq(1).all().item()

    assert run_ranks(1, fn) == [True]


C10D = """
import torch.distributed as dist
import rabit_torch as rabit
import rabit_torch.distributed
rabit.init()
dist.init_process_group("rabit")
"""


def test_torch_distributed_is_refused_with_the_way_to_go():
    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "2", "--min-np", "1", sys.executable, "-c", C10D],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert done.returncode != 0
    assert "backend rabit of torch.distributed in an elastic job (--min-np 1)" in done.stderr
    assert "rabit_torch.elastic" in done.stderr and "torchrun" in done.stderr
