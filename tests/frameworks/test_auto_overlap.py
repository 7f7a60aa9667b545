"""overlap="auto": what is measured becomes a prediction, the prediction a choice, and a guard checks it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

TRAINING = """
import time
from torch import nn
from rabit import default_engine

LINK = {"slow": 1e-3, "fast": 1e-12}


class Layer(nn.Linear):
    def forward(self, x):
        time.sleep(0.001)
        return super().forward(x)


def train(link, seconds, argument, steps=30):
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(16, 16) for _ in range(4)))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arguments = {} if argument is None else {"overlap": argument}
    optimizer = rabit.DistributedOptimizer(inner, model.named_parameters(), **arguments)
    auto = optimizer._rabit_auto
    seen = []
    if auto is not None:
        auto._predict = lambda: dict(seconds)
        slowest = auto._slowest
        auto._slowest = lambda mine: slowest(link.pop(0) if link else mine)
    for step in range(steps):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step * rabit.size() + rabit.rank())
        model(torch.randn(4, 16, generator=generator)).square().mean().backward()
        optimizer.step()
        seen.append(optimizer.overlap)
    report_of = dict(auto.report) if auto is not None else {}
    return seen, report_of, [p.detach().flatten().tolist() for p in model.parameters()]
"""


def test_the_predicted_mode_is_tried_and_stays_only_if_it_is_faster(on_ranks):
    results = on_ranks(
        2,
        TRAINING
        + """
crossing = {"barrier": 2.0, "crossing": 1.0, "dear": 1.5}
waits = {"barrier": 1.0, "crossing": 1.0, "dear": 1.0}
plain = train([], waits, "backward")
better = train([0.02, 0.01], crossing, "auto")
worse = train([0.02, 0.03], crossing, "auto")
never = train([0.02], waits, "auto")
statistics = default_engine().statistics()["overlap"]
report((plain[2] == better[2] == worse[2] == never[2], better[:2], worse[:2], never[:2], statistics))
""",
        RABIT_DETERMINISTIC="1",
    )

    for is_equal, (better, kept), (worse, refused), (never, plain), statistics in results:
        assert is_equal, "the mode changed the weights"
        assert better[0] == "backward" and better[-1] == "next-forward"
        assert kept["overlap"] == "next-forward" and kept["measured_s"]["next-forward"] == 0.01
        assert kept["predicted_s"]["next-forward"] == 1.0
        assert "next-forward" in worse and worse[-1] == "backward"
        assert refused["overlap"] == "backward" and refused["measured_s"]["backward"] == 0.02
        assert set(never) == {"backward"} and plain["phase"] == "done"
        assert statistics == plain
    assert results[0][1] == results[1][1], "the ranks changed at different steps"


def test_a_real_measurement_ends_in_a_report(on_ranks):
    results = on_ranks(
        2,
        TRAINING
        + """
model = nn.Linear(8, 8)
optimizer = rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
lbfgs = rabit.DistributedOptimizer(torch.optim.LBFGS(nn.Linear(2, 2).parameters()), overlap="auto")
report((default_engine().statistics()["overlap"], lbfgs.overlap))
""",
        RABIT_OVERLAP="auto",
    )

    for found, lbfgs in results:
        assert found["phase"] == "done"
        assert found["predicted_s"]["backward"] > 0
        assert found["measured_s"]["backward"] > 0
        assert lbfgs == "backward"


def test_layers_come_from_the_moments_of_gradients():
    from rabit_torch.optimizer.auto_overlap import layers_from

    # Forward 3 (1 each), backward 2 each: gradients at 5, 7 and 9 s; the last layer comes first.
    step = [(5.0, 30), (7.0, 20), (9.0, 10)]
    layers = layers_from([step, step, [(5.0, 30)]])

    assert [each.bytes for each in layers] == [10, 20, 30]
    assert [each.backward for each in layers] == pytest.approx([2, 2, 2])
    assert [each.forward for each in layers] == pytest.approx([1, 1, 1])
    assert layers_from([]) == []
