"""What goes wrong in sharded training elsewhere, and does not here. The pitfalls by number, and the tests of each:

P1   ranks use different modules        test_divided_parameters: ranks_that_take_different_branches
P2   parameters that some or no rank uses  test_torch_sharding: a_parameter_that_one_rank_uses
P3   the order of units changes         test_divided_parameters: other_models (change_order)
P4   evaluation of unequal length       test_divided_parameters: a_rank_that_evaluates_longer
P5   one rank saves or prints           here: what_one_rank_may_do_alone, whole_values_on_one_rank
P6   saving while parameters travel     here: a_save_waits_for_parameters_that_travel
P7   other number of ranks, uneven      here: a_tensor_of_two_rows; test_torch_sharding: a_checkpoint_of_three_ranks
P8   counts of steps are saved          test_torch_sharding: a_resumed_job
P9   masters are saved, not rebuilt     test_torch_sharding: small_updates_of_parameters_in_16_bits
P10  16 bits without a master           test_torch_sharding: small_updates_of_parameters_in_16_bits
P11  passes add up                      test_torch_sharding: passes_that_are_sent_at_once
P12  passes add up, state on disk       here: passes_add_up_with_state_on_disk
P13  norm: padding, what is whole       here: the_norm_counts_each_element_once
P14  norm over groups                   here: the_norm_counts_each_element_once
P15  not finite on one rank             here: a_gradient_that_overflows_in_one_part
P16  frozen parameters                  here: frozen_parameters_are_not_sent; test_torch_sharding: frozen_parameters
P17  frozen and checkpointed            test_divided_parameters: other_models (change_frozen_and_checkpointing)
P18  recomputing gathers once           test_divided_parameters: a_step_gathers_each_unit_twice
P19  tied weights                       test_divided_parameters: a_transformer_with_tied; test_torch_sharding: tied
P20  use outside of the module          test_divided_parameters: values_that_are_in_parts, a_transformer_with_tied
P21  sizes 0 and 1, ranks without rows  here: strange_shapes_on_more_ranks_than_rows
P22  types are mixed in a unit          test_divided_parameters: other_models (change_dtype)
P23  optimizers of whole tensors        test_torch_sharding: optimizers_that_look_at_whole_tensors
P24  groups, schedulers                 here: groups_are_not_added; test_torch_sharding: groups_keep_their_options
P25  memory at the start                here: a_model_on_the_meta_device
P26  memory grows                       test_divided_parameters: the_window_is_kept; here: freed_gradients
P27  pinned memory                      none is used
P28  sizes of files and buffers         test_tiers: what_is_written_is_read; test_offload (pieces of 320 elements)
P29  files of another job               test_tiers: the_folder_of_another_job
P30  a crash between two writes         test_tiers: a_write_that_fails; files are no checkpoint, and are not read again
P31  a full or broken disk              here: a_full_disk_ends_the_step_after; test_offload: bytes_that_have_changed
P32  reading behind a write             test_tiers: what_is_written_is_read
P33  delayed updates                    not offered
P34  quantised gathers                  not offered
P35  buffers                            here: buffers_are_those_of_each_rank
P36  hooks and reads of gradients       here: hooks_of_the_user; test_torch_sharding: gradients_that_are_divided
P37  two backward passes, two models    test_divided_parameters: two_models; test_torch_sharding: a_second_pass
P38  copies of a model                  test_divided_parameters: values_that_are_in_parts
P39  a rank dies in a gather            here: a_rank_that_ends_in_a_gather
P40  hooks after an exception           test_divided_parameters: recomputed_passes
P41  a unit that is used repeatedly     test_divided_parameters: other_models (change_repeated)
P42  groups by dimension                test_torch_sharding: groups_keep_their_options
P43  unused, with weight decay          test_torch_sharding: a_parameter_that_one_rank_uses
"""

from __future__ import annotations

import copy
import errno
import gc
import mmap
from pathlib import Path

import pytest
import torch

import rabit
import rabit_torch
from rabit.sharding import DiskTier
from rabit.testing import run_ranks
from rabit_torch import sharding
from rabit_torch.sharding.flats import PartStorage

STAGES = ["optimizer", "gradients", "parameters"]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def wrapped(model, shard, make=sgd, keep=0, within=None, **options):
    optimizer = make(model.parameters())
    if shard == "parameters":
        sharding.shard(model, keep=keep, within=within)
        options["model"] = model
    elif within is not None:
        options["shard_within"] = within
    return rabit_torch.DistributedOptimizer(optimizer, model.named_parameters(), shard=shard, **options)


class Sums(torch.nn.Module):
    """A loss whose gradients are what it is given: of a weight with a part on each of two ranks, and of a bias."""

    def __init__(self, count=128):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(count))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, weight, bias=0.0):
        return (self.weight * weight).sum() + (self.bias * bias).sum()


def of_elements(**given):
    values = torch.zeros(128)
    for place, value in given.items():
        values[int(place[1:])] = value
    return values


def test_what_one_rank_may_do_alone():
    def run(engine):
        model = torch.nn.Sequential(torch.nn.Linear(64, 2, bias=False))
        optimizer = wrapped(model, "parameters")
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        if engine.rank == 0:
            assert len(model.state_dict()["0.weight"].value) == 64
            assert optimizer.state_dict()["param_groups"][0]["params"] == ["0.weight"]
            assert "of shape (2, 64), torch.float32, divided among the ranks: elements 0 to 64 are here" in repr(
                model[0].weight
            )

    run_ranks(2, run)


def test_whole_values_on_one_rank_are_a_mismatch():
    messages = {}

    def run(engine):
        model = torch.nn.Sequential(torch.nn.Linear(64, 2, bias=False))
        optimizer = wrapped(model, "parameters")
        model(torch.ones(1, 64)).sum().backward()
        optimizer.synchronize()
        with pytest.raises(rabit.Mismatch) as caught:
            if engine.rank == 0:
                sharding.whole(model[0].weight)
            else:
                optimizer.clip_grad_norm_(1.0)
        messages[engine.rank] = str(caught.value)

    with pytest.raises(rabit.Mismatch):
        run_ranks(2, run, stall_warning=1.0)
    for message in messages.values():
        assert "rank 0 waits for allgather 'divided.0.float32.gather'" in message
        assert "rank 1 waits for allreduce" in message


def test_a_save_waits_for_parameters_that_travel(tmp_path):
    def run(engine):
        model = Sums()
        optimizer = wrapped(model, "optimizer", overlap="next-forward")
        with rabit_torch.Checkpoint(tmp_path, model=model, optimizer=optimizer) as checkpoint:
            if checkpoint.restore() is None:
                model(torch.ones(128)).backward()
                optimizer.step()
                checkpoint.save(step=1)
        return model.weight.detach().clone()

    for _ in range(2):
        assert all(torch.equal(values, -torch.ones(128)) for values in run_ranks(2, run))


@pytest.mark.parametrize("after", [3, 2, 1, 7])
def test_a_tensor_of_two_rows_of_four_ranks_goes_on_in_a_job_of_another_size(after, tmp_path):
    def run(engine):
        torch.manual_seed(0)
        model = Sums(103)
        optimizer = wrapped(model, "gradients", adamw)
        with rabit_torch.Checkpoint(tmp_path, model=model, optimizer=optimizer) as checkpoint:
            if checkpoint.restore() is None:
                model(torch.arange(103.0)).backward()
                optimizer.step()
                checkpoint.save(step=1)
        own = optimizer.state_dict()["state"]["weight"]["exp_avg"]
        return optimizer.state_dict(whole=True)["state"]["weight"], len(own.value)

    found = run_ranks(4, run)
    assert [count for _, count in found] == [0, 64, 39, 0]  # The bias has the first row.
    state = found[0][0]

    loaded = run_ranks(after, run)
    assert sum(count for _, count in loaded) == 103
    for values, _ in loaded:
        assert torch.equal(values["exp_avg"], state["exp_avg"])
        assert torch.equal(values["exp_avg_sq"], state["exp_avg_sq"])


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_passes_add_up_with_state_on_disk(shard, tmp_path):
    def run(engine):
        model = Sums()
        optimizer = wrapped(
            model,
            shard,
            lambda parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.5),
            backward_passes_per_step=2,
            offload=f"disk:{tmp_path}",
        )
        for value in (1.0, 2.0):
            model(torch.full((128,), value)).backward()
        optimizer.step()
        return optimizer.state_dict(whole=True)["state"]["weight"]["momentum_buffer"]

    assert all(torch.equal(value, torch.full((128,), 3.0)) for value in run_ranks(2, run))


@pytest.mark.parametrize(("size", "within"), [(2, None), (3, None), (4, 2)])
@pytest.mark.parametrize("shard", STAGES)
def test_the_norm_counts_each_element_once(shard, size, within):
    def run(engine):
        model = Sums()
        optimizer = wrapped(model, shard, keep=1, within=within)
        model(of_elements(e0=3.0, e64=4.0)).backward()
        first = float(optimizer.clip_grad_norm_(100.0))
        optimizer.zero_grad()
        model(of_elements(e0=3.0, e64=4.0), torch.tensor(12.0)).backward()
        second = float(optimizer.clip_grad_norm_(6.5))
        optimizer.step()
        return first, second, float(sharding.whole(model.weight)[64])

    for first, second, updated in run_ranks(size, run):
        assert (first, second) == (5.0, 13.0)
        assert updated == pytest.approx(-2.0)


@pytest.mark.parametrize("make", [sgd, lambda parameters: torch.optim.AdamW(parameters, lr=1.0, fused=True)])
@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("shard", STAGES)
def test_a_gradient_that_overflows_in_one_part_is_left_out_by_all_ranks(shard, unscales, make):
    def run(engine):
        model = Sums()
        optimizer = wrapped(model, shard, make)
        scaler = sharding.GradScaler(init_scale=4.0, growth_interval=1000)
        seen = []
        for last in (1.0, float("inf"), 1.0):
            scaler.scale(model(of_elements(e0=1.0, e127=last))).backward()
            if unscales:
                scaler.unscale_(optimizer)
                optimizer.clip_grad_norm_(100.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            weight = sharding.whole(model.weight)
            seen.append((scaler.get_scale(), float(weight[0]), float(weight[127])))
        return seen

    for (_, first, second), overflow, after in run_ranks(2, run):
        assert overflow == (2.0, first, second)  # Nothing has changed but the scale, on both ranks.
        assert first == second != 0
        assert after[0] == 2.0
        assert after[1] == after[2] < first


def gathers_of_last_steps(engine, left_out):
    model = torch.nn.Sequential(*[torch.nn.Linear(17, 17, bias=False) for _ in range(4)])
    optimizer = wrapped(model, "parameters")
    scaler = sharding.GradScaler(init_scale=4.0, growth_interval=1000)
    gathers = optimizer._rabit_gathers
    started = []
    for step in range(7):
        before = gathers.started, gathers.late
        loss = model(torch.ones(1, 17)).sum() * (float("inf") if step in left_out else 1e-3)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        started.append((gathers.started - before[0], gathers.late - before[1]))
    return started[-2:]


@pytest.mark.parametrize("left_out", [(0, 1), (2, 3)])
def test_steps_that_are_left_out_do_not_count_for_the_order_of_units(left_out):
    usual = run_ranks(2, lambda engine: gathers_of_last_steps(engine, ()))

    assert run_ranks(2, lambda engine: gathers_of_last_steps(engine, left_out)) == usual


class _Watch:
    steps = 0

    def end_step(self):
        self.steps += 1


@pytest.mark.parametrize("shard", [None, "optimizer", "parameters"])
def test_each_step_counts_and_the_plan_is_watched_in_those_of_all_ranks(shard):
    def run(engine):
        engine.plan_watch = watch = _Watch()
        pair = rabit.add_process_set([0, 1])
        for process_set in (rabit.global_process_set, pair):
            if not process_set.included():
                continue
            model = torch.nn.Linear(3, 3)
            optimizer = sgd(model.parameters())
            if shard == "parameters":
                sharding.shard(model, keep=0, process_set=process_set)
            optimizer = rabit_torch.DistributedOptimizer(
                optimizer,
                model.named_parameters(),
                shard=shard,
                model=model if shard == "parameters" else None,
                process_set=process_set,
            )
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        return engine.steps, watch.steps

    assert run_ranks(3, run) == [(2, 1), (2, 1), (1, 1)]


@pytest.mark.parametrize("make", [sgd, lambda parameters: torch.optim.AdamW(parameters, fused=True)])
def test_a_scaler_that_would_decide_alone_is_refused(make):
    def run(engine):
        model = Sums()
        optimizer = wrapped(model, "gradients", make)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(128))).backward()
        with pytest.raises(rabit.InvalidArgument, match=r"Use rabit_torch\.sharding\.GradScaler"):
            scaler.step(optimizer)

    run_ranks(2, run)


class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Linear(100, 100, bias=False).requires_grad_(False)
        self.down, self.up = torch.nn.Linear(100, 2, bias=False), torch.nn.Linear(2, 100, bias=False)

    def forward(self, inputs):
        return self.frozen(inputs) + self.up(self.down(inputs))


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_frozen_parameters_are_not_sent_as_gradients(shard):
    def run(engine):
        model = Adapted()
        optimizer = wrapped(model, shard, adamw, keep=0)
        moved = []
        for _ in range(3):
            model(torch.ones(1, 100)).sum().backward()
            before = engine.statistics()["bytes"]
            optimizer.synchronize()
            optimizer.step()
            moved.append(engine.statistics()["bytes"] - before)
            optimizer.zero_grad()
        held = sum(value.numel() for state in optimizer.state.values() for value in state.values() if value.dim())
        assert "frozen.weight" not in optimizer.state_dict()["state"]
        return moved, held

    found = run_ranks(2, run)
    assert sum(held for _, held in found) == 2 * 400
    if shard == "gradients":  # With "parameters", the gathers of the next step are on their way.
        # Two adapters of four rows of 64 elements each, scattered and gathered.
        assert all(moved[-1] <= 3 * 4 * 512 for moved, _ in found)


class Strange(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.values = torch.nn.ParameterList(torch.randn(shape, generator=generator) for shape in shapes)

    def forward(self, factor):
        return sum((value * value * factor).sum() for value in self.values)


@pytest.mark.parametrize("shard", STAGES)
@pytest.mark.parametrize("shapes", [[(), (0,), (1,), (1, 100_000)], [(3,)]])
def test_strange_shapes_on_more_ranks_than_rows(shard, shapes):
    def run(engine, stage):
        model = Strange(shapes)
        if stage is None:
            optimizer = rabit_torch.DistributedOptimizer(adamw(model.parameters()), model.named_parameters())
        else:
            optimizer = wrapped(model, stage, adamw)
        for _ in range(3):
            model(engine.rank + 1.0).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [sharding.whole(value) for value in model.values]

    expected = run_ranks(4, lambda engine: run(engine, None), deterministic=True)[0]
    for found in run_ranks(4, lambda engine: run(engine, shard), deterministic=True):
        assert [value.shape for value in found] == [value.shape for value in expected]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_groups_are_not_added_after_wrapping():
    def run(engine):
        optimizer = wrapped(Sums(), "gradients")
        with pytest.raises(rabit.InvalidArgument, match="groups cannot be added after wrapping"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})

    run_ranks(1, run)


def on_meta(layers=16):
    with torch.device("meta"):
        return torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)) for _ in range(layers)),
        )


def bytes_alive():
    found = {}
    for value in gc.get_objects():
        if issubclass(type(value), torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():
                if not value.is_meta:
                    storage = value.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def test_a_model_on_the_meta_device_gets_its_values_unit_by_unit(monkeypatch):
    alive = []
    first_of = PartStorage.__init__

    def watched(self, *arguments):
        first_of(self, *arguments)
        alive.append(bytes_alive())

    monkeypatch.setattr(PartStorage, "__init__", watched)
    size, unit = 4, 4 * 64 * 64

    def run(engine):
        model = on_meta()
        optimizer = adamw(model.parameters())
        before = list(model.parameters())
        optimizer = rabit_torch.DistributedOptimizer(
            optimizer, model.named_parameters(), shard="parameters", model=sharding.shard(model, keep=64)
        )
        assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
        model(torch.randn(4, 64)).square().sum().backward()
        optimizer.step()
        with sharding.gathered(model):
            return {name: value.clone() for name, value in model.named_parameters()}

    base = bytes_alive()
    values = run_ranks(size, run)

    # The parts of all ranks are one model, and each rank has a unit before and after it is copied into a flat.
    assert max(alive) - base <= 16 * unit + size * 3 * unit
    for found in values:
        assert all(torch.equal(found[name], value) for name, value in values[0].items())
        assert all(torch.isfinite(value).all() for value in found.values())
        assert 0 < float(found["0.0.weight"].detach().std()) < 1


def test_a_module_on_the_meta_device_without_a_beginning_is_named():
    def run(engine):
        with torch.device("meta"):
            model = torch.nn.Sequential(Sums(70_000))
        with pytest.raises(rabit.InvalidArgument, match=r"Sums has no reset_parameters\(\)"):
            sharding.shard(model)

    run_ranks(1, run)


@pytest.mark.parametrize("offload", [False, True])
def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated(offload, monkeypatch, tmp_path):
    layers, ranks = 16, 4
    whole = layers * 4 * 64 * 64
    small = layers * 3 * 4 * 64  # biases and norms, which stay whole: on each rank with their gradients
    held = (8 if offload else 16) // 4 * whole + ranks * 2 * small + (2 if not offload else 0) * small
    monkeypatch.setattr("rabit.sharding.room.free_bytes", lambda: int(held * 0.9))

    def run(engine):
        model = on_meta(layers)
        options = {"offload": f"disk:{tmp_path}"} if offload else {}
        with pytest.raises(
            rabit.ResourceExhausted,
            match=r"of 68,608 parameters, in 4 parts: the 4 ranks of the host of rank 0 need [\d,]+ bytes",
        ) as caught:
            sharding_of(model, options)
        assert all(parameter.is_meta for parameter in model.parameters())
        return int(str(caught.value).split(" need ")[1].split(" bytes")[0].replace(",", ""))

    def sharding_of(model, options):
        rabit_torch.DistributedOptimizer(
            adamw(model.parameters()), model.named_parameters(), shard="parameters", model=model, **options
        )

    monkeypatch.setitem(sharding.shard.__kwdefaults__, "keep", 64)
    needs = run_ranks(ranks, run)

    assert len(set(needs)) == 1
    # What stands between two steps, the state that comes from disk, a window of two units and three of gradients.
    from_disk = 2 * (whole + ranks * small) if offload else 0
    assert held + from_disk <= needs[0] <= held + from_disk + ranks * 6 * (4 * 64 * 64)


def test_a_full_disk_ends_the_step_after(monkeypatch, tmp_path):
    write = DiskTier._write

    def full(self, slot, key, *arguments):
        if "rank1" in str(self.folder) and slot.checksum:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, slot, key, *arguments)

    monkeypatch.setattr(DiskTier, "_write", full)

    def run(engine):
        model = Sums()
        optimizer = wrapped(model, "gradients", adamw, offload=f"disk:{tmp_path}")
        # A step returns while it writes: the next one raises what went wrong. The others learn of it when it leaves.
        with pytest.raises(OSError if engine.rank else rabit.RabitError) as caught:
            for _ in range(4):
                model(torch.ones(128)).backward()
                optimizer.step()
        if engine.rank == 1:
            assert caught.value.errno == errno.ENOSPC
            raise SystemExit

    with pytest.raises(SystemExit):
        run_ranks(2, run)


@pytest.mark.parametrize("shard", STAGES)
def test_buffers_are_those_of_each_rank(shard):
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))

    def run(engine, stage):
        model = copy.deepcopy(base)
        optimizer = (
            rabit_torch.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
            if stage is None
            else wrapped(model, stage)
        )
        for step in range(2):
            generator = torch.Generator().manual_seed(10 * step + engine.rank)
            model(torch.randn(6, 8, generator=generator)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model[1].running_mean.clone()

    expected = run_ranks(2, lambda engine: run(engine, None), deterministic=True)
    found = run_ranks(2, lambda engine: run(engine, shard), deterministic=True)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("shard", STAGES)
def test_hooks_of_the_user_see_this_rank_s_gradient(shard):
    def run(engine):
        model = Sums()
        seen = []
        model.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(float(weight.grad[5])))
        optimizer = wrapped(model, shard)
        for _ in range(2):
            model(torch.full((128,), 2.0 * engine.rank)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return seen, float(sharding.whole(model.weight)[5])

    assert run_ranks(2, run) == [([0.0, 0.0], -2.0), ([2.0, 2.0], -2.0)]


def test_a_rank_that_ends_in_a_gather_is_lost_for_all():
    def run(engine):
        model = torch.nn.Sequential(torch.nn.Linear(64, 2), torch.nn.Linear(2, 2))
        wrapped(model, "parameters")
        if engine.rank == 1:
            raise SystemExit
        with pytest.raises((rabit.PeerLost, rabit.Aborted)):
            model(torch.ones(1, 64))

    with pytest.raises(SystemExit):
        run_ranks(3, run)


def test_freed_gradients_leave_no_holes():
    """A model whose gradients are large does not grow by them, and what was freed before does not matter."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    def run(engine):
        with torch.device("meta"):
            model = torch.nn.Sequential(*(torch.nn.Linear(1200, 1200, bias=False) for _ in range(12)))
        optimizer = wrapped(model, "parameters")
        before = resident()
        for _ in range(3):
            model(torch.ones(1, 1200)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return resident() - before

    torch.empty(1500, 1500)  # One that was freed raises the limit of glibc, above which it keeps nothing.
    grown = run_ranks(1, run)[0]
    layer = 4 * 1200**2
    # Gradients of all layers, and six that are whole: gathered, filled, on their way.
    assert grown < (12 + 6) * layer
