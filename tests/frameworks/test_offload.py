"""DistributedOptimizer(shard=..., offload="disk:...") trains as in memory."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import pytest
import torch

import rabit
import rabit_torch
from rabit.testing import run_ranks
from rabit_torch import sharding

STAGES = ["optimizer", "gradients", "parameters"]
ADAMW = partial(torch.optim.AdamW, lr=0.01)
OPTIMIZERS = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw, loop": partial(torch.optim.AdamW, lr=0.01, foreach=False),
    "adamw, fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
}
torch.manual_seed(0)
PLAIN = torch.nn.Sequential(
    torch.nn.Linear(33, 65), torch.nn.LayerNorm(65), torch.nn.Tanh(), torch.nn.Linear(65, 7)
)


def loss_of(model, *seed):
    generator = torch.Generator().manual_seed(sum(1000**place * each for place, each in enumerate(seed)))
    return model(torch.randn(5, 33, generator=generator)).square().mean()


def values_of(model):
    return {name: sharding.whole(each) for name, each in model.named_parameters()}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Slices are cut, and pieces are joined."""
    monkeypatch.setattr("rabit_torch.sharding.offload.PIECE", 320)
    monkeypatch.setattr("rabit_torch.sharding.parts_on_disk.PIECE", 320)


def wrapped(model, shard, make=ADAMW, folder=None, parameters_on_disk=False, window=None):
    optimizer = make(model.parameters())
    offload = None if folder is None else f"disk:{folder}"
    options = {"offload": None if parameters_on_disk else offload}
    if shard == "parameters":
        sharding.shard(model, keep=0, window=window, offload=offload if parameters_on_disk else None)
        options["model"] = model
    return rabit_torch.DistributedOptimizer(optimizer, model.named_parameters(), shard=shard, **options)


def trained(engine, shard, make, folder, dtype=torch.float32, **options):
    model = copy.deepcopy(PLAIN).to(dtype)
    if dtype is not torch.float32:
        model.register_forward_pre_hook(lambda _, given: given[0].to(dtype))
    optimizer = wrapped(model, shard, make, folder, **options)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, engine.rank, step).backward()
        optimizer.clip_grad_norm_(0.5)
        optimizer.step()
    if folder is not None:
        assert not optimizer.state  # It is in the files.
        assert list(folder.glob("rank*/group*"))
    return values_of(model), optimizer.state_dict(whole=True)["state"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["momentum", "adamw, loop", "adamw, fused"])
@pytest.mark.parametrize("shard", STAGES)
def test_values_and_state_have_the_bits_of_those_in_memory(shard, name, dtype, tmp_path):
    make = OPTIMIZERS[name]
    values, state = run_ranks(2, lambda e: trained(e, shard, make, None, dtype), deterministic=True)[0]

    for found in run_ranks(2, lambda e: trained(e, shard, make, tmp_path, dtype), deterministic=True):
        check_same(found, values, state)
    assert list(tmp_path.iterdir()) == []  # The engine's end removes the files.


def check_same(found, values, state):
    assert all(torch.equal(found[0][each], value) for each, value in values.items())
    assert set(found[1]) == set(state)
    for each, own in state.items():
        assert set(found[1][each]) == set(own)
        for key, value in own.items():
            same = torch.equal(found[1][each][key], value) if isinstance(value, torch.Tensor) else True
            assert same, (each, key)


SGD = partial(torch.optim.SGD, lr=0.1)


@pytest.mark.parametrize(
    ("size", "make", "dtype", "window"),
    [
        (2, SGD, torch.float32, None),
        (3, SGD, torch.float32, 1),
        (4, SGD, torch.float32, None),
        (2, OPTIMIZERS["adamw, fused"], torch.float32, 1),
        (3, OPTIMIZERS["adamw, fused"], torch.float32, 1 << 20),
        (4, OPTIMIZERS["adamw, loop"], torch.float32, None),
        (2, ADAMW, torch.bfloat16, None),
    ],
)
def test_parameters_on_disk_have_the_bits_of_those_in_memory(size, make, dtype, window, tmp_path):
    def run(engine, folder):
        on_disk = folder is not None
        return trained(engine, "parameters", make, folder, dtype, window=window, parameters_on_disk=on_disk)

    values, state = run_ranks(size, lambda engine: run(engine, None), deterministic=True)[0]

    for found in run_ranks(size, lambda engine: run(engine, tmp_path), deterministic=True):
        check_same(found, values, state)
    assert list(tmp_path.iterdir()) == []


def test_parameters_on_disk_are_not_in_memory(tmp_path):
    def run(engine):
        model = copy.deepcopy(PLAIN)
        model[0].requires_grad_(False)
        optimizer = wrapped(model, "parameters", folder=tmp_path, parameters_on_disk=True)
        slices = [optimizer.part(each) for each in model.parameters() if each.requires_grad]
        assert all(own.isnan().all() and own.untyped_storage().nbytes() == 4 for own in slices if own is not None)
        text = str(sharding.describe(model))
        assert "parameters 0, gradients" in text
        assert "parameters and state on disk per rank: two files of" in text
        return values_of(model)

    for found in run_ranks(2, run):
        assert all(torch.equal(found[name], value) for name, value in PLAIN.named_parameters())


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_a_checkpoint_is_restored_into_files_of_another_number_of_ranks(shard, tmp_path):
    def run(engine, folder):
        model = copy.deepcopy(PLAIN)
        if folder.name == "second":
            torch.nn.init.zeros_(model[0].weight)
        optimizer = wrapped(model, shard, folder=folder, parameters_on_disk=shard == "parameters")
        with rabit_torch.Checkpoint(tmp_path / "saved", model=model, optimizer=optimizer) as saved:
            if saved.restore() is None:
                for step in range(2):
                    loss_of(model, engine.rank, step).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                saved.save(step=2)
        return values_of(model), optimizer.state_dict(whole=True)["state"]

    expected = run_ranks(2, lambda engine: run(engine, tmp_path / "first"))[0]
    for found in run_ranks(3, lambda engine: run(engine, tmp_path / "second")):
        check_same(found, *expected)


def test_bytes_that_have_changed_on_disk_stop_the_step(tmp_path):
    def run(engine):
        model = copy.deepcopy(PLAIN)
        optimizer = wrapped(model, "optimizer", folder=tmp_path)
        for step in range(2):
            loss_of(model, 0, step).backward()
            if step:
                for path in tmp_path.glob("rank0/group*"):
                    path.write_bytes(bytes(path.stat().st_size))
                with pytest.raises(rabit.IntegrityError, match=r"group\d+\..* differs from what was written"):
                    optimizer.step()
            else:
                optimizer.step()

    run_ranks(1, run)


def test_a_damaged_file_of_parameters_is_reported_with_its_rank_and_its_tensors(tmp_path):
    def run(engine):
        model = copy.deepcopy(PLAIN)
        wrapped(model, "parameters", folder=tmp_path, parameters_on_disk=True)
        for path in tmp_path.glob(f"rank{engine.rank}/values*") if engine.rank else ():
            path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(rabit.IntegrityError if engine.rank else rabit.RabitError) as caught:
            loss_of(model, 0)
        if engine.rank:
            assert "parameters on disk, '0.weight' on rank 1: " in str(caught.value)
            assert "differs from what was written" in str(caught.value)
            raise SystemExit

    with pytest.raises(SystemExit):
        run_ranks(2, run)


def test_values_that_are_written_whole_are_on_disk(tmp_path):
    def run(engine):
        model = copy.deepcopy(PLAIN)
        optimizer = wrapped(model, "parameters", folder=tmp_path, parameters_on_disk=True)
        for step in range(3):
            loss_of(model, engine.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                with sharding.gathered(model, write=True), torch.no_grad():
                    for each in model.parameters():
                        each.mul_(0.5)
                model.load_state_dict({"0.bias": torch.ones(65)}, strict=False)
        return values_of(model)

    def in_memory(engine):
        model = copy.deepcopy(PLAIN)
        optimizer = rabit_torch.DistributedOptimizer(ADAMW(model.parameters()), model.named_parameters())
        for step in range(3):
            loss_of(model, engine.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                with torch.no_grad():
                    for each in model.parameters():
                        each.mul_(0.5)
                    model[0].bias.fill_(1)
        return dict(model.named_parameters())

    expected = run_ranks(2, in_memory, deterministic=True)[0]
    for found in run_ranks(2, run, deterministic=True):
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_bad_input_is_refused(tmp_path):
    def run(engine):
        model = torch.nn.Linear(4, 4)
        named = list(model.named_parameters())

        def wrap(**options):
            rabit_torch.DistributedOptimizer(ADAMW(model.parameters()), named, **options)

        with pytest.raises(rabit.InvalidArgument, match="offload= is for shard="):
            wrap(offload="disk:/tmp")
        for text in ("disk:", "gpu", str(tmp_path)):
            with pytest.raises(rabit.InvalidArgument, match=r"expected 'disk:PATH', .* or 'cpu' of an optimizer"):
                wrap(shard="optimizer", offload=text)
        with pytest.raises(rabit.InvalidArgument, match="expected 'disk:PATH'"):
            sharding.shard(model, keep=0, offload="cpu")
        (tmp_path / "rank0").mkdir()
        with pytest.raises(rabit.InvalidArgument, match="was not made for values on disk"):
            wrap(shard="optimizer", offload=f"disk:{tmp_path}")
        with pytest.raises(rabit.InvalidArgument, match="gather='pull' serves parts from memory"):
            sharding.shard(model, keep=0, gather="pull", offload=f"disk:{tmp_path}")
        sharding.shard(model, keep=0, offload=f"disk:{tmp_path / 'other'}")
        with pytest.raises(rabit.InvalidArgument, match="Leave offload of the optimizer out"):
            wrap(shard="parameters", model=model, offload=f"disk:{tmp_path / 'other'}")

    run_ranks(1, run)


@pytest.mark.parametrize("stage", STAGES)
def test_offload_to_the_memory_in_which_parameters_are_has_a_warning(stage):
    def run(engine):
        model = torch.nn.Linear(8, 8)
        options = {"model": sharding.shard(model, keep=0)} if stage == "parameters" else {}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            optimizer = rabit_torch.DistributedOptimizer(
                torch.optim.AdamW(model.parameters()), model.named_parameters(), shard=stage, offload="cpu", **options
            )
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        return [(each.filename, str(each.message)) for each in told]

    (found,) = run_ranks(1, run)
    assert [file for file, _ in found] == [__file__]
    assert f"offload='cpu' with shard='{stage}' changes nothing: the parameters are on the CPU" in found[0][1]
