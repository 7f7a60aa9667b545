"""Checkpoints of divided training: any stage and number of ranks goes on as any other; others' checkpoints come in."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from support.pages import run_program_of

import rabit_torch
from rabit import InvalidArgument
from rabit.testing import run_ranks
from rabit_torch.sharding import load_universal, shard

STAGES = [None, "optimizer", "gradients", "parameters"]


def made_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(33, 65), torch.nn.LayerNorm(65), torch.nn.Linear(65, 1)
    )


MODEL = made_model()


def wrapped(stage):
    model = copy.deepcopy(MODEL)
    options = {"model": shard(model, keep=64)} if stage == "parameters" else {}
    optimizer = rabit_torch.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01),
        model.named_parameters(),
        shard=stage,
        **options,
    )
    return model, optimizer


def step(model, optimizer, number):
    """The same on every rank, so that the mean does not depend on their number."""
    random = torch.Generator().manual_seed(number)
    optimizer.zero_grad()
    model(torch.randn(4, 33, generator=random)).square().mean().backward()
    optimizer.step()


def content(stage, model, optimizer):
    """Values and state by name, whole."""
    with rabit_torch.sharding.gathered(model):
        values = {name: value.detach().clone() for name, value in model.named_parameters()}
    if stage is not None:
        return values, copy.deepcopy(optimizer.state_dict(whole=True)["state"])
    names = [name for name, _ in model.named_parameters()]
    state = copy.deepcopy(optimizer.state_dict()["state"])
    return values, {names[number]: values_of for number, values_of in state.items()}


def assert_equal(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        assert set(mine) == set(theirs)
        for name, value in theirs.items():
            if isinstance(value, dict):
                assert set(mine[name]) == set(value)
                assert all(torch.equal(mine[name][key], value[key]) for key in value)
            else:
                assert torch.equal(mine[name], value)


def run(ranks, stage, folder, numbers):
    """Restores if there is a checkpoint, saves otherwise; what there is then, and after one more step."""

    def fn(engine):
        model, optimizer = wrapped(stage)
        with rabit_torch.Checkpoint(folder, model=model, optimizer=optimizer) as checkpoint:
            if checkpoint.restore() is None:
                for number in numbers:
                    step(model, optimizer, number)
                checkpoint.save(step=len(numbers))
        before = content(stage, model, optimizer)
        step(model, optimizer, 99)
        return before, content(stage, model, optimizer)

    return run_ranks(ranks, fn, deterministic=True)


@pytest.mark.parametrize("saved", STAGES)
def test_what_four_ranks_have_saved_goes_on_with_any_stage_and_number_of_ranks(saved, tmp_path):
    expected = run(4, saved, tmp_path, range(3))[0]

    for stage in STAGES:
        for ranks in (1, 2, 3, 4, 7):
            for before, after in run(ranks, stage, tmp_path, ()):
                assert_equal(before, expected[0])
                if ranks in (1, 2, 4):  # The mean of 3 or 7 equal gradients is rounded.
                    assert_equal(after, expected[1])


def test_the_state_of_an_optimizer_with_frozen_parameters_and_two_groups_comes_and_goes():
    def groups(model):
        first, last = model[0], model[2]
        return [
            {"params": [first.weight, first.bias, model[1].weight]},
            {"params": [last.weight, last.bias], "lr": 0.1},
        ]

    def fn(engine):
        plain, divided, back = (copy.deepcopy(MODEL) for _ in range(3))
        for model in (plain, divided, back):
            model[0].bias.requires_grad_(False)
        alone = torch.optim.AdamW(groups(plain), lr=0.01)
        step(plain, alone, 1)
        named = [list(model.named_parameters()) for model in (divided, back)]
        part = rabit_torch.DistributedOptimizer(
            torch.optim.AdamW(groups(divided)), named[0], shard="optimizer"
        )
        part.load_state_dict(alone.state_dict())
        whole = rabit_torch.DistributedOptimizer(torch.optim.AdamW(groups(back)), named[1])
        whole.load_state_dict(part.state_dict())
        return alone.state_dict(), whole.state_dict()

    for expected, found in run_ranks(2, fn):
        assert found["param_groups"] == expected["param_groups"]
        assert_equal([found["state"]], [expected["state"]])


def test_a_state_of_other_parameters_is_refused():
    def fn(engine):
        _, optimizer = wrapped("optimizer")
        state = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters()).state_dict()
        with pytest.raises(InvalidArgument, match="of 2 parameters, and this optimizer has 6"):
            optimizer.load_state_dict(state)
        _, plain = wrapped(None)
        named = {"state": {"other": {}}, "param_groups": plain.param_groups}
        with pytest.raises(InvalidArgument, match="has other, which this optimizer does not have"):
            plain.load_state_dict(named)

    run_ranks(1, fn)


@pytest.mark.parametrize("ranks", [1, 3, 4, 7])
def test_parts_of_a_commit_are_divided_among_other_ranks(ranks):
    """Those of lost ranks are copies on others, and a rank that has just come has none."""

    def commit(engine):
        model, optimizer = wrapped("gradients")
        for number in range(3):
            step(model, optimizer, number)
        return model.state_dict(), optimizer.state_dict(), content("gradients", model, optimizer)

    commits = run_ranks(4, commit, deterministic=True)
    # Rank 0 has its own part and two copies; the next has one; the others have none, or one that is there already.
    held = [[commits[0][1], commits[2][1], commits[3][1]], [commits[1][1]], [commits[1][1]]]
    if ranks == 1:
        held[0].append(commits[1][1])

    def fn(engine):
        model, optimizer = wrapped("gradients")
        model.load_state_dict(commits[0][0])
        optimizer.rabit_take_commits(copy.deepcopy(held[engine.rank]) if engine.rank < 3 else [])
        return content("gradients", model, optimizer)

    for found in run_ranks(ranks, fn, deterministic=True):
        assert_equal(found, commits[0][2])


def test_a_part_that_no_rank_has_is_named():
    def commit(engine):
        model, optimizer = wrapped("optimizer")
        step(model, optimizer, 0)
        return optimizer.state_dict()

    first, _, last = run_ranks(3, commit)

    def fn(engine):
        _, optimizer = wrapped("optimizer")
        with pytest.raises(
            InvalidArgument, match=r"\d+ of the \d+ elements of 'exp_avg' of '\S+' are on no rank"
        ):
            optimizer.rabit_take_commits([[first], [last]][engine.rank])

    run_ranks(2, fn)


@pytest.mark.parametrize("options", [{"offload": "disk:/nowhere"}, {"shard_within": 1}], ids=str)
def test_what_an_elastic_job_cannot_divide_again_is_refused(options):
    def fn(engine):
        model = copy.deepcopy(MODEL)
        optimizer = torch.optim.AdamW(model.parameters())
        with pytest.raises(InvalidArgument, match="Use shard alone"):
            rabit_torch.DistributedOptimizer(
                optimizer, model.named_parameters(), shard="optimizer", **options
            )

    run_ranks(1, fn, min_np=1)


@pytest.mark.parametrize("options", [{"gather": "pull"}, {"within": 1}], ids=str)
def test_a_model_that_an_elastic_job_cannot_divide_again_is_refused(options):
    def fn(engine):
        with pytest.raises(InvalidArgument, match="Divide the model among all ranks, with gather='collective'"):
            shard(copy.deepcopy(MODEL), keep=64, **options)

    run_ranks(1, fn, min_np=1)


def test_the_program_of_the_page_for_other_libraries_runs(rank_server, tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs" / "howto" / "from_sharded.md"
    run_program_of(page.read_text(), tmp_path, rank_server.command)


def write_universal(folder, steps=True):
    """As ds_to_universal.py of DeepSpeed writes it, after three steps."""
    model = copy.deepcopy(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number in range(3):
        step(model, optimizer, number)
    for name, value in model.named_parameters():
        place = folder / "zero" / name
        place.mkdir(parents=True)
        state = optimizer.state[value]
        torch.save({"param": value.detach().clone(), "cat_dim": 0}, place / "fp32.pt")
        for key in ("exp_avg", "exp_avg_sq"):
            torch.save({"param": state[key], "cat_dim": 0}, place / f"{key}.pt")
        if steps:
            torch.save(state["step"], place / "step.pt")
    for number in (3, 4):
        step(model, optimizer, number)
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("steps", [True, False])
def test_a_universal_checkpoint_of_deepspeed_goes_on(stage, steps, tmp_path):
    expected = write_universal(tmp_path, steps)

    def fn(engine):
        model, optimizer = wrapped(stage)
        load_universal(tmp_path, model, optimizer, step=None if steps else 3)
        for number in (3, 4):
            step(model, optimizer, number)
        return content(stage, model, optimizer)[0]

    for found in run_ranks(2, fn, deterministic=True):
        assert_equal([found], [expected])


def test_another_folder_is_refused_with_the_reason(tmp_path):
    write_universal(tmp_path / "whole", steps=False)
    (tmp_path / "empty").mkdir()
    model = copy.deepcopy(MODEL)

    with pytest.raises(InvalidArgument, match=r"has no folder of a parameter with fp32\.pt"):
        load_universal(tmp_path / "empty", model)
    with pytest.raises(
        InvalidArgument, match=r"has no 3.weight, which the model has; it has 0.bias"
    ):
        load_universal(
            tmp_path / "whole", torch.nn.Sequential(*model, torch.nn.LayerNorm(1, bias=False))
        )
    with pytest.raises(
        InvalidArgument,
        match=r"2.weight/fp32.pt has 65 elements, and the parameter has the shape \(1, 2\)",
    ):
        load_universal(tmp_path / "whole", torch.nn.ModuleDict({"2": torch.nn.Linear(2, 1)}))
    whole = torch.nn.ModuleDict({"2": model[2]})
    with pytest.raises(InvalidArgument, match=r"has no step\.pt\. Pass step="):
        load_universal(tmp_path / "whole", whole, torch.optim.AdamW(whole.parameters()))


def test_some_ranks_load_parts_into_a_whole_optimizer():
    def run(engine):
        pair = rabit_torch.add_process_set([0, 1])
        if engine.rank == 2:
            return None
        model, whole_model = copy.deepcopy(MODEL), copy.deepcopy(MODEL)
        part, whole = (
            rabit_torch.DistributedOptimizer(
                torch.optim.AdamW(trained.parameters(), lr=0.01),
                trained.named_parameters(),
                shard=stage,
                process_set=pair,
            )
            for trained, stage in ((model, "optimizer"), (whole_model, None))
        )
        step(model, part, 0)
        whole.load_state_dict(part.state_dict())
        return content("optimizer", model, part)[1], content(None, whole_model, whole)[1]

    for found, expected in run_ranks(3, run)[:2]:
        assert_equal([found], [expected])


@pytest.mark.parametrize("stage", STAGES)
def test_ranks_that_broadcast_the_state_before_wrapping_save_one_state(stage, tmp_path):
    """As Horovod's scripts do: a group that was loaded has its keys in another order than that of the root."""

    def fn(engine):
        model = copy.deepcopy(MODEL)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        rabit_torch.broadcast_optimizer_state(optimizer, root_rank=0)
        options = {"model": shard(model, keep=64)} if stage == "parameters" else {}
        optimizer = rabit_torch.DistributedOptimizer(
            optimizer, model.named_parameters(), shard=stage, **options
        )
        step(model, optimizer, 0)
        checkpoint = rabit_torch.Checkpoint(tmp_path, model=model, optimizer=optimizer)
        checkpoint.save(step=1)
        checkpoint.close()
        return list(optimizer.state_dict()["param_groups"][0])

    assert len({tuple(keys) for keys in run_ranks(2, fn)}) == 1
