"""What methods take over from optimizers, and what of these they cannot work with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.front_ends import TEXTS

import rabit
import rabit_torch
from rabit.testing import run_ranks
from rabit_torch.learning_rates import LearningRates

# What these leave is a step, and no gradient in another unit.
STEPS = {"onebit-adam", "onebit-lamb", "qadam", "demo", "zero-one-adam", "dabmd"}


def distributed(method: str, **arguments: Any) -> tuple[torch.nn.Parameter, Any]:
    parameter = torch.nn.Parameter(torch.ones(4, 8))
    inner = torch.optim.SGD([parameter], lr=0.125, **arguments)
    return parameter, rabit_torch.DistributedOptimizer(inner, [("p", parameter)], strategy=method)


def test_learning_rates_are_those_of_the_groups_that_there_are_now():
    first, second, added = (torch.nn.Parameter(torch.ones(1)) for _ in range(3))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.25}], lr=0.5)
    rates = LearningRates(optimizer)
    assert (rates.of(first), rates.of(second), rates.of(added)) == (0.5, 0.25, 1.0)

    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 2.0, 4.0
    optimizer.add_param_group({"params": [added], "lr": 8.0})
    rates.learn()

    assert (rates.of(first), rates.of(second), rates.of(added)) == (2.0, 4.0, 8.0)
    assert LearningRates(None).of(first) == 1.0


def test_ranks_stay_together_whose_optimizer_state_was_broadcast():
    def case(engine: Any) -> torch.Tensor:
        parameter, optimizer = distributed("slowmo:every=2")
        rabit_torch.broadcast_optimizer_state(optimizer, 0)
        for step in range(6):
            optimizer.param_groups[0]["lr"] = 0.125 / (1 + step)
            optimizer.zero_grad()
            ((1 + engine.rank) * parameter).sum().backward()
            optimizer.step()
        return parameter.detach()

    first, second = run_ranks(2, case)
    assert torch.equal(first, second)


@pytest.mark.parametrize("method", ["dabmd", "zero-one-adam"])
@pytest.mark.parametrize("option", ["weight_decay", "maximize"])
def test_what_a_method_that_takes_the_step_would_lose_is_refused(method, option):
    def case(_: Any) -> None:
        with pytest.raises(rabit.InvalidArgument, match=f"takes the step by itself, and {option} of SGD would be lost"):
            distributed(method, **{option: True})

    run_ranks(1, case)


def test_a_group_that_comes_later_is_looked_at_as_those_before():
    def case(_: Any) -> int:
        _, optimizer = distributed("onebit-adam")
        more = {"params": [torch.nn.Parameter(torch.ones(2))], "momentum": 0.9}
        with pytest.raises(rabit.InvalidArgument, match="keeps momentum by itself"):
            optimizer.add_param_group(more)
        optimizer.add_param_group({**more, "momentum": 0.0})
        return len(optimizer.param_groups)

    assert run_ranks(1, case) == [2]


def test_a_loss_scaler_divides_gradients_and_no_steps():
    def case(_: Any) -> set[str]:
        refused = set()
        for method in TEXTS:
            parameter, optimizer = distributed(TEXTS[method])
            # As Lightning asks, which then refuses to clip: what a clip would change are no gradients.
            assert getattr(optimizer, "_step_supports_amp_scaling", False) == (method in STEPS)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            if method == "dabmd":
                optimizer.strategy.samples = 1
            scaler.scale(parameter.sum()).backward()
            try:
                scaler.step(optimizer)
            except rabit.InvalidArgument as error:
                refused.add(method)
                assert "makes steps out of gradients, and GradScaler would divide them" in str(error)
                assert f"strategy {optimizer.strategy.spec} on rank" in str(error)
                torch.amp.GradScaler("cpu", enabled=False).step(optimizer)
        return refused

    for refused in run_ranks(2, case):
        assert refused == STEPS


def test_small_gradients_by_a_codec_come_to_the_same_bits_in_two_halves():
    def case(engine: Any) -> list[torch.Tensor]:
        found = []
        for overlap in ("backward", "reduce-scatter"):
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
            for number, each in enumerate(model.parameters()):
                each.data.normal_(generator=torch.Generator().manual_seed(number))
            optimizer = rabit_torch.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.125),
                model.named_parameters(),
                strategy="mean:codec=bf16",
                overlap=overlap,
            )
            for step in range(4):
                optimizer.zero_grad()
                generator = torch.Generator().manual_seed(10 * step + engine.rank)
                model(torch.randn(4, 8, generator=generator)).square().mean().backward()
                optimizer.step()
            optimizer.flush()
            found.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
        return found

    for backward, halves in run_ranks(2, case):
        assert torch.equal(backward, halves)
