"""Compiled models: equal numbers however they are compiled, and a word where overlap is lost."""

from __future__ import annotations

import shutil

import pytest

SETUP = """
import contextlib
import warnings
from torch import nn
from torch._dynamo import compiled_autograd

rank, size = rabit.rank(), rabit.size()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.linear = nn.Linear(24, 24)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 24)
        self.blocks = nn.Sequential(*[Block() for _ in range(3)])
        self.last = nn.Linear(24, 4)

    def forward(self, x):
        return self.last(self.blocks(self.first(x)))


def train(prepare, context=contextlib.nullcontext, **arguments):
    torch._dynamo.reset()
    torch.manual_seed(3)
    model = Net()
    names = list(model.state_dict())
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), **arguments)
    arrived = []
    for index, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: arrived.append(index))
    prepared = prepare(model)
    assert list(model.state_dict()) == names
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + rank)
            x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator)
            arrived.clear()
            with context():
                loss = (prepared(x) - y).square().mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if hasattr(optimizer, "flush"):
            optimizer.flush()
    said = [str(w.message) for w in caught if "one backward graph" in str(w.message)]
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return flat, said, list(arrived)


def compiled_autograd_on():
    return compiled_autograd._enable(torch.compile(backend="aot_eager"))


def backends(name):
    return {
        "whole": lambda model: torch.compile(model, backend=name),
        "auto": lambda model: rabit.compile(model, backend=name),
        "blocks": lambda model: rabit.compile(model, "blocks", backend=name),
        "split": lambda model: rabit.compile(model, 2600, backend=name),
    }
"""


def test_every_way_to_compile_trains_to_the_same_numbers(on_ranks):
    """Whole, per block, split, compiled autograd; with updates in step() and past it."""
    results = on_ranks(
        2,
        SETUP
        + """
expected, said, order = train(lambda model: model)
found = {"eager": [0.0, len(said), order]}
for overlap in ("backward", "next-forward"):
    cells = dict(backends("aot_eager"))
    for name, prepare in cells.items():
        flat, said, order = train(prepare, overlap=overlap)
        found[f"{name} {overlap}"] = [(flat - expected).abs().max().item(), len(said), order]
# Compiled autograd of torch 2.4 calls hooks in an order of its own.
for name in ("whole", "blocks") if hasattr(compiled_autograd, "_enable") else ():
    flat, said, order = train(backends("aot_eager")[name], compiled_autograd_on)
    found[f"{name} with compiled autograd"] = [(flat - expected).abs().max().item(), len(said), order]
report(found)
""",
        timeout=380,
    )

    for rank, cells in enumerate(results):
        last = max(cells["eager"][2])
        for name, (difference, warned, order) in cells.items():
            assert difference < 1e-5, f"{name} on rank {rank}"
            assert sorted(order) == list(range(last + 1)), name
            # The whole-model graph is reported by the first rank, once.
            assert warned == (1 if (name, rank) == ("whole backward", 0) else 0), name
            if name.startswith("split"):  # In any order within a part.
                assert set(order[:4]) == {last - 3, last - 2, last - 1, last}, f"{name}: {order}"
                assert set(order[-2:]) <= {0, 1, 2, 3, 4, 5}, f"{name}: {order}"
            elif name.startswith(("blocks", "auto", "eager")):
                # The last layer's gradients come first, and the first layer's last.
                assert set(order[:2]) <= {last, last - 1, last - 2, last - 3}, f"{name}: {order}"
                assert set(order[-2:]) == {0, 1}, f"{name}: {order}"


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++, which is missing")
def test_blocks_compiled_by_inductor_train_to_the_same_numbers(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
expected, _, _ = train(lambda model: model)
flat, said, _ = train(backends("inductor")["blocks"])
report([(flat - expected).abs().max().item(), said])
""",
        timeout=300,
    )

    for difference, said in results:
        assert difference < 1e-5
        assert said == []


def test_a_compiled_step_calls_the_optimizer_as_it_is(on_ranks):
    found = on_ranks(
        2,
        """
def train(compiled):
    torch.manual_seed(3)
    model = torch.nn.Linear(6, 4)
    optimizer = rabit.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters())

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.clip_grad_norm_(0.5)
        optimizer.step()

    if compiled:
        step = torch.compile(step, backend="eager")
    for each in range(4):
        step(torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * each + rabit.rank())))
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


eager, compiled = train(False), train(True)
report([torch.equal(eager, compiled), bool((rabit.allgather(compiled[None]) == compiled).all())])
""",
    )
    assert found == [[True, True], [True, True]]


def test_the_warning_names_both_remedies_and_the_share():
    import torch

    from rabit_torch.overlap import compile

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    looked = []

    class Late(compile.LateGradients):
        def look(self):
            found = compile._made_by_graphs(compile._roots(), self._bytes)
            looked.append(max((self._size(each) for each in found), default=0))

    late = Late(list(model.parameters()))
    model[0].weight.register_post_accumulate_grad_hook(lambda _: late.look())
    for run in (model, torch.compile(model, backend="aot_eager")):
        run(torch.ones(2, 4)).sum().backward()

    assert looked == [0, 2 * (16 + 4) * 4]
    text = compile._LATE_WARNING.format(share=1.0, late=4, total=4)
    assert "rabit_torch.compile(model)" in text
    assert "torch.compile(block)" in text


def test_blocks_are_repeated_layers_or_large_ones():
    import torch
    from torch import nn

    from rabit_torch.overlap.compile import find_blocks

    layer = nn.TransformerEncoderLayer(16, 2, 32)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    model = nn.ModuleDict({"table": nn.Embedding(9, 16), "body": encoder, "head": nn.Linear(16, 9)})

    assert find_blocks(model, 1 << 20) == list(encoder.layers)
    assert find_blocks(model, 500) == [model["table"], *encoder.layers, model["head"]]
    assert find_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), 1 << 20) == []
    with torch.device("meta"):
        wide = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(3)])
    assert find_blocks(wide, 4 << 20) == list(wide)


def test_arguments_that_make_no_sense_are_refused():
    import torch

    import rabit_torch

    model = torch.nn.Linear(2, 2)
    for buckets in ("layers", 0, -1, True, None):
        with pytest.raises(rabit_torch.InvalidArgument, match="buckets is"):
            rabit_torch.compile(model, buckets)
    with pytest.raises(rabit_torch.InvalidArgument, match="takes no mode"):
        rabit_torch.compile(model, "split", mode="max-autotune")
