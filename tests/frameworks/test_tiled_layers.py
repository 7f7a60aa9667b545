"""sharding.tiled: a large linear layer is gathered one tile after the other."""

from __future__ import annotations

import copy

import pytest
import torch

import rabit
import rabit_torch
from rabit.testing import run_ranks
from rabit_torch import sharding
from rabit_torch.sharding.model import divided_model
from rabit_torch.sharding.tiles import TiledLinear

WIDTH = 96
TILE = 4 * WIDTH * 64  # bytes of 64 rows


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.narrow = torch.nn.Linear(WIDTH, 32)

    def forward(self, hidden):
        return hidden + self.down(torch.tanh(self.up(hidden))) + self.narrow(hidden).mean()


torch.manual_seed(0)
BASE = torch.nn.Sequential(*(Block() for _ in range(2)), torch.nn.Linear(WIDTH, 4))


def inputs_of(*seed):
    generator = torch.Generator().manual_seed(sum(1000**place * each for place, each in enumerate(seed)))
    return torch.randn(5, WIDTH, generator=generator)


def trained(engine, shard, folder=None):
    model = sharding.tiled(copy.deepcopy(BASE), TILE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options = {}
    if shard:
        sharding.shard(model, keep=0, offload=None if folder is None else f"disk:{folder}")
        options = {"shard": "parameters", "model": model}
    optimizer = rabit_torch.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    for step in range(3):
        model(inputs_of(engine.rank, step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    units = divided_model(model).gathers.units if shard else []
    slots = divided_model(model).gathers.pool.bytes if shard else 0
    with sharding.gathered(model):
        values = {name: value.clone() for name, value in model.state_dict().items()}
    return values, units, slots


def test_rows_are_cut_and_values_stay():
    model = sharding.tiled(copy.deepcopy(BASE), TILE)

    assert [tile.out_features for tile in model[0].up.tiles] == [64] * 6
    assert [tile.out_features for tile in model[0].down.tiles] == [16] * 6
    assert type(model[0].narrow) is type(model[2]) is torch.nn.Linear
    assert torch.equal(torch.cat([tile.weight for tile in model[0].up.tiles]), BASE[0].up.weight)
    assert model[0].down.tiles[0].bias is None
    assert "in_features=96, out_features=384" in repr(model[0].up)


def test_values_and_gradients_are_those_of_the_layer_up_to_rounding():
    plain, model = copy.deepcopy(BASE), sharding.tiled(copy.deepcopy(BASE), TILE)
    outputs = []
    for each in (plain, model):
        inputs = inputs_of(1).requires_grad_()
        each(inputs).square().mean().backward()
        outputs.append((each(inputs), inputs.grad))

    for expected, found in zip(*outputs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    found = torch.cat([tile.weight.grad for tile in model[1].up.tiles])
    torch.testing.assert_close(found, plain[1].up.weight.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3])
def test_tiles_in_parts_have_the_bits_of_whole_tiles(size, tmp_path):
    expected, *_ = run_ranks(size, lambda engine: trained(engine, False), deterministic=True)[0]

    for folder in (None, tmp_path):
        for found, *_ in run_ranks(size, lambda engine, at=folder: trained(engine, True, at), deterministic=True):
            assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_tile_is_gathered_at_a_time():
    for _, units, slots in run_ranks(2, lambda engine: trained(engine, True)):
        assert [unit.name for unit in units][:3] == ["0", "0.up.tiles.0", "0.up.tiles.1"]
        largest = max(unit.bytes for unit in units)
        assert largest < TILE + 4 * 512
        assert slots <= 4 * largest  # The block's own, a tile, and those in the window.


def test_a_model_on_the_meta_device_is_cut_as_well():
    def run(engine):
        with torch.device("meta"):
            model = torch.nn.Linear(64, 256)
        model = sharding.tiled(model, 64 * 64 * 4)
        assert all(each.is_meta for each in model.parameters())
        sharding.shard(model, keep=0)
        with sharding.gathered(model):
            weights = torch.cat([tile.weight.detach().clone() for tile in model.tiles])
        assert weights.shape == (256, 64)
        assert 0.06 < weights.std() < 0.08  # 1 / sqrt(3 * 64)

    run_ranks(2, run)


def test_whole_weights_are_loaded():
    model = sharding.tiled(copy.deepcopy(BASE), TILE)
    other = copy.deepcopy(BASE)
    with torch.no_grad():
        for each in other.parameters():
            each.add_(1)

    model.load_state_dict(other.state_dict())

    assert torch.equal(torch.cat([tile.weight for tile in model[1].up.tiles]), other[1].up.weight)
    assert torch.equal(torch.cat([tile.bias for tile in model[0].up.tiles]), other[0].up.bias)


def test_shared_weights_and_classes_of_others_stay():
    model = torch.nn.ModuleDict(
        {"embedding": torch.nn.Embedding(64, 32), "head": torch.nn.Linear(32, 64, bias=False)}
    )
    model["attention"] = torch.nn.MultiheadAttention(32, 2)
    model["head"].weight = model["embedding"].weight

    sharding.tiled(model, 1024)

    assert type(model["head"]) is torch.nn.Linear
    assert not [each for each in model.modules() if isinstance(each, TiledLinear)]


def test_bad_input_is_refused():
    with pytest.raises(rabit.InvalidArgument, match="expected the bytes of a tile"):
        sharding.tiled(BASE, 0)

    def run(engine):
        model = copy.deepcopy(BASE)
        sharding.shard(model, keep=0)
        with pytest.raises(rabit.InvalidArgument, match=r"'0\.up' is divided already"):
            sharding.tiled(model, TILE)

    run_ranks(1, run)


def test_a_layer_that_stands_in_two_places_or_has_hooks_stays_as_it_is():
    shared = torch.nn.Linear(8, 8)
    twice = torch.nn.Sequential(shared, torch.nn.ReLU(), shared)
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 8))
    hooked = torch.nn.Linear(8, 8)
    hooked.register_forward_hook(lambda *_: None)

    assert sharding.tiled(twice, 64)[0] is sharding.tiled(twice, 64)[2] is shared
    assert sharding.tiled(normed, 64) is normed
    assert sharding.tiled(hooked, 64) is hooked


def test_a_transformer_evaluates_with_tiles():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    row = torch.ones(1, 3, 8)
    expected = layer(row)

    assert torch.allclose(sharding.tiled(layer, 64)(row), expected, atol=1e-6)
