"""delay_after=...: an update runs while the next step computes, and parameters get it one step late."""

from __future__ import annotations

import copy
import errno
import itertools
import os
import threading
from functools import partial

import pytest
import torch

import rabit
import rabit_torch
from rabit.testing import run_ranks

torch.manual_seed(0)
MODEL = torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.Tanh(), torch.nn.Linear(65, 7))
SIXTEEN = copy.deepcopy(MODEL).to(torch.bfloat16)
OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
pytestmark = pytest.mark.filterwarnings("ignore:delay_after")


def backward(model, *seed):
    generator = torch.Generator().manual_seed(sum(1000**place * value for place, value in enumerate(seed)))
    inputs = torch.randn(5, 33, generator=generator).to(next(model.parameters()).dtype)
    model(inputs).square().mean().backward()


def wrapped(model, make, shard, folder, after=None):
    offload = folder if folder == "cpu" else f"disk:{folder}"
    options = {} if folder is None else {"offload": offload, "delay_after": after}
    return rabit_torch.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), shard=shard, **options
    )


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        backward(model, rabit_torch.rank(), step)
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9


def values_of(model):
    return [value.detach().clone() for value in model.parameters()]


def one_step_late(make, after, steps, size=2):
    """The rule, written out: the parameters in use, and those that updates work on. Values in use after each step."""
    used, updated = copy.deepcopy(MODEL), copy.deepcopy(MODEL)
    optimizer = make(updated.parameters())
    found = []
    for step in range(steps):
        gradients = []
        for rank in range(size):
            used.zero_grad()
            backward(used, rank, step)
            gradients.append([value.grad for value in used.parameters()])
        before = values_of(updated)
        for value, *of_ranks in zip(updated.parameters(), *gradients, strict=True):
            value.grad = sum(of_ranks[1:], of_ranks[0]) / size
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        with torch.no_grad():
            for value, late, now in zip(used.parameters(), before, updated.parameters(), strict=True):
                value.copy_(now if step < after else late)
        found.append(values_of(used))
    return found, values_of(updated)


def equal(found, expected):
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("shard", "name", "after", "where"),
    [
        *itertools.product(["optimizer", "gradients"], OPTIMIZERS, [0, 2], ["disk"]),
        ("optimizer", "momentum", 0, "cpu"),
        ("gradients", "adamw", 2, "cpu"),
    ],
)
def test_parameters_have_the_bits_of_the_rule(shard, name, after, where, tmp_path):
    folder = "cpu" if where == "cpu" else tmp_path
    expected, _ = one_step_late(OPTIMIZERS[name], after, 5)

    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrapped(model, OPTIMIZERS[name], shard, folder, after)
        found = []
        for step in range(5):
            train(model, optimizer, [step])
            found.append(values_of(model))
        return found

    for found in run_ranks(2, run, deterministic=True):
        assert all(map(equal, found, expected))


def test_a_quadratic_has_the_numbers_of_the_rule(tmp_path):
    def run(engine):
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = wrapped(model, lambda p: torch.optim.SGD(p, lr=0.5), "optimizer", tmp_path, 0)
        with torch.no_grad():
            model.weight.fill_(1.0)  # After wrapping, as broadcast_parameters does it.
        found = [float(model.weight.detach())]
        for _ in range(5):
            (model.weight.square().sum() / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(model.weight.detach()))
        return found

    assert run_ranks(2, run) == [[1.0, 1.0, 0.5, 0.0, -0.25, -0.25]] * 2


def test_an_update_runs_while_the_next_step_computes(tmp_path):
    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrapped(model, OPTIMIZERS["adamw"], "gradients", tmp_path, 0)
        has_computed = threading.Event()
        step = optimizer._rabit_states._states.step

        def late_step():
            assert has_computed.wait(60)
            step()

        optimizer._rabit_states._states.step = late_step
        train(model, optimizer, [0])
        optimizer.zero_grad()
        backward(model, engine.rank, 1)
        has_computed.set()
        optimizer.step()
        return values_of(model)

    expected, _ = one_step_late(lambda p: torch.optim.AdamW(p, lr=0.01), 0, 2)
    for found in run_ranks(2, run, deterministic=True):
        assert equal(found, expected[1])


@pytest.mark.parametrize(
    ("kind", "where"), [(MODEL, "disk"), (SIXTEEN, "disk"), (SIXTEEN, "cpu")], ids=["float32", "bfloat16", "memory"]
)
def test_a_job_that_is_resumed_has_the_bits_of_one_that_went_on(kind, where, tmp_path):
    one, two = ("cpu", "cpu") if where == "cpu" else (tmp_path / "one", tmp_path / "other")

    def run(engine):
        model = copy.deepcopy(kind)
        optimizer = wrapped(model, OPTIMIZERS["adamw"], "gradients", one, 1)
        train(model, optimizer, range(3))
        with rabit_torch.Checkpoint(tmp_path / "saved", model=model, optimizer=optimizer) as checkpoint:
            checkpoint.save(step=3)
        other = copy.deepcopy(kind)
        resumed = wrapped(other, OPTIMIZERS["adamw"], "gradients", two, 1)
        with rabit_torch.Checkpoint(tmp_path / "saved", model=other, optimizer=resumed) as checkpoint:
            checkpoint.restore()
        assert equal(values_of(other), values_of(model))
        for trained, by in ((model, optimizer), (other, resumed)):
            train(trained, by, range(3, 6))
        return equal(values_of(other), values_of(model))

    assert run_ranks(2, run, deterministic=True) == [True, True]


WRITES = {
    "in place": lambda model: model[2].bias.detach().zero_(),
    "by data": lambda model: model[2].bias.data.clamp_(0.0, 0.0),
    "loaded": lambda model: model.load_state_dict({"2.bias": torch.zeros(7)}, strict=False),
    "swapped": lambda model: model[2].bias.data.copy_(model[2].bias.data[[2, 3, 0, 1, 4, 5, 6]]),
    "negated": lambda model: model[2].bias.data.neg_(),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_an_update_would_undo_is_refused(write, tmp_path):
    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrapped(model, OPTIMIZERS["adamw"], "gradients", tmp_path, 2)
        train(model, optimizer, range(1))
        WRITES[write](model)  # Updates are not late yet.
        train(model, optimizer, range(1, 4))
        WRITES[write](model)
        backward(model, engine.rank, 4)
        optimizer.step()

    with pytest.raises(rabit.InvalidArgument, match=r"'2\.bias' on rank 0 was written after step 4.*apply_late"):
        run_ranks(1, run)


@pytest.mark.parametrize("when", ["before the step", "after clipping", "before apply_late"])
def test_every_rank_refuses_to_undo_what_one_has_written(when, tmp_path):
    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrapped(model, OPTIMIZERS["adamw"], "gradients", tmp_path, 0)
        train(model, optimizer, range(1))
        backward(model, engine.rank, 1)
        if when == "after clipping":
            optimizer.clip_grad_norm_(1.0)
        if engine.rank == 1:
            model[0].weight.detach()[-1] = 0.0  # Its part: rank 0 sees nothing of it.
        with pytest.raises(rabit.InvalidArgument) as refused:
            optimizer.apply_late() if when == "before apply_late" else optimizer.step()
        return str(refused.value)

    for refused in run_ranks(2, run):
        assert "'0.weight' on rank 1 was written after step 1" in refused


@pytest.mark.parametrize("shared", [False, True])
def test_values_written_after_what_was_late_are_kept(shared, tmp_path):
    def run(engine):
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = rabit_torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(),
            shard="gradients", offload=f"disk:{tmp_path}", delay_after=0, host_shared=shared,
        )  # fmt: skip
        model.weight.detach().fill_(1.0)
        found = []
        for step in range(6):
            if step == 2:
                optimizer.apply_late()
                found.append(float(model.weight.detach()))
                rabit.barrier()
                model.weight.detach().fill_(1.0)
            (model.weight.square().sum() / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(model.weight.detach()))
        return found

    for found in run_ranks(2, run):
        assert found == [1.0, 0.5, 0.0, 1.0, 0.5, 0.0, -0.25]


@pytest.mark.parametrize("shard", [None, "optimizer"])
def test_an_optimizer_without_a_delay_takes_the_update_that_is_late(shard, tmp_path):
    _, expected = one_step_late(OPTIMIZERS["adamw"], 0, 3)

    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrapped(model, OPTIMIZERS["adamw"], "gradients", tmp_path, 0)
        train(model, optimizer, range(3))
        other = copy.deepcopy(MODEL)
        plain = wrapped(other, OPTIMIZERS["adamw"], shard, None)
        other.load_state_dict(model.state_dict())
        plain.load_state_dict(optimizer.state_dict())
        train(other, plain, [3])  # What was late is no part of the state any more.
        state = plain.state_dict()["state"]
        again = copy.deepcopy(MODEL)
        wrapped(again, OPTIMIZERS["adamw"], shard, None).load_state_dict(optimizer.state_dict())
        return values_of(again), any("late" in values for values in state.values())

    for found, has_late in run_ranks(2, run, deterministic=True):
        assert equal(found, expected)
        assert not has_late


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("use", ["step", "clip", "apply_late"])
def test_every_rank_refuses_half_an_update_of_one_and_loads(use, after):
    def run(engine, fails):
        model = copy.deepcopy(MODEL)
        optimizer = wrapped(model, OPTIMIZERS["adamw"], "gradients", "cpu", after)
        train(model, optimizer, [0])
        optimizer.apply_late()
        whole = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        states = optimizer._rabit_states._states
        update = states.step

        def fail():
            states.step = update
            raise MemoryError("no room")

        if fails and engine.rank == 1:
            states.step = fail
        train(model, optimizer, [1])
        optimizer.zero_grad()
        backward(model, engine.rank, 2)
        if fails:
            with pytest.raises(rabit.InvalidArgument, match=r"step 2 on rank 1 has failed .*no room") as refused:
                optimizer.clip_grad_norm_(1.0) if use == "clip" else getattr(optimizer, use)()
            assert isinstance(refused.value.__cause__, MemoryError if engine.rank else type(None))
        model.load_state_dict(whole[0])
        optimizer.load_state_dict(whole[1])
        train(model, optimizer, [1, 2])
        optimizer.apply_late()
        return values_of(model)

    found, expected = (run_ranks(2, partial(run, fails=fails), deterministic=True) for fails in (True, False))
    assert all(map(equal, found, expected))


@pytest.mark.parametrize("after", [None, 0])
def test_a_state_whose_write_has_failed_is_refused_until_one_is_loaded(after, tmp_path, monkeypatch):
    write, is_full = os.pwrite, [False]

    def pwrite(*arguments):
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", pwrite)

    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrapped(model, OPTIMIZERS["adamw"], "gradients", tmp_path, after)
        train(model, optimizer, [0])
        optimizer.apply_late()
        whole = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        is_full[0] = True
        train(model, optimizer, [1])
        says = r"state on disk, of '0\.weight', .* on rank 0: .*group0\.\d cannot be written: No space left .* load the"
        with pytest.raises(OSError, match=says) as caught:
            optimizer.state_dict()
        assert caught.value.errno == errno.ENOSPC
        is_full[0] = False
        with pytest.raises(OSError if after is None else rabit.InvalidArgument, match=says):
            train(model, optimizer, [2, 3])
        model.load_state_dict(whole[0])
        optimizer.load_state_dict(whole[1])
        loaded = optimizer.state_dict()
        train(model, optimizer, [1, 2])
        return [[state["exp_avg"].value for state in each["state"].values()] for each in (loaded, whole[1])]

    assert equal(*run_ranks(1, run)[0])


@pytest.mark.parametrize("after", [0, 2])
def test_a_state_with_half_an_update_is_not_used_until_one_is_loaded(after, tmp_path):
    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrapped(model, OPTIMIZERS["adamw"], "optimizer", "cpu", after)
        train(model, optimizer, [0])
        whole = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        train(model, optimizer, [1])
        expected = copy.deepcopy(optimizer.state_dict())
        states = optimizer._rabit_states._states
        update = states.step

        def fail():
            states.step = update
            update()
            raise MemoryError("no room")

        states.step = fail
        optimizer.load_state_dict(copy.deepcopy(whole[1]))  # It takes the tensors for its own.
        train(model, optimizer, [1])
        for use in (optimizer.state_dict, optimizer.apply_late, optimizer.step, optimizer.state_dict):
            with pytest.raises(rabit.InvalidArgument, match=r"step \d on rank 0 .*no room.* has half of it\. Load"):
                use()
        saving = rabit_torch.Checkpoint(tmp_path, model=model, optimizer=optimizer)
        with saving as checkpoint, pytest.raises(rabit.InvalidArgument, match="has half of it"):
            checkpoint.save(step=2)
        model.load_state_dict(whole[0])
        optimizer.load_state_dict(whole[1])
        train(model, optimizer, [1])
        return optimizer.state_dict(), expected

    ((found, expected),) = run_ranks(1, run)  # It ends without the error, which has been raised.
    for name, state in expected["state"].items():
        pairs = [(found["state"][name][key].value, part.value) for key, part in state.items() if key != "step"]
        assert equal(*zip(*pairs, strict=True))


@pytest.mark.filterwarnings("default:delay_after")
def test_it_is_asked_for_with_a_warning_and_refused_where_it_has_no_use(tmp_path):
    def run(engine):
        make = OPTIMIZERS["adamw"]
        with pytest.warns(UserWarning, match="delay_after=40: after 40 steps, .* may diverge"):
            wrapped(copy.deepcopy(MODEL), make, "optimizer", tmp_path, 40)
        model = copy.deepcopy(MODEL)
        for options, says in (
            ({"shard": "gradients", "delay_after": 1}, "shard='gradients' and offload=None"),
            ({"shard": "gradients", "delay_after": -1}, "delay_after is -1"),
            ({"delay_after": 1}, "delay_after= is for shard='gradients'"),
        ):
            with pytest.raises(rabit.InvalidArgument, match=says):
                rabit_torch.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)

    run_ranks(1, run)
