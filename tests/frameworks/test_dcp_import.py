"""What torch.distributed.checkpoint has saved, as a generation of ours."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import rabit_torch
from rabit import InvalidArgument
from rabit.launch.cli import main
from rabit.testing import run_ranks
from rabit_torch import sharding
from rabit_torch.dcp import import_checkpoint, read


def trained(seed=3, steps=3):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def save(path, state):
    dcp.save(state, checkpoint_id=path)  # There is no process group here.


def assert_same_states(found, wanted):
    assert type(found) is type(wanted) and found.keys() == wanted.keys()
    for key, each in wanted.items():
        if isinstance(each, dict):
            assert_same_states(found[key], each)
        elif isinstance(each, torch.Tensor):
            assert torch.equal(found[key], each), key
        else:
            assert found[key] == each, key


def restore(folder, seed=8):
    """What a job of one rank restores: model, optimizer, and the rest."""

    def fn(engine):
        model, optimizer = trained(seed, steps=1)
        checkpoint = rabit_torch.Checkpoint(folder, model=model, optimizer=optimizer)
        return model, optimizer, checkpoint.restore()

    return run_ranks(1, fn)[0]


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(4, 6, generator=torch.Generator().manual_seed(5))).square().mean().backward()
    optimizer.step()


def assert_go_on_alike(one, other):
    for model, optimizer in (one, other):
        step(model, optimizer)
    assert_same_states(one[0].state_dict(), other[0].state_dict())


@pytest.mark.parametrize("kind", ["state_dict", "get_state_dict"])
def test_a_model_and_its_optimizer_go_on_as_if_never_saved(tmp_path, kind):
    """Keys of the optimizer are numbers in state_dict(), and names in get_state_dict()."""
    model, optimizer = trained()
    states = (model.state_dict(), optimizer.state_dict())
    states = get_state_dict(model, optimizer) if kind == "get_state_dict" else states
    save(tmp_path / "dcp", {"model": states[0], "optim": states[1], "epoch": 4})

    assert main(["checkpoint", "import", str(tmp_path / "dcp"), str(tmp_path / "ours"), "--step", "70"]) == 0

    found_model, found_optimizer, found = restore(tmp_path / "ours")
    assert (found.step, found.state) == (70, {"epoch": 4})
    assert_same_states(found_model.state_dict(), model.state_dict())
    assert_go_on_alike((found_model, found_optimizer), (model, optimizer))
    assert main(["checkpoint", "verify", str(tmp_path / "ours")]) == 0


@pytest.mark.parametrize("shard", ["optimizer", "gradients", "parameters"])
def test_a_divided_state_comes_from_a_folder_and_goes_to_one(tmp_path, shard):
    """By name, as get_state_dict() has it; one rank writes what all have put together."""
    model, optimizer = trained()
    save(tmp_path / "whole", dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)))
    models = [trained(seed)[0] for seed in (4, 5)]

    def fn(engine):
        own = models[engine.rank]
        inner = torch.optim.Adam(own.parameters(), lr=0.5)
        options = {"model": sharding.shard(own, keep=9)} if shard == "parameters" else {}
        divided = rabit_torch.DistributedOptimizer(inner, own.named_parameters(), shard=shard, **options)
        found = read(tmp_path / "whole")
        own.load_state_dict(found["model"])
        divided.load_state_dict(found["optimizer"])
        step(own, divided)
        state = divided.state_dict(whole=True)
        with sharding.gathered(own):
            if engine.rank == 0:
                save(tmp_path / "divided", {"model": own.state_dict(), "optimizer": state})

    run_ranks(2, fn, deterministic=True)
    step(model, optimizer)

    other = trained(seed=8, steps=1)
    states = dict(zip(("model", "optimizer"), get_state_dict(*other), strict=True))
    dcp.load(states, checkpoint_id=tmp_path / "divided")
    set_state_dict(*other, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    assert_same_states(other[0].state_dict(), model.state_dict())
    assert_go_on_alike(other, (model, optimizer))


def test_tensors_that_ranks_have_saved_in_parts_come_back_whole(rank_server, tmp_path):
    script = tmp_path / "save.py"
    script.write_text(SHARDED)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rabit.launch", "-np", "2"),
            *(*rank_server.command, str(script), str(tmp_path / "dcp")),
        ],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 2

    found = read(tmp_path / "dcp")

    assert torch.equal(found["model"]["weight"], torch.arange(35.0).reshape(7, 5))
    assert found["list"][1]["a"].tolist() == [1, 2] and found["text"] == "here"


SHARDED = """
import sys, torch
import torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
try:
    from torch.distributed.tensor import Shard, distribute_tensor
except ImportError:  # torch 2.4
    from torch.distributed._tensor import Shard, distribute_tensor
import rabit_torch as rabit
import rabit_torch.distributed
rabit.init()
dist.init_process_group("rabit")
weight = distribute_tensor(torch.arange(35.0).reshape(7, 5), init_device_mesh("cpu", (2,)), [Shard(0)])
state = {"model": {"weight": weight}, "list": [{"a": torch.tensor([0])}, {"a": torch.tensor([1, 2])}], "text": "here"}
dcp.save(state, checkpoint_id=sys.argv[1])
dist.destroy_process_group()
"""


def test_places_say_where_the_objects_lie(tmp_path):
    model, optimizer = trained()
    save(tmp_path / "dcp", {"app": {"net": model.state_dict(), "sgd": optimizer.state_dict()}, "seen": 9})

    with pytest.raises(InvalidArgument, match=r"no 'model' and no 'optimizer', only 'app', 'seen'.*--as model="):
        import_checkpoint(tmp_path / "dcp", tmp_path / "ours")
    with pytest.raises(InvalidArgument, match="nothing at 'app/nets' for model: 'nets' is not among 'net', 'sgd'"):
        import_checkpoint(tmp_path / "dcp", tmp_path / "ours", places={"model": "app/nets"})
    words = ["--as", "model=app/net", "--as", "optimizer=app/sgd"]
    assert main(["checkpoint", "import", str(tmp_path / "dcp"), str(tmp_path / "ours"), *words]) == 0

    found_model, found_optimizer, found = restore(tmp_path / "ours")
    assert found.state == {"app": {}, "seen": 9}
    assert_go_on_alike((found_model, found_optimizer), (model, optimizer))


def test_a_folder_of_tensors_alone_is_a_model(tmp_path):
    model, _ = trained()
    save(tmp_path / "dcp", model.state_dict())

    assert import_checkpoint(tmp_path / "dcp", tmp_path / "ours", step=2) == 1
    assert import_checkpoint(tmp_path / "dcp", tmp_path / "ours", step=3) == 2

    def fn(engine):
        other, _ = trained(seed=8)
        found = rabit_torch.Checkpoint(tmp_path / "ours", model=other).restore()
        return found.step, other

    ((step, other),) = run_ranks(1, fn)
    assert step == 3
    assert_same_states(other.state_dict(), model.state_dict())


def test_another_folder_is_refused(tmp_path, capsys):
    assert main(["checkpoint", "import", str(tmp_path), str(tmp_path / "ours")]) != 0
    assert f"{tmp_path} has no file .metadata" in capsys.readouterr().err
    assert not (tmp_path / "ours").exists()


def test_without_torch_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [each for each in sys.modules if each.startswith("rabit_torch")]:
        monkeypatch.delitem(sys.modules, name)

    assert main(["checkpoint", "import", str(tmp_path), str(tmp_path / "ours")]) != 0
    assert "read by torch itself, and torch is not installed" in capsys.readouterr().err
