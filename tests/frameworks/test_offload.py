"""DistributedOptimizer(shard=..., offload="disk:...") trains as in memory."""

from __future__ import annotations

import copy
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
    monkeypatch.setattr("rabit_torch.sharding.offload._PIECE", 320)


def wrapped(model, shard, make=ADAMW, folder=None):
    optimizer = make(model.parameters())
    options = {} if folder is None else {"offload": f"disk:{folder}"}
    if shard == "parameters":
        sharding.shard(model, keep=0)
        options["model"] = model
    return rabit_torch.DistributedOptimizer(optimizer, model.named_parameters(), shard=shard, **options)


def trained(engine, shard, make, folder, dtype):
    model = copy.deepcopy(PLAIN).to(dtype)
    if dtype is not torch.float32:
        model.register_forward_pre_hook(lambda _, given: given[0].to(dtype))
    optimizer = wrapped(model, shard, make, folder)
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
        assert all(torch.equal(found[0][each], value) for each, value in values.items())
        assert set(found[1]) == set(state)
        for each, own in state.items():
            assert set(found[1][each]) == set(own)
            for key, value in own.items():
                same = torch.equal(found[1][each][key], value) if isinstance(value, torch.Tensor) else True
                assert same, (each, key)
    assert list(tmp_path.iterdir()) == []  # The engine's end removes the files.


def test_a_checkpoint_is_restored_into_files_of_another_number_of_ranks(tmp_path):
    def run(engine, folder):
        model = copy.deepcopy(PLAIN)
        optimizer = wrapped(model, "gradients", folder=folder)
        with rabit_torch.Checkpoint(tmp_path / "saved", model=model, optimizer=optimizer) as saved:
            if saved.restore() is None:
                for step in range(2):
                    loss_of(model, engine.rank, step).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                saved.save(step=2)
        return optimizer.state_dict(whole=True)["state"]

    expected = run_ranks(2, lambda engine: run(engine, tmp_path / "first"))[0]
    for found in run_ranks(3, lambda engine: run(engine, tmp_path / "second")):
        for name, own in expected.items():
            assert all(torch.equal(found[name][key], value) for key, value in own.items())


def test_bytes_that_have_changed_on_disk_stop_the_step(tmp_path):
    def run(engine):
        model = copy.deepcopy(PLAIN)
        optimizer = wrapped(model, "optimizer", folder=tmp_path)
        for step in range(2):
            loss_of(model, 0, step).backward()
            if step:
                for path in tmp_path.glob("rank0/group*"):
                    path.write_bytes(bytes(path.stat().st_size))
                with pytest.raises(rabit.IntegrityError, match=r"group\d+\..* has other bytes than were written"):
                    optimizer.step()
            else:
                optimizer.step()

    run_ranks(1, run)


def test_bad_input_is_refused(tmp_path):
    def run(engine):
        model = torch.nn.Linear(4, 4)
        named = list(model.named_parameters())

        def wrap(**options):
            rabit_torch.DistributedOptimizer(ADAMW(model.parameters()), named, **options)

        with pytest.raises(rabit.InvalidArgument, match="offload= is for shard="):
            wrap(offload="disk:/tmp")
        for text in ("disk:", "cpu", str(tmp_path)):
            with pytest.raises(rabit.InvalidArgument, match="expected 'disk:PATH'"):
                wrap(shard="optimizer", offload=text)
        (tmp_path / "rank0").mkdir()
        with pytest.raises(rabit.InvalidArgument, match="was not made for state on disk"):
            wrap(shard="optimizer", offload=f"disk:{tmp_path}")

    run_ranks(1, run)
