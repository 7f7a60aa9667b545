"""DistributedOptimizer(shard=..., host_shared=True): a host has the parameters once, and trains as without it."""

from __future__ import annotations

import copy
import os
import resource
from functools import partial
from pathlib import Path

import pytest
import torch
from support.pages import run_program_of

import rabit
import rabit_torch
from rabit import InvalidArgument, ResourceExhausted, Unsupported
from rabit.sharding import host_memory, room
from rabit.testing import run_ranks
from rabit_torch import sharding

OPTIMIZERS = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw, foreach": partial(torch.optim.AdamW, lr=0.01, foreach=True),
    "adamw, fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
}
ADAMW = OPTIMIZERS["adamw, foreach"]
torch.manual_seed(0)
BASE = torch.nn.Sequential(
    torch.nn.Linear(33, 65), torch.nn.LayerNorm(65), torch.nn.Tanh(), torch.nn.Linear(65, 65), torch.nn.Linear(65, 7)
)


def wrap(trained_model, make=ADAMW, **options):
    return rabit_torch.DistributedOptimizer(
        make(trained_model.parameters()), trained_model.named_parameters(), **options
    )


def loss_of(model, *seed):
    generator = torch.Generator().manual_seed(sum(1000**place * part for place, part in enumerate(seed)))
    inputs = torch.randn(5, 33, generator=generator).to(next(model.parameters()).dtype)
    return model(inputs).square().mean()


def trained(engine, make=ADAMW, steps=6, dtype=torch.float32, hosts=1, **options):
    """Values and norms after some steps."""
    on_host(engine, hosts)
    model = copy.deepcopy(BASE).to(dtype)
    if engine.rank and options.get("host_shared"):
        torch.nn.init.zeros_(model[0].weight)  # The values of the first rank count.
    optimizer = wrap(model, make, **options)
    norms = []
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, engine.rank, step).backward()
        norms.append(float(optimizer.clip_grad_norm_(0.5)))
        optimizer.step()
    optimizer.flush()
    return {name: value.clone() for name, value in model.state_dict().items()}, norms


def on_host(engine, hosts):
    """The ranks of a job are on so many hosts from here on."""
    object.__setattr__(engine.config, "host_key", f"host {engine.rank * hosts // engine.size}")


def check_equal(size, **options):
    apart = {key: options.pop(key) for key in ("hosts", "overlap", "offload") if key in options}
    whole = partial(trained, shard="gradients", **options)
    values, norms = run_ranks(size, whole, deterministic=True)[0]
    shared = partial(trained, shard="gradients", host_shared=True, **apart, **options)
    for found in run_ranks(size, shared, deterministic=True):
        assert found[1] == norms
        for name, value in values.items():
            assert torch.equal(found[0][name], value), name


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_values_have_the_bits_of_parameters_on_each_rank(size, name):
    check_equal(size, make=OPTIMIZERS[name])


@pytest.mark.parametrize(("size", "hosts"), [(2, 2), (4, 2), (3, 2), (4, 3)])
def test_hosts_exchange_what_their_ranks_own(size, hosts):
    check_equal(size, hosts=hosts)


@pytest.mark.parametrize("hosts", [1, 2])
def test_updates_may_cross_into_the_next_forward_pass(hosts):
    check_equal(4, hosts=hosts, overlap="next-forward")


def test_parameters_in_16_bits_have_the_bits_too():
    check_equal(2, dtype=torch.bfloat16)


def test_state_may_lie_on_disk(tmp_path):
    check_equal(2, offload=f"disk:{tmp_path / 'state'}")


class WithBuffers(torch.nn.Module):
    """Tied weights, a frozen layer, buffers of several types, one of them not in its state_dict."""

    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(33, 65)
        self.norm = torch.nn.BatchNorm1d(65)
        self.frozen = torch.nn.Linear(65, 65).requires_grad_(False)
        self.back = torch.nn.Linear(65, 33)
        self.back.weight = torch.nn.Parameter(self.into.weight.detach().t())
        self.tied = torch.nn.Linear(33, 65)
        self.tied.weight = self.into.weight
        self.register_buffer("scales", torch.linspace(0.5, 1.5, 65), persistent=False)

    def forward(self, inputs):
        hidden = self.frozen(self.norm(self.into(inputs)) * self.scales)
        return self.tied(self.back(torch.tanh(hidden)))


torch.manual_seed(1)
BUILT = WithBuffers()


@pytest.mark.parametrize(("size", "hosts", "within"), [(2, 1, None), (4, 2, None), (4, 2, 2)])
def test_ranks_but_the_first_may_build_on_the_meta_device(size, hosts, within):
    def run(engine, on_meta):
        on_host(engine, hosts)
        with torch.device("meta" if on_meta and engine.rank else "cpu"):
            model = copy.deepcopy(BUILT) if not on_meta or not engine.rank else WithBuffers()
        before = {name: id(value) for name, value in model.named_parameters(remove_duplicate=False)}
        optimizer = wrap(model, shard="gradients", shard_within=within, host_shared=True, model=model)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, engine.rank, step).backward()
            optimizer.step()
        optimizer.flush()
        assert before == {name: id(value) for name, value in model.named_parameters(remove_duplicate=False)}
        assert model.frozen.weight.requires_grad is False
        return {name: value.clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}

    expected = run_ranks(size, partial(run, on_meta=False), deterministic=True)
    for whole, found in zip(expected, run_ranks(size, partial(run, on_meta=True), deterministic=True), strict=True):
        assert whole.keys() == found.keys()
        for name, value in whole.items():
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize(
    ("meta_rank", "with_model", "says"),
    [
        (0, True, r"'into\.weight' on rank 0 is on meta, and all ranks get the values of this one, the first"),
        (1, False, r"'into\.weight' on rank 1 is on meta, where buffers of the model may be, too\. Pass model="),
    ],
)
def test_every_rank_refuses_what_would_have_no_values(meta_rank, with_model, says):
    def run(engine):
        on_host(engine, 1)
        with torch.device("meta" if engine.rank == meta_rank else "cpu"):
            model = WithBuffers()
        with pytest.raises(InvalidArgument, match=says):
            wrap(model, shard="gradients", host_shared=True, model=model if with_model else None)

    run_ranks(2, run)


def test_what_leaves_the_meta_device_keeps_its_class_its_attributes_and_its_hooks():
    class Tagged(torch.nn.Parameter):
        pass

    def run(engine):
        on_host(engine, 1)
        calls = []
        with torch.device("meta" if engine.rank else "cpu"):
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
            model[1].weight = Tagged(torch.ones(2, 8))
        model[1].bias.requires_grad_(False)
        for parameter in (model[0].weight, model[1].bias):
            parameter.no_decay = True
        removed = model[0].weight.register_hook(lambda _: calls.append("removed"))
        model[0].weight.register_hook(lambda _: calls.append("hook"))
        model[0].weight.register_post_accumulate_grad_hook(lambda _: calls.append("after"))
        wrap(model, shard="gradients", host_shared=True, model=model)
        removed.remove()
        model(torch.ones(1, 8)).sum().backward()
        return model[0].weight.no_decay, model[1].bias.no_decay, type(model[1].weight), calls

    assert run_ranks(2, run) == [(True, True, Tagged, ["hook", "after"])] * 2


def test_a_buffer_that_is_expanded_is_filled():
    class Expanded(torch.nn.Module):
        def __init__(self, first):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)
            self.register_buffer("places", torch.arange(first, first + 8.0).expand(4, 8))

    def run(engine):
        on_host(engine, 1)
        with torch.device("meta" if engine.rank == 1 else "cpu"):
            model = Expanded(engine.rank)
        wrap(model, shard="gradients", host_shared=True, model=model)
        return torch.equal(model.places, torch.arange(8.0).expand(4, 8))

    assert run_ranks(3, run) == [True] * 3


@pytest.mark.parametrize(
    ("others", "says"),
    [
        (None, r"'norm\.running_mean' of shape \(65,\) on rank 1 is on meta .*, and rank 0 passes no model\. Build"),
        (torch.nn.BatchNorm1d(65), r"'norm\.running_mean' .*, and rank 0 passes no such buffer or frozen parameter"),
        (torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(7)}), r"shape \(65,\) .* and rank 0 passes \(7,\)\. Build"),
        (3, r"model on rank 0 is int; expected a torch\.nn\.Module"),
    ],
)
def test_every_rank_refuses_models_that_differ(others, says):
    def run(engine):
        on_host(engine, 1)
        with torch.device("meta" if engine.rank else "cpu"):
            model = torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(65)})
        with pytest.raises(InvalidArgument, match=says):
            wrap(model, shard="gradients", host_shared=True, model=model if engine.rank else others)

    run_ranks(2, run)


def test_state_may_be_divided_inside_a_host():
    def run(engine, **options):
        on_host(engine, 2)
        return trained(engine, hosts=2, shard="gradients", shard_within=2, **options)

    expected = run_ranks(4, run, deterministic=True)[0]
    for found in run_ranks(4, partial(run, host_shared=True), deterministic=True):
        assert found[1] == expected[1]
        assert all(torch.equal(found[0][name], value) for name, value in expected[0].items())


def test_the_ranks_of_a_host_have_one_copy():
    def run(engine):
        on_host(engine, 2)
        model = copy.deepcopy(BASE)
        optimizer = wrap(model, shard="gradients", host_shared=True)
        rabit.barrier()
        if engine.rank in (0, 2):
            with torch.no_grad():
                model[0].bias.copy_(torch.full((65,), float(engine.rank)))
        rabit.barrier()
        del optimizer
        return model[0].bias.unique().tolist()

    assert run_ranks(4, run) == [[0.0], [0.0], [2.0], [2.0]]


def test_what_each_rank_would_repeat_is_refused():
    def run(engine):
        model = copy.deepcopy(BASE)
        optimizer = wrap(model, shard="gradients", host_shared=True)
        with torch.no_grad(), pytest.raises(InvalidArgument, match=r"'0\.weight' is shared .* would apply mul_"):
            model[0].weight.mul_(0.99)
        with torch.no_grad(), pytest.raises(InvalidArgument, match="is shared"):
            model[0].weight += 1
        model.load_state_dict(BASE.state_dict())
        rabit_torch.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer.zero_grad()
        apart = copy.deepcopy(model)
        with torch.no_grad():
            apart[0].weight.mul_(2)
        return type(apart[0].weight), torch.equal(model[0].weight, BASE[0].weight)

    assert run_ranks(2, run) == [(torch.nn.Parameter, True)] * 2


def test_a_host_that_is_full_is_named_before_memory_is_taken(monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda: 1000)
    with pytest.raises(ResourceExhausted, match=r"2 ranks .* need [\d,]+ bytes, and it has 1,000 free"):
        run_ranks(2, lambda engine: wrap(copy.deepcopy(BASE), shard="gradients", host_shared=True))


def test_too_little_memory_is_named_before_anything_trains():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ResourceExhausted, match=r"rank 0 cannot get [\d,]+ bytes .* \(27\)"):
            run_ranks(2, lambda engine: wrap(copy.deepcopy(BASE), shard="gradients", host_shared=True), "tcp")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_it_needs_a_stage_that_keeps_whole_parameters():
    def run(engine):
        model = copy.deepcopy(BASE)
        with pytest.raises(InvalidArgument, match="host_shared= is for shard='gradients', and shard is None"):
            wrap(model, host_shared=True)
        with pytest.raises(InvalidArgument, match="each rank keeps only a part"):
            wrap(model, shard="parameters", model=model, host_shared=True)
        return True

    assert run_ranks(1, run) == [True]


def test_the_setting_switches_it_on():
    def run(engine):
        model = copy.deepcopy(BASE)
        wrap(model)
        return type(model[0].weight).__name__

    assert run_ranks(2, run, shard="gradients", host_shared=True) == ["SharedParameter"] * 2


def test_describe_says_what_a_host_and_a_rank_have():
    def run(engine):
        on_host(engine, 2)
        model = torch.nn.Linear(64, 128, bias=False)
        wrap(model, shard="gradients", host_shared=True)
        return sharding.describe(model)

    found = run_ranks(4, run)[1]
    size = 4 * 64 * 128
    assert (found.host, found.rank.gradients, found.rank.state) == (size, size // 4, size // 2)
    # Three quarters of the gradients, and half of the parameters for the two ranks of a host together.
    assert found.wire == size * 3 // 4 + size // 4
    assert str(found).startswith("per host: parameters 32,768 bytes, which its ranks share")


def test_the_program_of_the_page_runs(tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs" / "howto" / "host_shared.md"

    run_program_of(page.read_text(), tmp_path)


def test_an_operation_waits_for_parameters_of_several_optimizers():
    def run(engine):
        on_host(engine, 1)
        model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 9))
        optimizers = [wrap(module, shard="optimizer", host_shared=True, overlap="next-forward") for module in model]
        model(torch.ones(1, 9)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        torch.add(model[0].weight, model[1].weight)
        return [module.weight.rabit_shared[0].memory._handle for module in model]

    assert run_ranks(2, run) == [[None, None]] * 2


class _OtherProcesses:
    """`os` in a container: its numbers of processes are those of other processes elsewhere."""

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, flags):
        return os.memfd_create("other")


def test_memory_of_another_process_of_the_same_number_is_refused(monkeypatch):
    monkeypatch.setattr(host_memory, "os", _OtherProcesses())

    def run(engine):
        on_host(engine, 1)
        with pytest.raises(Unsupported, match="is not that of rank 0 where rank 1 runs"):
            wrap(copy.deepcopy(BASE), shard="optimizer", host_shared=True)

    run_ranks(2, run)
