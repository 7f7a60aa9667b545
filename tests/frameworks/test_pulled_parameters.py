"""shard(model, gather="pull"): a rank reads the units that it runs, and the others take no part in that."""

from __future__ import annotations

import copy
import gc
import threading
from functools import partial

import pytest
import torch

import rabit
import rabit_torch
from rabit import InvalidArgument, Mismatch
from rabit.testing import run_ranks
from rabit_torch import sharding

ADAMW = partial(torch.optim.AdamW, lr=0.01)
SGD = partial(torch.optim.SGD, lr=0.1)


class Branches(torch.nn.Module):
    """Layers of which a pass runs those that it is given."""

    def __init__(self, names="ab", width=17):
        super().__init__()
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(width, width) for name in names})

    def forward(self, hidden, names):
        for name in names:
            hidden = torch.tanh(self.layers[name](hidden))
        return hidden


def divide(model, make=ADAMW, **options):
    optimizer = make(model.parameters())
    sharding.shard(model, keep=0, gather="pull", **options)
    return rabit_torch.DistributedOptimizer(
        optimizer, model.named_parameters(), shard="parameters", model=model
    )


def values_of(model):
    with sharding.gathered(model):
        return {name: value.clone() for name, value in model.state_dict().items()}


def loss_of(model, seed, names):
    generator = torch.Generator().manual_seed(seed)
    return model(torch.randn(5, 17, generator=generator), names).square().mean()


def trained(engine, base, paths, make=ADAMW, is_divided=True, **options):
    """Values after a step for each of `paths`: by step and rank, the layers that a pass runs."""
    model = copy.deepcopy(base)
    if is_divided:
        optimizer = divide(model, make, **options)
    else:
        optimizer = rabit_torch.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), find_unused_parameters=True
        )
    for step, names in enumerate(paths):
        optimizer.zero_grad()
        loss_of(model, 10 * step + engine.rank, names[engine.rank]).backward()
        optimizer.step()
    if is_divided:
        return values_of(model)
    return {name: value.clone() for name, value in model.state_dict().items()}


# Threads share the seed of torch.
torch.manual_seed(0)
BASE, OTHER = Branches("abc"), Branches("abc")
PATHS = [["ab", "ba", "c", "abc"], ["a", "b", "", "cc"], ["abcd", "d", "a", "b"], ["ab", "ba", "c", "abc"]]


@pytest.mark.parametrize("window", [1, None])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_that_run_different_modules_train_as_without_sharding(size, window):
    base = Branches("abcd")
    paths = [[names or "a" for names in step] for step in PATHS]
    whole = run_ranks(size, partial(trained, base=base, paths=paths, is_divided=False), deterministic=True)
    for found in run_ranks(
        size, partial(trained, base=base, paths=paths, window=window), deterministic=True
    ):
        for name, value in whole[0].items():
            assert torch.equal(found[name], value), name


def test_each_rank_gets_the_module_that_it_runs_and_gradients_count_zero_for_the_others():
    def run(engine):
        model = Branches("ab", width=4)
        for value, layer in enumerate(model.layers.values(), start=1):
            torch.nn.init.constant_(layer.weight, value)
            torch.nn.init.zeros_(layer.bias)
        optimizer = divide(model, SGD)
        layer = model.layers["ab"[engine.rank]]
        found = layer(torch.ones(4))
        found.sum().backward()
        optimizer.synchronize()
        parts = [optimizer.part(model.layers[name].weight) for name in "ab"]
        gradients = [part.grad.unique().tolist() for part in parts if part is not None]
        optimizer.step()
        return found.tolist(), gradients

    found = run_ranks(2, run)
    assert [values for values, _ in found] == [[4.0] * 4, [8.0] * 4]
    assert all(gradient == [0.5] for _, gradients in found for gradient in gradients)


def test_rank_0_evaluates_alone_between_steps_while_the_others_go_on():
    def run(engine):
        model = copy.deepcopy(BASE)
        optimizer = divide(model)
        found = []
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step, "abc").backward()
            optimizer.step()
            if engine.rank == 0:
                with torch.no_grad():
                    found += [float(loss_of(model, 100 + batch, "cab")) for batch in range(4)]
        return found, values_of(model)

    found, values = run_ranks(3, run)[0]
    whole = Branches("abc")
    whole.load_state_dict(values)
    with torch.no_grad():
        expected = [float(loss_of(whole, 100 + batch, "cab")) for batch in range(4)]
    assert found[-4:] == pytest.approx(expected, rel=1e-6)


def test_the_ranks_generate_unequal_lengths_without_an_optimizer():
    def run(engine):
        model, whole = copy.deepcopy(BASE), copy.deepcopy(BASE)
        sharding.shard(model, keep=0, gather="pull")
        hidden = expected = torch.ones(17)
        with torch.no_grad():
            for _ in range(3 + 2 * engine.rank):
                hidden, expected = model(hidden, "abc"), whole(expected, "abc")
        return torch.equal(hidden, expected)

    assert run_ranks(3, run) == [True] * 3


def test_one_rank_reads_whole_values_alone():
    def run(engine):
        model, expected = copy.deepcopy(BASE), BASE.state_dict()
        sharding.shard(model, keep=0, gather="pull")
        if engine.rank:
            return True
        found = sharding.whole(model.layers["b"].weight)
        with sharding.gathered(model):
            same = all(torch.equal(model.state_dict()[name], value) for name, value in expected.items())
        return same and torch.equal(found, expected["layers.b.weight"])

    assert run_ranks(2, run) == [True, True]


def test_written_and_loaded_values_reach_all():
    def run(engine):
        model = copy.deepcopy(BASE)
        sharding.shard(model, keep=0, gather="pull")
        with sharding.gathered(model, write=True), torch.no_grad():
            model.layers["a"].weight.fill_(3)
        written = sharding.whole(model.layers["a"].weight)
        loaded = OTHER.state_dict()
        model.load_state_dict(loaded)
        same = all(torch.equal(value, loaded[name]) for name, value in values_of(model).items())
        return written.unique().tolist(), same

    assert run_ranks(3, run) == [([3.0], True)] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_are_pulled_too(dtype):
    def run(engine):
        model = copy.deepcopy(BASE).to(dtype)
        expected = copy.deepcopy(model.state_dict())
        sharding.shard(model, keep=0, gather="pull")
        return all(torch.equal(value, expected[name]) for name, value in values_of(model).items())

    assert run_ranks(3, run) == [True] * 3


def test_a_rank_that_goes_on_alone_is_named_with_both_versions():
    def run(engine):
        model = Branches("ab")
        sharding.shard(model, keep=0, gather="pull")
        has_written.wait() if engine.rank == 0 else None
        if engine.rank == 1:
            with torch.no_grad():
                model.layers["a"].weight.copy_(torch.zeros(17, 17))
            del model  # It serves all the same.
            gc.collect()
            has_written.set()
            return
        with pytest.raises(
            Mismatch, match=r"'layers\.a' on rank 0: rank 1 at .* gone on to version 1, and version 0"
        ):
            sharding.whole(model.layers["a"].weight)

    has_written = threading.Event()
    run_ranks(2, run)


def test_a_process_set_pulls_among_itself():
    def run(engine):
        pair = rabit.add_process_set([0, 2])
        if not pair.included():
            return True
        model = copy.deepcopy(OTHER if engine.rank else BASE)
        sharding.shard(model, keep=0, gather="pull", process_set=pair)
        values = values_of(model)
        return all(torch.equal(values[name], value) for name, value in BASE.state_dict().items())

    assert run_ranks(3, run) == [True] * 3


def test_describe_says_how_units_are_gathered():
    def run(engine):
        model = Branches("ab")
        sharding.shard(model, keep=0, gather="pull")
        found = sharding.describe(model)
        assert found.gather == "pull"
        return str(found)

    assert "it reads those that it runs from their owners" in run_ranks(2, run)[0]


def test_another_word_is_refused():
    with pytest.raises(InvalidArgument, match="gather is 'push'; expected one of 'collective', 'pull'"):
        sharding.shard(Branches("ab"), gather="push")
