"""shard_within=...: state that is divided inside of groups of ranks, and equal in all groups."""

from __future__ import annotations

import copy

import pytest
import torch
from support.divided_state import trained_or_restored

import rabit
import rabit_torch
from rabit.sharding import DiskTier
from rabit.testing import run_ranks
from rabit_torch import sharding

STAGES = ["optimizer", "gradients", "parameters"]


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


torch.manual_seed(0)
MODEL = torch.nn.Sequential(
    torch.nn.Linear(33, 65),
    torch.nn.Tanh(),
    torch.nn.Linear(65, 65),
    torch.nn.Tanh(),
    torch.nn.Linear(65, 7),
)
NAMES = [name for name, _ in MODEL.named_parameters()]


def backward(model, *seed):
    generator = torch.Generator().manual_seed(
        sum(1000**place * value for place, value in enumerate(seed))
    )
    model(torch.randn(5, 33, generator=generator)).square().mean().backward()


def wrapped(model, shard, within, passes=1, backward_within=None, **options):
    optimizer = adamw(model.parameters())
    if shard == "parameters":
        sharding.shard(model, keep=0, within=within, backward_within=backward_within)
        options["model"] = model
    else:
        options["shard_within"] = within
    return rabit_torch.DistributedOptimizer(
        optimizer, model.named_parameters(), shard=shard, backward_passes_per_step=passes, **options
    )


def trained(shard, within, passes=1, max_norm=None, steps=range(4), **options):
    """Values, state and norms of each rank."""

    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = wrapped(model, shard, within, passes, **options)
        norms = []
        for step in steps:
            optimizer.zero_grad()
            for number in range(passes):
                backward(model, engine.rank, step, number)
            if max_norm is not None:
                norms.append(float(optimizer.clip_grad_norm_(max_norm)))
            optimizer.step()
        optimizer.flush()
        with sharding.gathered(model):
            values = {name: value.detach().clone() for name, value in model.named_parameters()}
        return values, optimizer.state_dict(whole=True)["state"], norms

    return run


def of_two_levels(size, within, passes=1):
    """The same training of whole tensors: a mean of the groups' means, each in the order of the ranks."""
    model = copy.deepcopy(MODEL)
    optimizer = adamw(model.parameters())
    for step in range(4):
        gradients = []
        for rank in range(size):
            total = None
            for number in range(passes):
                replica = copy.deepcopy(model)
                replica.zero_grad()
                backward(replica, rank, step, number)
                total = total or [[] for _ in NAMES]
                for kept, parameter in zip(total, replica.parameters(), strict=True):
                    kept.append(parameter.grad)
            gradients.append(total)
        for place, parameter in enumerate(model.parameters()):
            groups = []
            for first in range(0, size, within):
                members = gradients[first : first + within]
                means = [
                    sum(rank[place][number] for rank in members) / within
                    for number in range(passes)
                ]
                groups.append(sum(means[1:], means[0]))
            parameter.grad = sum(groups[1:], groups[0]) / len(groups)
        optimizer.step()
    return dict(model.named_parameters()), optimizer.state


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("shard", STAGES[1:])
def test_values_and_state_have_the_bits_of_the_mean_of_the_means_of_groups(shard, passes):
    expected, state = of_two_levels(4, 2, passes)

    for values, states, _ in run_ranks(4, trained(shard, 2, passes), deterministic=True):
        for name, parameter in expected.items():
            assert torch.equal(values[name], parameter), name
            for key in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(states[name][key], state[parameter][key]), (name, key)


@pytest.mark.parametrize("shard", STAGES)
def test_all_stages_have_the_same_bits_and_norm(shard):
    expected = run_ranks(4, trained("optimizer", 2, max_norm=0.1), deterministic=True)[0]

    for values, _, norms in run_ranks(4, trained(shard, 2, max_norm=0.1), deterministic=True):
        assert norms == expected[2]
        assert all(torch.equal(values[name], value) for name, value in expected[0].items())


@pytest.mark.parametrize("within", [1, 2, 4])
def test_one_group_and_groups_of_one_rank_have_the_bits_of_one_level(within):
    size = 4 if within == 4 else 2
    expected = run_ranks(size, trained("gradients", None), deterministic=True)[0][0]

    for values, _, _ in run_ranks(size, trained("gradients", within), deterministic=True):
        assert all(torch.equal(values[name], value) for name, value in expected.items())


def test_updates_that_arrive_in_the_next_forward_pass_have_the_bits():
    expected = run_ranks(4, trained("optimizer", 2), deterministic=True)[0][0]

    for values, _, _ in run_ranks(
        4, trained("optimizer", 2, overlap="next-forward"), deterministic=True
    ):
        assert all(torch.equal(values[name], value) for name, value in expected.items())


def test_state_on_disk_has_the_bits(tmp_path):
    expected = run_ranks(4, trained("gradients", 2), deterministic=True)[0][0]

    for values, _, _ in run_ranks(
        4, trained("gradients", 2, offload=f"disk:{tmp_path}"), deterministic=True
    ):
        assert all(torch.equal(values[name], value) for name, value in expected.items())


def bytes_sent(engine):
    return engine.statistics()["backend_details"]["builtin"]["transport"]["bytes_sent"]


def bytes_of_a_step(engine, model, optimizer):
    """What this rank sends in one, after two others, for a model of 512 inputs."""
    first, steps = 2, 10  # What a barrier finds on its way counts for the step behind it: of ten that is little.
    before = 0
    for step in range(first + steps):
        if step == first:
            rabit.barrier()
            before = bytes_sent(engine)
        model(torch.ones(1, 512, requires_grad=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.flush()
    rabit.barrier()
    return (bytes_sent(engine) - before) / steps


@pytest.mark.parametrize(("shard", "gathers"), [("gradients", 1), ("parameters", 1.5)])
@pytest.mark.parametrize(("ranks", "within"), [(4, 2), (8, 2), (8, 4)])
def test_a_step_sends_the_bytes_of_the_formula(ranks, within, shard, gathers):
    side = 512
    groups = ranks // within
    whole = 4 * side * side * 2

    def run(engine):
        model = torch.nn.Sequential(*(torch.nn.Linear(side, side, bias=False) for _ in range(2)))
        return bytes_of_a_step(engine, model, wrapped(model, shard, within))

    # Of two units, the last of the forward pass is the first of the backward pass, and is gathered once.
    inside = (1 + gathers) * (within - 1) / within * whole
    # Of a host with `within` ranks, 2 (H - 1) / H of all parameters leave, as for one rank on each host.
    across = 2 * (groups - 1) / groups * whole / within
    found = run_ranks(ranks, run, "tcp", deterministic=True, link_model="fixed")

    assert sum(found) / ranks == pytest.approx(inside + across, rel=0.02)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("within", [None, 2])
def test_gathers_of_a_group_in_the_backward_pass_have_the_bits(within, passes):
    expected, state, _ = run_ranks(4, trained("parameters", within, passes), deterministic=True)[0]

    run = trained("parameters", within, passes, backward_within=2)
    for values, states, _ in run_ranks(4, run, deterministic=True):
        for name, value in expected.items():
            assert torch.equal(values[name], value)
            assert torch.equal(states[name]["exp_avg_sq"], state[name]["exp_avg_sq"])


def test_parameters_on_disk_are_not_read_for_gathers_of_a_group(tmp_path, monkeypatch):
    read = DiskTier.read
    reads = []

    def counted(self, key, values):
        if key.startswith("values"):
            reads.append(key)
        return read(self, key, values)

    def run(engine, group=None):
        model = copy.deepcopy(MODEL)
        optimizer = adamw(model.parameters())
        folder = f"disk:{tmp_path / str(group)}"
        sharding.shard(model, keep=0, backward_within=group, offload=folder)
        optimizer = rabit_torch.DistributedOptimizer(
            optimizer, model.named_parameters(), shard="parameters", model=model
        )
        for step in range(4):
            if step == 3:
                rabit.barrier()
                reads.clear()
                rabit.barrier()
            optimizer.zero_grad()
            backward(model, engine.rank, step)
            rabit.barrier()
        found = len(reads)
        optimizer.step()
        with sharding.gathered(model):
            return found, [value.detach().clone() for value in model.parameters()]

    monkeypatch.setattr(DiskTier, "read", counted)
    (read_again, expected), _ = run_ranks(2, run, deterministic=True)
    (kept, values), _ = run_ranks(2, lambda engine: run(engine, 1), deterministic=True)

    assert read_again and not kept  # Since the first pass the parameters have not changed.
    assert all(torch.equal(value, other) for value, other in zip(values, expected, strict=True))


@pytest.mark.parametrize("group", [1, 2, 4])
def test_the_gather_of_the_backward_pass_sends_nothing_out_of_its_group(group):
    side = 512
    whole = 4 * side * side * 3

    def run(engine):
        model = torch.nn.Sequential(*(torch.nn.Linear(side, side, bias=False) for _ in range(3)))
        sent = bytes_of_a_step(engine, model, wrapped(model, "parameters", None, backward_within=group))
        described = sharding.describe(model)
        return sent, described.wire, described.rank.parameters

    # The last unit of the forward pass is the first of the backward pass, and is gathered once.
    everywhere, inside = 2 * 3 / 4 * whole, (group - 1) / group * whole
    found = run_ranks(4, run, "tcp", deterministic=True, link_model="fixed")

    assert sum(sent for sent, *_ in found) / 4 == pytest.approx(everywhere + 2 / 3 * inside, rel=0.02)
    assert [rest for _, *rest in found] == [[everywhere + inside, whole // 4 + whole // group]] * 4


def test_the_description_counts_the_mean_over_copies():
    whole = 4 * 640 * 640

    def run(engine):
        model = torch.nn.Linear(640, 640, bias=False)
        sharding.shard(model, within=2)
        divided = sharding.describe(model).wire
        model = torch.nn.Linear(640, 640, bias=False)
        wrapped(model, "gradients", 2, host_shared=True)
        return divided, sharding.describe(model).wire

    # Two gathers and a scatter of half of it, or the scatter alone on one host; and both ways of a half of a half.
    assert run_ranks(4, run) == [((3 * whole + whole) // 2, (whole + whole) // 2)] * 4


@pytest.mark.parametrize("after", [(2, None), (4, 2), (3, None)])
@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_a_checkpoint_of_two_groups_has_each_element_once_and_goes_on_in_other_groups(
    shard, after, tmp_path
):
    def states(within):
        def run(engine):
            model = copy.deepcopy(MODEL)
            return trained_or_restored(tmp_path, model, wrapped(model, shard, within), backward)

        return run

    values, state = run_ranks(4, states(2))[0]

    size, within = after
    for found, found_state in run_ranks(size, states(within)):
        for name, value in values.items():
            assert torch.equal(found[name], value)
            assert torch.equal(found_state[name]["exp_avg_sq"], state[name]["exp_avg_sq"])


def test_each_rank_keeps_the_part_of_its_place_in_the_group():
    def run(engine):
        layer = torch.nn.Linear(640, 10, bias=False)
        optimizer = wrapped(layer, "optimizer", 2)
        layer(torch.ones(1, 640)).sum().backward()
        optimizer.step()
        return optimizer.state[optimizer.part(layer.weight)]["exp_avg"].numel()

    assert run_ranks(4, run) == [3200] * 4


def test_a_host_is_a_group():
    def run(engine):
        layer = torch.nn.Linear(640, 10, bias=False)
        optimizer = wrapped(layer, "optimizer", "host")
        return optimizer.part(layer.weight).numel()

    assert run_ranks(2, run, cross_rank=0) == [3200] * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shard_within": "rack"}, r"shard_within is 'rack'; expected 'host', or the number"),
        ({"shard_within": 0}, r"shard_within is 0; expected"),
        ({"shard_within": True}, r"shard_within is True; expected"),
        ({"shard_within": 3}, r"islands of \[3, 1\] ranks"),
    ],
)
def test_groups_that_cannot_be_made_are_refused(options, says):
    def run(engine):
        with pytest.raises(rabit.InvalidArgument, match=says):
            rabit_torch.DistributedOptimizer(
                adamw(MODEL.parameters()), MODEL.named_parameters(), shard="gradients", **options
            )

    run_ranks(4, run)


def test_groups_of_a_process_set_and_without_shard_are_refused():
    def run(engine):
        some = rabit.add_process_set([0, 1])
        for options, says in (
            ({"shard": "gradients", "process_set": some}, "makes groups of all ranks of the job"),
            ({}, "shard_within= is for shard='optimizer'"),
        ):
            with pytest.raises(rabit.InvalidArgument, match=says):
                rabit_torch.DistributedOptimizer(
                    adamw(MODEL.parameters()), MODEL.named_parameters(), shard_within=2, **options
                )

    run_ranks(2, run)


def test_a_model_and_an_optimizer_that_differ_are_named():
    def run(engine):
        model = copy.deepcopy(MODEL)
        optimizer = adamw(model.parameters())
        sharding.shard(model, keep=0, within=2)
        with pytest.raises(
            rabit.InvalidArgument,
            match=r"divided among the ranks \[\d, \d\], and the optimizer among",
        ):
            rabit_torch.DistributedOptimizer(
                optimizer, model.named_parameters(), shard="parameters", model=model, shard_within=4
            )

    run_ranks(4, run)
