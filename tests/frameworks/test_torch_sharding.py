"""DistributedOptimizer(shard=...) trains as without it, with a part of the state on each rank."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from support.divided_state import trained_or_restored
from support.pages import run_program_of

import rabit
import rabit_torch
from rabit.sharding import SquareSum
from rabit.testing import run_ranks
from rabit_torch import sharding

STAGES = ["optimizer", "gradients"]
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum, foreach": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, foreach=True
    ),
    "adamw, loop": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=False),
    "adamw, foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "adamw, fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
}


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(33, 65),
        torch.nn.LayerNorm(65),
        torch.nn.Tanh(),
        torch.nn.Linear(65, 65),
        torch.nn.Tanh(),
        torch.nn.Linear(65, 7),
    )


# Threads of one process share torch's random numbers: each rank copies this one.
MODEL = make_model()


def batch(*seed):
    generator = torch.Generator().manual_seed(
        sum(1000**place * value for place, value in enumerate(seed))
    )
    return torch.randn(5, 33, generator=generator), torch.randn(5, 7, generator=generator)


def backward(model, *seed):
    inputs, targets = batch(*seed)
    torch.nn.functional.mse_loss(model(inputs), targets).backward()


def wrap(model, make, shard, **options):
    return rabit_torch.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), shard=shard, **options
    )


def clip(model, optimizer, max_norm):
    """As the sharded optimizer does it, on whole gradients."""
    optimizer.synchronize()
    squares = SquareSum()
    for parameter in model.parameters():
        squares.add(parameter.grad.numpy())
    norm = squares.norm()
    if not max_norm / (norm + 1e-6) > 1:
        for parameter in model.parameters():
            parameter.grad.mul_(max_norm / (norm + 1e-6))
    return norm


def train(shard, make, steps=range(4), max_norm=None, passes=1):
    """Trains a copy of MODEL on each rank; the values and norms."""

    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrap(model, make, shard, backward_passes_per_step=passes)
        norms = []
        for step in steps:
            optimizer.zero_grad()
            for each in range(passes):
                backward(model, engine.rank, step, each)
            if max_norm is not None and shard:
                norms.append(float(optimizer.clip_grad_norm_(max_norm)))
            elif max_norm is not None:
                norms.append(clip(model, optimizer, max_norm))
                with optimizer.skip_synchronize():
                    optimizer.step()
                continue
            optimizer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}, norms

    return run


def equal(found, expected):
    return set(found) == set(expected) and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_parameters_have_the_bits_of_training_without(size, name, max_norm):
    make = OPTIMIZERS[name]
    expected, norms = run_ranks(size, train(None, make, max_norm=max_norm), deterministic=True)[0]

    for shard in STAGES:
        for found, found_norms in run_ranks(
            size, train(shard, make, max_norm=max_norm), deterministic=True
        ):
            assert equal(found, expected)
            assert found_norms == norms


def test_passes_that_add_up_on_a_rank_have_the_bits_of_training_without():
    make = OPTIMIZERS["momentum, foreach"]
    expected, _ = run_ranks(2, train(None, make, passes=3), deterministic=True)[0]

    for found, _ in run_ranks(2, train("optimizer", make, passes=3), deterministic=True):
        assert equal(found, expected)


def test_passes_that_are_sent_at_once_add_up_in_the_part_of_the_owner():
    def run(engine):
        layer = torch.nn.Linear(64, 2, bias=False)
        optimizer = wrap(layer, OPTIMIZERS["sgd"], "gradients", backward_passes_per_step=2)
        for value in (1.0, 2.0):
            (layer.weight * value).sum().backward()
            assert layer.weight.grad is None
        optimizer.synchronize()
        return optimizer.part(layer.weight).grad

    assert all(torch.equal(part, torch.full((64,), 3.0)) for part in run_ranks(2, run))


@pytest.mark.parametrize("shard", STAGES)
def test_each_rank_keeps_its_part_of_the_state(shard):
    def run(engine):
        layer = torch.nn.Linear(640, 10, bias=False)
        optimizer = wrap(layer, torch.optim.AdamW, shard)
        layer(torch.ones(1, 640)).sum().backward()
        optimizer.step()
        state = optimizer.state[optimizer.part(layer.weight)]
        return state["exp_avg"].numel(), state["exp_avg_sq"].numel()

    assert run_ranks(4, run) == [(1600, 1600)] * 4


def test_a_step_moves_the_bytes_of_an_allreduce():
    def run(engine):
        layer = torch.nn.Linear(640, 400, bias=False)
        optimizer = wrap(layer, OPTIMIZERS["sgd"], "optimizer")
        for _ in range(2):
            layer(torch.ones(1, 640)).sum().backward()
            before = engine.statistics()["bytes"]
            optimizer.step()
        return engine.statistics()["bytes"] - before

    # The counters have what goes into an operation: a whole gradient and a part of the parameters.
    whole = 4 * 640 * 400
    for found in run_ranks(4, run, "tcp"):
        assert found <= 2 * whole + 4096


class OneOfTwo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.other, self.never = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))

    def forward(self, uses_other):
        return (self.used * 2).sum() + ((self.other * 6).sum() if uses_other else 0)


@pytest.mark.parametrize("shard", STAGES)
def test_a_parameter_that_one_rank_uses_gets_the_mean_and_one_that_none_uses_stays(shard):
    def run(engine):
        model = OneOfTwo()
        optimizer = wrap(
            model, lambda parameters: torch.optim.AdamW(parameters, lr=1.0, weight_decay=0.1), shard
        )
        model(engine.rank == 0).backward()
        optimizer.synchronize()
        part = optimizer.part(model.other)
        mean = None if part is None else part.grad.tolist()
        optimizer.step()
        assert model.never.tolist() == [1.0] * 3
        assert optimizer.part(model.never) not in optimizer.state
        return mean

    assert [mean for mean in run_ranks(2, run) if mean is not None] == [[3.0] * 3]


def test_gradients_that_are_divided_cannot_be_read_by_mistake():
    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrap(model, OPTIMIZERS["sgd"], "optimizer")
        backward(model, 0)
        optimizer.synchronize()
        with pytest.raises(
            rabit.InvalidArgument, match=r"the gradient of '0\.weight' is divided"
        ) as caught:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert "optimizer.clip_grad_norm_()" in str(caught.value)
        assert model[0].weight.grad.shape == (65, 33)
        optimizer.step()
        assert model[0].weight.grad is None
        backward(model, 1)  # Nothing is in the way of the next pass.
        optimizer.step()

    run_ranks(2, run)


def test_frozen_parameters_stay_and_have_no_state():
    def run(engine):
        model = copy.deepcopy(MODEL)
        model[0].requires_grad_(False)
        before = model[0].weight.clone()
        optimizer = wrap(model, OPTIMIZERS["adamw, foreach"], "gradients")
        backward(model, engine.rank)
        optimizer.step()
        assert torch.equal(model[0].weight, before)
        assert "0.weight" not in optimizer.state_dict()["state"]
        model[0].requires_grad_(True)
        with pytest.raises(rabit.InvalidArgument, match=r"'0\.weight' on rank . was frozen"):
            optimizer.step()

    run_ranks(2, run)


def test_groups_keep_their_options_and_schedulers_work():
    def run(engine):
        model = copy.deepcopy(MODEL)
        matrices = [each for each in model.parameters() if each.ndim > 1]
        vectors = [each for each in model.parameters() if each.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "lr": 0.0}]
        optimizer = wrap(model, lambda _: torch.optim.SGD(groups, lr=0.1), "optimizer")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        before = [each.detach().clone() for each in vectors]
        for step in range(2):
            backward(model, engine.rank, step)
            optimizer.step()
            scheduler.step()
        assert all(torch.equal(each, kept) for each, kept in zip(vectors, before, strict=True))
        return [group["lr"] for group in optimizer.param_groups], model[3].weight.detach().clone()

    found = run_ranks(2, run)

    assert [rates for rates, _ in found] == [[0.025, 0.0]] * 2
    assert torch.equal(found[0][1], found[1][1])


def test_tied_weights_and_channels_last_and_scalars_train_as_without():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(20, 8)
            self.head = torch.nn.Linear(8, 20, bias=False)
            self.head.weight = self.embedding.weight
            self.convolution = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
            self.scale = torch.nn.Parameter(torch.tensor(0.5))

    torch.manual_seed(1)
    base = Odd()

    def run(engine, shard):
        model = copy.deepcopy(base)
        model.convolution.to(memory_format=torch.channels_last)
        optimizer = wrap(model, OPTIMIZERS["adamw, foreach"], shard)
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + engine.rank)
            images = torch.randn(2, 2, 5, 5, generator=generator)
            words = torch.randint(20, (4,), generator=generator)
            loss = model.head(model.embedding(words)).square().mean()
            (loss + (model.convolution(images) * model.scale).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert model.convolution.weight.is_contiguous(memory_format=torch.channels_last)
        return {name: value.clone() for name, value in model.state_dict().items()}

    expected = run_ranks(2, lambda engine: run(engine, None), deterministic=True)[0]

    for shard in STAGES:
        for found in run_ranks(
            2, lambda engine, shard=shard: run(engine, shard), deterministic=True
        ):
            assert equal(found, expected)


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_checkpoint_of_three_ranks_goes_on_in_a_job_of_another_size(after, tmp_path):
    make = OPTIMIZERS["adamw, foreach"]

    def states(engine):
        model = copy.deepcopy(MODEL)
        return trained_or_restored(tmp_path, model, wrap(model, make, "optimizer"), backward)

    values, saved = run_ranks(3, states)[0]

    for found_values, found in run_ranks(after, states):
        assert equal(found_values, values)
        for name, state in saved.items():
            assert equal(found[name], state)
            assert found[name]["exp_avg"].shape == values[name].shape
            assert float(found[name]["step"]) == 3


def test_a_resumed_job_has_the_bits_of_one_that_went_on():
    make = OPTIMIZERS["adamw, fused"]

    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrap(model, make, "optimizer")
        for step in range(2):
            backward(model, engine.rank, step)
            optimizer.step()
        file = io.BytesIO()
        torch.save((model.state_dict(), optimizer.state_dict(whole=True)), file)
        file.seek(0)
        values, state = torch.load(file, weights_only=False)
        again = copy.deepcopy(MODEL)
        again.load_state_dict(values)
        other = wrap(again, make, "optimizer")
        other.load_state_dict(state)
        for each, wrapped in ((model, optimizer), (again, other)):
            for step in range(2, 4):
                backward(each, engine.rank, step)
                wrapped.step()
        return equal(again.state_dict(), model.state_dict())

    assert run_ranks(2, run, deterministic=True) == [True] * 2


def test_a_second_pass_without_a_step_is_named():
    def run(engine):
        model = copy.deepcopy(MODEL)
        wrap(model, OPTIMIZERS["sgd"], "optimizer")
        backward(model, 0)
        with pytest.raises(
            rabit.InvalidArgument, match="more than 1 backward passes since the last step"
        ):
            backward(model, 1)

    run_ranks(1, run)


WHOLE = {
    "Adafactor": torch.optim.Adafactor,
    "LBFGS": torch.optim.LBFGS,
    "Muon": getattr(torch.optim, "Muon", None),
}


@pytest.mark.parametrize("name", [name for name, kind in WHOLE.items() if kind])
def test_optimizers_that_look_at_whole_tensors_are_refused(name):
    def run(engine):
        layer = torch.nn.Linear(8, 8, bias=False)
        with pytest.raises(rabit.InvalidArgument, match=f"shard: {name} (gives|cannot)"):
            wrap(layer, WHOLE[name], "optimizer")
        assert layer.weight.shape == (8, 8)

    run_ranks(1, run)


@pytest.mark.parametrize(
    "name",
    [
        "SGD",
        "Adam",
        "AdamW",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adagrad",
        "Adadelta",
        "RMSprop",
        "Rprop",
        "ASGD",
    ],
)
def test_optimizers_of_single_elements_are_accepted(name):
    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrap(
            model, lambda parameters: getattr(torch.optim, name)(parameters, lr=0.01), "optimizer"
        )
        backward(model, engine.rank)
        optimizer.step()
        return {key: value.clone() for key, value in model.state_dict().items()}

    found = run_ranks(2, run)

    assert equal(found[0], found[1])


@pytest.mark.parametrize("shard", STAGES)
def test_updates_that_arrive_in_the_next_forward_pass_have_the_bits(shard):
    make = OPTIMIZERS["adamw, foreach"]
    expected, _ = run_ranks(2, train(None, make), deterministic=True)[0]

    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrap(model, make, shard, overlap="next-forward")
        for step in range(4):
            optimizer.zero_grad()
            backward(model, engine.rank, step, 0)
            optimizer.step()
            assert type(model[0].weight).__name__ == "ExpectedParameter"
        # Each is a read.
        copied, saved = copy.deepcopy(model), io.BytesIO()
        torch.save(copied.state_dict(), saved)
        assert type(model[0].weight) is torch.nn.Parameter
        return {name: value.clone() for name, value in model.state_dict().items()}

    for found in run_ranks(2, run, deterministic=True):
        assert equal(found, expected)


def test_a_step_waits_for_an_update_that_nothing_has_read():
    def run(engine):
        layer = torch.nn.Linear(64, 2, bias=False)
        torch.nn.init.zeros_(layer.weight)
        optimizer = wrap(layer, OPTIMIZERS["sgd"], "optimizer", overlap="next-forward")
        for _ in range(2):
            layer.weight.grad = None
            layer(torch.ones(1, 64)).sum().backward()
            optimizer.step()
        optimizer.step()
        return layer.weight.unique().tolist()

    assert run_ranks(2, run) == [[pytest.approx(-0.2)]] * 2


class Masters(torch.nn.Module):
    """What sharding does with parameters in 16 bits, for whole tensors."""

    def __init__(self, model, make):
        super().__init__()
        self.model = model
        self.masters = [each.detach().float() for each in model.parameters()]
        self.optimizer = make(self.masters)

    def step(self):
        for each, master in zip(self.model.parameters(), self.masters, strict=True):
            whole = rabit_torch.allreduce(each.grad, name=None)
            master.grad, each.grad = whole.float(), None
        self.optimizer.step()
        with torch.no_grad():
            for each, master in zip(self.model.parameters(), self.masters, strict=True):
                each.copy_(master)


@pytest.mark.parametrize("name", ["sgd", "adamw, foreach", "adamw, fused"])
@pytest.mark.parametrize("size", [2, 3])
def test_parameters_in_16_bits_are_updated_in_32(size, name):
    make = OPTIMIZERS[name]
    base = copy.deepcopy(MODEL).to(torch.bfloat16)

    def backward_16(model, *seed):
        inputs, targets = batch(*seed)
        found = model(inputs.bfloat16())
        torch.nn.functional.mse_loss(found, targets.bfloat16()).backward()

    def run(engine, shard):
        model = copy.deepcopy(base)
        if shard is None:
            optimizer = Masters(model, make)
        elif shard == "parameters":
            inner = make(model.parameters())
            sharding.shard(model, keep=0)
            named = model.named_parameters()
            optimizer = rabit_torch.DistributedOptimizer(inner, named, shard=shard, model=model)
        else:
            optimizer = wrap(model, make, shard)
        for step in range(20):
            backward_16(model, engine.rank, step)
            optimizer.step()
        if shard is None:
            return list(model.parameters()), optimizer.masters
        state = optimizer.state_dict(whole=True)["state"]
        return [sharding.whole(each) for each in model.parameters()], [
            state[each]["master"] for each, _ in model.named_parameters()
        ]

    values, masters = run_ranks(size, lambda engine: run(engine, None), deterministic=True)[0]
    for shard in (*STAGES, "parameters"):
        for found in run_ranks(size, lambda engine, s=shard: run(engine, s), deterministic=True):
            assert all(torch.equal(a, b) for a, b in zip(found[0], values, strict=True))
            assert all(torch.equal(a, b) for a, b in zip(found[1], masters, strict=True))


def test_small_updates_of_parameters_in_16_bits_add_up_and_their_masters_are_saved(tmp_path):
    def run(engine):
        layer = torch.nn.Linear(64, 2, bias=False, dtype=torch.bfloat16)
        torch.nn.init.ones_(layer.weight)
        optimizer = wrap(layer, lambda each: torch.optim.SGD(each, lr=2**-10), "optimizer")
        with rabit_torch.Checkpoint(tmp_path, model=layer, optimizer=optimizer) as saved:
            if saved.restore() is None:
                for _ in range(2):
                    layer(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
                    optimizer.step()
                saved.save(step=2)
        return optimizer.part(layer.weight).unique().tolist(), layer.weight.unique().tolist()

    for _ in range(2):  # The second time from the file, where the rounded values are as at first.
        assert run_ranks(2, run) == [([1 - 2**-9], [1.0])] * 2


def test_values_that_are_loaded_into_parameters_in_16_bits_replace_their_masters():
    def run(engine):
        layer = torch.nn.Linear(64, 2, bias=False, dtype=torch.bfloat16)
        optimizer = wrap(layer, OPTIMIZERS["sgd"], "gradients")
        layer.load_state_dict({"weight": torch.full((2, 64), 3.0)})
        layer(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        return optimizer.part(layer.weight).unique().tolist()

    assert run_ranks(2, run) == [[pytest.approx(2.9)]] * 2


def test_a_parameter_that_is_never_used_is_saved_without_a_state(tmp_path):
    def run(engine):
        model = OneOfTwo()
        optimizer = wrap(model, torch.optim.AdamW, "optimizer")
        with rabit_torch.Checkpoint(tmp_path, model=model, optimizer=optimizer) as saved:
            if saved.restore() is None:
                for uses_other in (True, False, False):
                    model(uses_other).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                saved.save(step=3)
        state = optimizer.state_dict(whole=True)["state"]
        return {name: float(own["step"]) if own else None for name, own in state.items()}

    expected = {"used": 3.0, "other": 1.0, "never": None}
    assert run_ranks(3, run) == [expected] * 3
    assert run_ranks(2, run) == [expected] * 2


@pytest.mark.parametrize("start", [rabit_torch.reducescatter_async, rabit_torch.allgather_async])
def test_an_input_is_let_go_while_its_result_lives(start):
    def run(engine):
        given = torch.ones(4, 8)
        alive = weakref.ref(given)
        result = start(given, name="given").wait()
        del given
        assert alive() is None
        return result.shape[1]

    assert run_ranks(2, run) == [8, 8]


def test_few_gradients_are_on_their_way_in_a_backward_pass(monkeypatch):
    monkeypatch.setattr("rabit_torch.sharding.optimizer._FLAT_BYTES", 1)

    def run(engine):
        most = 0
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(8)))
        optimizer = wrap(model, OPTIMIZERS["sgd"], "gradients")
        storages = optimizer._rabit_storages

        def count(_):
            nonlocal most
            most = max(most, sum(bool(each._handle) and not each._handle.done() for each in storages))

        for layer in model:
            layer.weight.register_post_accumulate_grad_hook(count)
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        return most, storages[0].backlog.memory.bytes

    for most, held in run_ranks(2, run):
        assert most <= 1
        assert held <= 2 * 4 * 64 * 64  # One is filled while another travels.


def test_other_arguments_and_stages_are_refused():
    def run(engine):
        layer = torch.nn.Linear(2, 2)
        with pytest.raises(rabit.InvalidArgument, match=r"takes no overlap, strategy"):
            wrap(layer, OPTIMIZERS["sgd"], "optimizer", strategy="topk", overlap="none")
        with pytest.raises(rabit.InvalidArgument, match="expected one of 'optimizer'"):
            wrap(layer, OPTIMIZERS["sgd"], "zero3")

    run_ranks(1, run)


def test_a_setting_switches_it_on():
    def run(engine):
        model = copy.deepcopy(MODEL)
        return hasattr(wrap(model, OPTIMIZERS["sgd"], None), "part")

    assert run_ranks(2, run, shard="gradients") == [True] * 2


def test_models_that_differ_are_a_mismatch():
    def run(engine):
        with pytest.raises(rabit.Mismatch, match="has other trained parameters"):
            wrap(torch.nn.Linear(2, 2 + engine.rank), OPTIMIZERS["sgd"], "optimizer")

    run_ranks(2, run)


def test_hyper_parameters_are_broadcast_before_and_after_steps():
    def run(engine):
        layer = torch.nn.Linear(64, 2)
        rate = 0.1 if engine.rank == 0 else 0.2
        optimizer = wrap(
            layer, lambda parameters: torch.optim.AdamW(parameters, lr=rate), "optimizer"
        )
        rabit_torch.broadcast_optimizer_state(optimizer, root_rank=0)
        rates = [optimizer.param_groups[0]["lr"]]
        layer(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = engine.rank
        rabit_torch.broadcast_optimizer_state(optimizer, root_rank=1)
        return [*rates, optimizer.param_groups[0]["lr"]]

    assert run_ranks(2, run) == [[0.1, 1]] * 2


def test_the_program_of_the_guide_runs(tmp_path):
    guide = Path(__file__).resolve().parents[2] / "docs" / "howto" / "sharding.md"

    run_program_of(guide.read_text(), tmp_path)


UNDIVIDED = """
import sys, torch
import rabit_torch as rabit
from rabit_torch import elastic
rabit.init()
model = torch.nn.Linear(8, 8)
optimizer = rabit.DistributedOptimizer(torch.optim.AdamW(model.parameters()), model.named_parameters())
state = elastic.TorchState(model, optimizer, step=0)
rabit.broadcast_parameters(model.state_dict())
for _ in range(2):
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
state.commit()
state.restore()
rabit.shutdown()
print(*(name for name in sys.modules if name.startswith("rabit")))
"""


def test_training_without_shard_loads_nothing_of_sharding(tmp_path):
    """Nor does a commit or a state that is loaded: what is not there costs nothing."""
    done = subprocess.run(
        [sys.executable, "-c", UNDIVIDED], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
    )

    assert "rabit_torch.optimizer.wrapped" in done.stdout
    assert "sharding" not in done.stdout
