"""DistributedOptimizer(shard="parameters") trains as without it, with a part of every parameter on each rank."""

from __future__ import annotations

import copy
import gc
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from support.pages import run_program_of
from torch.utils.checkpoint import checkpoint

import rabit
import rabit_torch
from rabit.checkpoint import Part
from rabit.sharding import SquareSum
from rabit.testing import run_ranks
from rabit_torch import sharding
from rabit_torch.sharding import model as model_of_sharding
from rabit_torch.sharding.model import divided_model

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "adamw, loop": partial(torch.optim.AdamW, lr=0.01, foreach=False),
    "adamw, foreach": partial(torch.optim.AdamW, lr=0.01, foreach=True),
    "adamw, fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
}
ADAMW = OPTIMIZERS["adamw, foreach"]


class Block(torch.nn.Module):
    """A layer of a transformer; its norm is used twice."""

    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 3 * width), torch.nn.GELU(), torch.nn.Linear(3 * width, width)
        )

    def forward(self, hidden):
        normed = self.norm(hidden)
        hidden = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
        return hidden + self.mlp(self.norm(hidden))


class Decoder(torch.nn.Module):
    """With what is hard to divide: tied weights, a parameter of its own, one that nobody uses, a scalar."""

    def __init__(self, width=18, words=29, layers=3):
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight
        self.position = torch.nn.Parameter(torch.randn(7, width))
        self.unused = torch.nn.Parameter(torch.ones(70))
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.order = range(layers)
        self.is_checkpointed = False

    def forward(self, words):
        hidden = self.embedding(words) + self.position
        for place in self.order:
            block = self.blocks[place]
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.is_checkpointed else block(hidden)
        # A weight of another module, in between.
        return self.head(hidden) * self.scale + torch.nn.functional.linear(
            hidden, self.blocks[0].mlp[0].weight
        ).mean()


torch.manual_seed(0)
DECODER = Decoder()
PLAIN = torch.nn.Sequential(
    torch.nn.Linear(33, 65), torch.nn.LayerNorm(65), torch.nn.Tanh(), torch.nn.Linear(65, 65), torch.nn.Linear(65, 7)
)


def words_of(*seed, words=29):
    generator = torch.Generator().manual_seed(sum(1000**place * each for place, each in enumerate(seed)))
    return torch.randint(words, (2, 7), generator=generator)


def loss_of(model, *seed):
    if isinstance(model, Decoder):
        words = words_of(*seed)
        return torch.nn.functional.cross_entropy(model(words).flatten(0, 1), words.roll(1).flatten())
    generator = torch.Generator().manual_seed(sum(1000**place * each for place, each in enumerate(seed)))
    return model(torch.randn(5, 33, generator=generator)).square().mean()


def divide(model, make=ADAMW, passes=1, keep=0, **options):
    """The model in parts, whole tensors of up to `keep` elements apart, and its optimizer."""
    optimizer = make(model.parameters())
    sharding.shard(model, keep=keep, **options)
    return rabit_torch.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        shard="parameters",
        model=model,
        backward_passes_per_step=passes,
    )


def values_of(model):
    with sharding.gathered(model):
        return {name: value.clone() for name, value in model.state_dict().items()}


def clip(optimizer, model, max_norm):
    if hasattr(optimizer, "part"):
        return float(optimizer.clip_grad_norm_(max_norm))
    squares = SquareSum()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    for gradient in gradients:
        squares.add(gradient.numpy())
    norm = squares.norm()
    if not max_norm / (norm + 1e-6) > 1:
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + 1e-6))
    return norm


def trained(engine, base, make=ADAMW, steps=4, is_divided=True, max_norm=None, change=None, **options):
    """Values, norms and state after some steps. change(model): before the optimizer; (model, step): before a step."""
    model = copy.deepcopy(base)
    before_step = change(model) if change is not None else None
    if is_divided:
        optimizer = divide(model, make, **options)
    else:
        optimizer = rabit_torch.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), find_unused_parameters=True
        )
    norms = []
    for step in range(steps):
        optimizer.zero_grad()
        if before_step is not None:
            before_step(step)
        loss_of(model, engine.rank, step).backward()
        optimizer.synchronize()
        if max_norm is not None:
            norms.append(clip(optimizer, model, max_norm))
        if is_divided:
            optimizer.step()
        else:
            with optimizer.skip_synchronize():
                optimizer.step()
    if is_divided:
        state = optimizer.state_dict(whole=True)["state"]
        return values_of(model), norms, {name: state[name] for name in state}
    names = {each: name for name, each in model.named_parameters()}
    state = {names[each]: optimizer.state.get(each, {}) for each in names if each.requires_grad}
    return {name: value.clone() for name, value in model.state_dict().items()}, norms, state


def check_equal(size, base, **options):
    """Divided training has the bits of the other; options of `trained`."""
    apart = {key: options.pop(key) for key in ("window", "units", "keep") if key in options}
    whole = partial(trained, base=base, is_divided=False, **options)
    values, norms, state = run_ranks(size, whole, deterministic=True)[0]
    for found in run_ranks(size, partial(trained, base=base, **apart, **options), deterministic=True):
        assert found[1] == norms
        assert set(found[0]) == set(values)
        for name, value in values.items():
            assert torch.equal(found[0][name], value), name
        assert set(found[2]) == set(state)
        for name, own in state.items():
            assert set(found[2][name]) == set(own), name
            for key, value in own.items():
                same = torch.equal(found[2][name][key], value) if isinstance(value, torch.Tensor) else True
                assert same, (name, key)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_values_and_state_have_the_bits_of_training_without(size, name):
    check_equal(size, PLAIN, make=OPTIMIZERS[name], steps=20, max_norm=0.5)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("window", [1, 6000, 10**9])
def test_a_transformer_with_tied_and_unused_parameters_has_the_bits_with_any_window(size, window):
    check_equal(size, DECODER, window=window, max_norm=1.0)


@pytest.mark.parametrize("units", [["blocks.1", "embedding"], [Block], lambda name, module: name == "blocks"])
def test_units_may_be_chosen(units):
    check_equal(2, DECODER, units=units)


def test_small_tensors_may_stay_whole():
    check_equal(2, DECODER, keep=100)


def change_checkpointing(model):
    model.is_checkpointed = True


def change_frozen(model):
    model.blocks[1].requires_grad_(False)
    model.embedding.requires_grad_(False)
    model.blocks[0].norm.weight.requires_grad_(False)


def change_frozen_and_checkpointing(model):
    change_frozen(model)
    change_checkpointing(model)


def change_repeated(model):
    model.order = [0, 1, 0, 2, 2]


def change_order(model):
    """Layers are left out, and come in another order, in some steps."""

    def before_step(step):
        model.order = [[0, 1, 2], [0, 2], [0, 1, 2], [2, 1, 0], [0, 1, 2]][step]

    return before_step


def change_dtype(model):
    model.blocks[1].to(torch.float64)
    model.blocks[1].register_forward_pre_hook(lambda _, given: given[0].double())
    model.blocks[1].register_forward_hook(lambda *given: given[2].float())


@pytest.mark.parametrize(
    "change",
    [
        change_checkpointing,
        change_frozen,
        change_frozen_and_checkpointing,
        change_repeated,
        change_order,
        change_dtype,
    ],
)
def test_other_models_have_the_bits_too(change):
    check_equal(2, DECODER, change=change, steps=5)


def test_layers_in_channels_last_and_recurrent_ones_have_the_bits():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = torch.nn.Conv2d(2, 5, 3).to(memory_format=torch.channels_last)
            self.recurrent = torch.nn.LSTM(3, 4, batch_first=True)

        def forward(self, inputs):
            image = inputs[:, :32].reshape(-1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
            hidden, _ = self.recurrent(self.convolution(image).flatten(1)[:, :18].reshape(-1, 6, 3))
            return hidden

    torch.manual_seed(1)
    base = Odd()

    def change(model):
        model.convolution.to(memory_format=torch.channels_last)

    check_equal(2, base, change=change)


def gathers_of(model):
    return divided_model(model).gathers


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_step_gathers_each_unit_twice_and_waits_for_the_first_alone(is_checkpointed):
    def run(engine):
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(6)))
        call = partial(checkpoint, model, use_reentrant=False) if is_checkpointed else model
        optimizer = divide(model, window=3 * 4 * 64 * 64)
        gathers = gathers_of(model)
        counts = []
        for _ in range(4):
            started, late = gathers.started, gathers.late
            call(torch.ones(2, 64, requires_grad=True)).sum().backward()
            counts.append((gathers.started - started, gathers.late - late))
            ahead = sum(unit.is_gathered for unit in gathers.units)
            optimizer.step()
            optimizer.zero_grad()
            assert sum(unit.is_gathered for unit in gathers.units) == (3 if gathers._order else 0)
        assert ahead <= 3
        return counts

    for counts in run_ranks(2, run):
        assert counts[0] == (12, 12)
        # Three for the next step have been started by the step before; the last unit stays for the backward pass.
        assert [late for _, late in counts[1:]] == [0] * 3
        assert all(started + 3 <= 12 for started, _ in counts[1:])


def test_the_window_is_kept_and_memory_does_not_grow():
    def run(engine):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            *(torch.nn.Linear(width, width, bias=False) for width in (16, 16, 24, 24)),
            *(torch.nn.Sequential(torch.nn.Linear(24, 8), torch.nn.Linear(8, 24)) for _ in range(8)),
        )
        model.insert(2, torch.nn.Linear(16, 24))
        optimizer = divide(model)
        gathers = gathers_of(model)
        sizes = []
        for _ in range(12):
            model(torch.ones(2, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            gathered = sum(unit.bytes for unit in gathers.units if unit.is_gathered)
            assert gathered <= gathers.window
            sizes.append(gathers.pool.bytes)
        return sizes, gathers.window, max(unit.bytes for unit in gathers.units)

    for sizes, window, largest in run_ranks(2, run):
        assert len(set(sizes[5:])) == 1
        assert sizes[-1] <= window + largest


def test_recomputed_passes_leave_no_unit_in_memory():
    """The recomputed forward pass ends by an exception, after which ordinary hooks do not run."""

    def run(engine):
        model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))
        optimizer = divide(model, window=1)
        hidden = torch.ones(2, 32, requires_grad=True)
        for layer in model:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        hidden.sum().backward()
        del hidden
        optimizer.step()
        gc.collect()
        return gathers_of(model).pool.bytes / gathers_of(model).units[0].bytes

    assert all(slots <= 2 for slots in run_ranks(2, run))


def test_evaluation_between_steps_gathers_each_unit_once():
    def run(engine):
        model = copy.deepcopy(DECODER)
        optimizer = divide(model)
        gathers = gathers_of(model)
        for step in range(3):
            loss_of(model, engine.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            model(words_of(0))
            before = gathers.started
            model(words_of(1))
            in_evaluation = gathers.started - before
        order = gathers._order
        loss_of(model, engine.rank, 3).backward()
        optimizer.step()
        assert gathers._order is order
        return in_evaluation

    # Embedding (again for the head), the model's own (twice), three blocks (the first again for its weight).
    assert all(count <= 8 for count in run_ranks(2, run))


def test_gradients_of_passes_add_up_in_the_part_of_the_owner():
    def run(engine):
        layer = torch.nn.Sequential(torch.nn.Linear(64, 2, bias=False))
        optimizer = divide(layer, OPTIMIZERS["sgd"], passes=2)
        for value in (1.0, 2.0):
            layer(torch.full((1, 64), value)).sum().backward()
            assert layer[0].weight.grad is None
        optimizer.synchronize()
        return optimizer.part(layer[0].weight).grad

    assert all(torch.equal(part, torch.full((64,), 3.0)) for part in run_ranks(2, run))


def test_groups_and_schedulers_work_and_parameters_that_nobody_uses_stay():
    def run(engine):
        model = copy.deepcopy(DECODER)
        matrices = [each for each in model.parameters() if each.ndim > 1]
        vectors = [each for each in model.parameters() if each.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "lr": 0.0}]
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        optimizer = divide(model, lambda _: torch.optim.AdamW(groups, lr=0.1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(2):
            loss_of(model, engine.rank, step).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        after = values_of(model)
        assert torch.equal(after["unused"], before["unused"])
        assert torch.equal(after["blocks.0.norm.weight"], before["blocks.0.norm.weight"])
        assert not torch.equal(after["position"], before["position"])
        assert optimizer.state_dict()["state"]["unused"] == {}
        return [group["lr"] for group in optimizer.param_groups]

    assert run_ranks(2, run) == [[0.025, 0.0]] * 2


def test_each_rank_keeps_its_part():
    def run(engine):
        model = torch.nn.Sequential(torch.nn.Linear(640, 10, bias=False))
        optimizer = divide(model)
        model(torch.ones(1, 640)).sum().backward()
        optimizer.step()
        state = optimizer.state[optimizer.part(model[0].weight)]
        with torch._C.DisableTorchFunctionSubclass():
            assert model[0].weight.untyped_storage().nbytes() == 4
        assert model[0].weight.shape == (10, 640)
        part = model.state_dict()["0.weight"]
        return state["exp_avg"].numel(), len(part.value), part.length, part.start

    assert run_ranks(4, run) == [(1600, 1600, 6400, 1600 * rank) for rank in range(4)]


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.A, self.B = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
        self.uses_a = True

    def forward(self, inputs):
        return (self.A if self.uses_a else self.B)(inputs)


def messages_of(size, run):
    """What each rank reports of the Mismatch that ends the job."""
    messages = {}

    def on_rank(engine):
        with pytest.raises(rabit.Mismatch) as caught:
            run(engine)
        messages[engine.rank] = str(caught.value)

    with pytest.raises(rabit.Mismatch):  # The engine reports it once more when it is closed.
        run_ranks(size, on_rank, stall_warning=1.0)
    return [messages[rank] for rank in range(size)]


def test_ranks_that_take_different_branches_get_a_mismatch_that_names_both():
    def run(engine):
        model = Branches()
        divide(model, OPTIMIZERS["sgd"])
        model.uses_a = engine.rank == 0
        model(torch.ones(1, 4))

    for message in messages_of(2, run):
        assert "rank 0 waits for allgather 'divided.A.float32.gather'" in message
        assert "rank 1 waits for allgather 'divided.B.float32.gather'" in message


def test_a_rank_that_evaluates_longer_gets_an_error_that_names_the_gather():
    def run(engine):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        optimizer = divide(model, OPTIMIZERS["sgd"])
        with torch.no_grad():
            for _ in range(3 + 2 * engine.rank):
                model(torch.ones(1, 8))
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()

    for message in messages_of(2, run):
        assert "rank 1 waits for allgather 'divided.0.float32.gather'" in message


def test_whole_values_can_be_read_and_written_together():
    def run(engine):
        model = copy.deepcopy(PLAIN)
        expected = model[0].weight.detach().clone()
        optimizer = divide(model)
        assert torch.equal(sharding.whole(model[0].weight), expected)
        with sharding.gathered(model[0], write=True), torch.no_grad():
            model[0].weight.mul_(2)
            torch.nn.init.constant_(model[0].bias, 3.0)
        assert torch.equal(sharding.whole(model[0].weight), 2 * expected)
        assert torch.equal(sharding.whole(model[0].bias), torch.full((65,), 3.0))
        loss_of(model, 0).backward()  # Nothing is left over of the old values.
        optimizer.step()

    run_ranks(3, run)


def test_values_that_are_in_parts_cannot_be_misread_or_lost():
    def run(engine):
        model = copy.deepcopy(PLAIN)
        divide(model)
        weight = model[0].weight
        assert "'0.weight' of shape (65, 33)" in repr(weight)
        assert (weight.shape, weight.stride(), weight.is_contiguous()) == ((65, 33), (33, 1), True)
        with pytest.raises(rabit.InvalidArgument, match=r"values of '0\.weight' are divided.*whole\(parameter\)"):
            weight.detach().sum()
        with torch.no_grad(), pytest.raises(rabit.InvalidArgument, match=r"'0\.weight' is divided.*gathered"):
            weight.mul_(2)
        with pytest.raises(rabit.InvalidArgument, match=r"'0\.weight' is divided.*gathered"):
            weight.data = torch.ones(65, 33)
        with pytest.raises(rabit.InvalidArgument, match="cannot be copied"):
            copy.deepcopy(model)
        assert torch.isfinite((weight**2).sum())  # A read outside of the model gathers, on all ranks.

    run_ranks(2, run)


def test_a_backward_pass_after_the_step_is_refused():
    def run(engine):
        model = copy.deepcopy(PLAIN)
        optimizer = divide(model)
        loss = loss_of(model, 0)
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(rabit.InvalidArgument, match="have been changed, as by step"):
            loss.backward()

    run_ranks(2, run)


def test_a_saved_tensor_that_is_changed_is_found_as_without():
    def run(engine):
        class Bad(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 4)

            def forward(self, inputs):
                hidden = self.layer(inputs).exp()
                hidden.mul_(2)
                return hidden

        model = Bad()
        divide(model)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            model(torch.ones(1, 4)).sum().backward()

    run_ranks(1, run)


def test_saved_tensors_of_another_storage_are_found_by_their_address():
    """NumPy and DLPack give tensors that begin their own storage anywhere in the memory of a unit."""

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(16, 16))
            self.scales = torch.nn.Parameter(torch.rand(16))

        def forward(self, inputs):
            scales = self.scales.detach()
            return inputs @ self.weight * torch.from_numpy(scales.numpy()) * torch.from_dlpack(scales[8:]).repeat(2)

    torch.manual_seed(0)
    base = torch.nn.Sequential(Scaled(), Scaled())

    def run(engine, is_divided):
        model = copy.deepcopy(base)
        if is_divided:
            sharding.shard(model, keep=0)
        model(torch.ones(2, 16)).sum().backward()
        return [layer.weight.grad for layer in model]

    expected, found = (run_ranks(1, partial(run, is_divided=is_divided))[0] for is_divided in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_checkpoint_of_three_ranks_goes_on_in_a_job_of_another_size(after, tmp_path):
    def states(engine):
        model = copy.deepcopy(DECODER)
        optimizer = divide(model, keep=100)
        with rabit_torch.Checkpoint(tmp_path, model=model, optimizer=optimizer) as saved:
            if saved.restore() is None:
                for step in range(3):
                    loss_of(model, engine.rank, step).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                saved.save(step=3)
        return optimizer.state_dict(whole=True)["state"], values_of(model)

    state, values = run_ranks(3, states)[0]

    for found, found_values in run_ranks(after, states):
        assert all(torch.equal(found_values[name], value) for name, value in values.items())
        for name, own in state.items():
            assert all(torch.equal(found[name][key], value) for key, value in own.items())
        assert float(found["embedding.weight"]["step"]) == 3


def test_a_whole_state_dict_is_loaded_without_communication():
    def run(engine):
        model = copy.deepcopy(DECODER)
        divide(model)
        other = {name: torch.randn_like(value) for name, value in DECODER.state_dict().items()}
        other["head.weight"] = other["embedding.weight"]
        model.load_state_dict(other)
        assert isinstance(model.state_dict()["position"], Part)
        assert model.head.weight is model.embedding.weight
        found = values_of(model)
        return [torch.equal(found[name], value) for name, value in other.items()]

    torch.manual_seed(3)
    other = run_ranks(1, run)
    assert all(other[0])


def test_parameters_begin_as_on_the_first_rank():
    def run(engine):
        model = torch.nn.Sequential(torch.nn.Linear(8, 9))
        torch.nn.init.constant_(model[0].weight, float(engine.rank))
        divide(model)
        rabit_torch.broadcast_parameters(model.state_dict(), root_rank=0)
        rabit_torch.broadcast_parameters(model.named_parameters(), root_rank=0)
        return float(sharding.whole(model[0].weight).sum())

    assert run_ranks(3, run) == [0.0] * 3


def test_a_model_is_described_before_it_trains():
    def run(engine):
        model = torch.nn.Sequential(torch.nn.Linear(640, 640, bias=False), torch.nn.Linear(640, 10))
        sharding.shard(model, keep=6400)
        return sharding.describe(model)

    found = run_ranks(4, run)[0]

    assert found.units == {"0": 4 * 640 * 640}
    assert found.kept == 4 * (6400 + 64)
    assert found.rank.parameters == 640 * 640 + found.kept
    assert found.wire == 3 * 3 * 640 * 640 + 2 * 3 * (6400 + 64)
    assert "1 units" in str(found)


def test_a_model_that_only_computes_is_divided_without_an_optimizer():
    def run(engine):
        model = copy.deepcopy(DECODER)
        expected = model(words_of(0))
        sharding.shard(model, keep=0)
        with torch.no_grad():
            found = [model(words_of(0)) for _ in range(3)]
        assert gathers_of(model)._order is not None
        return all(torch.equal(each, expected) for each in found)

    assert run_ranks(2, run) == [True] * 2


def test_bad_input_is_refused():
    def run(engine):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        named = list(model.named_parameters())

        def wrap(**options):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return rabit_torch.DistributedOptimizer(optimizer, named, **options)

        for words, options in (
            ("needs the model", {"shard": "parameters"}),
            (r"model= is for shard='parameters', .* shard is 'gradients'", {"shard": "gradients", "model": model}),
            ("model= is for shard='parameters', and shard is None", {"model": model}),
            ("model is int", {"shard": "parameters", "model": 3}),
            ("which Linear does not have", {"shard": "parameters", "model": model[0]}),
            ("nothing is divided. Use shard='gradients'", {"shard": "parameters", "model": model}),
        ):
            with pytest.raises(rabit.InvalidArgument, match=words):
                wrap(**options)
        with pytest.raises(rabit.InvalidArgument, match="not in the optimizer"):
            rabit_torch.DistributedOptimizer(
                torch.optim.SGD(model[0].parameters(), lr=0.1), named[:2], shard="parameters", model=model
            )
        with pytest.raises(rabit.InvalidArgument, match="has no module 'x'; it has '0', '1'"):
            sharding.shard(model, units=["x"], keep=0)
        with pytest.raises(rabit.InvalidArgument, match="matches no module"):
            sharding.shard(model, units=[torch.nn.LSTM], keep=0)
        with pytest.raises(rabit.InvalidArgument, match="is not divided"):
            sharding.describe(model)
        sharding.shard(model, keep=0)
        with pytest.raises(rabit.InvalidArgument, match="is divided already"):
            sharding.shard(model, keep=0)

    run_ranks(1, run)


@pytest.mark.parametrize("other", ["another default device", "no meta device"])
def test_ranks_that_would_get_values_in_other_ways_are_a_mismatch(other, monkeypatch):
    device_of_values = model_of_sharding.device_of_values

    def run(engine):
        is_other = engine.rank == 1
        if is_other and other == "another default device":
            devices[threading.get_ident()] = torch.device("cuda")
        with torch.device("cpu" if is_other and other == "no meta device" else "meta"):
            model = torch.nn.Linear(8, 8)
        there = r"on meta \(values on cuda\)" if other == "another default device" else "on cpu"
        says = rf"Linear is on meta \(values on cpu\) on rank 0, and {there} on rank 1"
        with pytest.raises(rabit.Mismatch, match=says):
            sharding.shard(model, keep=0)

    devices = {}
    monkeypatch.setattr(
        model_of_sharding, "device_of_values", lambda: devices.get(threading.get_ident(), device_of_values())
    )
    run_ranks(2, run)


def test_a_parameter_on_meta_is_said_to_be_there(monkeypatch):
    monkeypatch.setattr(model_of_sharding, "device_of_values", lambda: torch.device("cuda", 0))
    says = r"on rank 0, '0\.weight' is on meta and gets values on cuda:0, and '1\.weight' is on cpu\. Move the model"

    def run(engine):
        with pytest.raises(rabit.InvalidArgument, match=says):
            sharding.shard(torch.nn.Sequential(torch.nn.Linear(8, 8, device="meta"), torch.nn.Linear(8, 8)), keep=0)

    run_ranks(1, run)


def test_models_that_differ_are_a_mismatch():
    def run(engine):
        with pytest.raises(rabit.Mismatch, match="has other trained parameters"):
            sharding.shard(torch.nn.Sequential(torch.nn.Linear(8, 8 + engine.rank)), keep=0)

    run_ranks(2, run)


def test_the_program_of_the_page_runs(tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs" / "howto" / "sharded_parameters.md"

    run_program_of(page.read_text(), tmp_path)


def test_two_models_train_in_turns():
    """As in adversarial training: one backward pass runs through both."""

    def run(engine, is_divided):
        maker, judge = (copy.deepcopy(PLAIN)[:2], copy.deepcopy(PLAIN)[3:])
        optimizers = [
            divide(each)
            if is_divided
            else rabit_torch.DistributedOptimizer(
                ADAMW(each.parameters()), [(f"{place}.{name}", p) for name, p in each.named_parameters()]
            )
            for place, each in enumerate((maker, judge))
        ]
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + engine.rank)
            inputs = torch.randn(5, 33, generator=generator)
            judge(maker(inputs)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
        if not is_divided:
            return [each.detach().clone() for model in (maker, judge) for each in model.parameters()]
        return [sharding.whole(each) for model in (maker, judge) for each in model.parameters()]

    expected = run_ranks(2, partial(run, is_divided=False), deterministic=True)[0]
    for found in run_ranks(2, partial(run, is_divided=True), deterministic=True):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
