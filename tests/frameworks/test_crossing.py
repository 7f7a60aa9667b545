"""Modes of overlap: every one trains to the same bits, whatever the script does between steps."""

from __future__ import annotations

import pytest

SETUP = """
import hashlib
import warnings
from torch import nn

rank, size = rabit.rank(), rabit.size()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 200)
        self.norm = nn.LayerNorm(200)
        self.second = nn.Linear(200, 180)
        self.last = nn.Linear(180, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.relu(self.norm(self.first(x))))))


def make_net(kind=Net):
    torch.manual_seed(3)
    return kind()


def wrap(model, optimizer, **arguments):
    return rabit.DistributedOptimizer(optimizer, model.named_parameters(), **arguments)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(5, 6, generator=generator), torch.randn(5, 4, generator=generator)


def loss_of(model, step):
    x, y = batch(step)
    return (model(x) - y).square().mean()


def digest(model):
    flat = torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def train(overlap, make=sgd, steps=6, kind=Net, between=lambda model, optimizer, step: None, **more):
    model = make_net(kind)
    optimizer = wrap(model, make(model), overlap=overlap, **more)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        between(model, optimizer, step)
        optimizer.step()
    return model, optimizer


MODES = ("none", "backward", "next-forward", "reduce-scatter")
"""

OPTIMIZERS = """
makers = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.05),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-3),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.5),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True),
    "foreach": lambda m: torch.optim.Adam(m.parameters(), lr=1e-3, foreach=True),
}
found = {}
for name, make in makers.items():
    steps = int(os.environ["STEPS"]) if name not in ("fused", "foreach") else 20
    found[name] = [digest(train(overlap, make, steps)[0]) for overlap in MODES]
report(found)
"""


def test_one_rank_alone_needs_nothing(on_ranks):
    (result,) = on_ranks(
        1,
        SETUP
        + """
found = [
    digest(train(overlap, between=lambda m, o, s: o.clip_grad_norm_(0.5))[0]) for overlap in MODES
]
optimizer = train("next-forward")[1]
report([found, optimizer.pending_updates, optimizer.overlap])
""",
    )

    assert len(set(result[0])) == 1
    assert result[1:] == [[], "next-forward"]


# What shows only after many steps shows with two ranks.
@pytest.mark.parametrize(("ranks", "steps"), [(2, 200), (4, 40)])
def test_modes_train_to_the_same_bits_with_every_optimizer(on_ranks, ranks, steps):
    script = SETUP + OPTIMIZERS
    results = on_ranks(ranks, script, timeout=300, RABIT_DETERMINISTIC="1", STEPS=str(steps))

    assert all(result == results[0] for result in results)
    for name, digests in results[0].items():
        assert len(set(digests)) == 1, name
    assert len({digests[0] for digests in results[0].values()}) > 5
