"""Methods whose momentum travels, step by step against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from support import strategy_suite as suite

import rabit
import rabit.strategies as methods
from rabit.testing import run_ranks

RANKS, STEPS, LR = 3, 14, 0.1


def gradient(name, value, rank, step):
    return 0.5 * value + 0.2 * suite.noise(name, rank, step)


def run(method):
    return suite.Run(method, steps=STEPS, gradient=gradient, lr=lambda step: LR)


def start(name: str) -> np.ndarray:
    """The first values of a parameter: those of suite.Run."""
    random = np.random.default_rng(1)
    values = {each: random.standard_normal(shape) for each, shape in suite.SHAPES.items()}
    return values[name]


def test_one_bit_lamb_scales_the_ratio_of_its_warm_up_by_the_variance_that_goes_on():
    warmup = 6

    def expected(name):
        x = start(name)
        m, v, w = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
        trust, factor, factors = 0.0, 1.0, []
        for step in range(STEPS):
            g = np.mean([gradient(name, x, rank, step) for rank in range(RANKS)], axis=0)
            m = 0.9 * m + 0.1 * g
            w = 0.999 * w + 0.001 * g * g
            if step < warmup:
                v = w
                u = m / (np.sqrt(v) + 1e-6)
                ratio = np.clip(np.linalg.norm(x) / np.linalg.norm(u), 0.01, 10)
                trust = 0.9 * trust + 0.1 * ratio
            else:
                u = m / (np.sqrt(v) + 1e-6)
                factor = np.clip(
                    np.max((np.sqrt(v) + 1e-6) / (np.sqrt(w) + 1e-6)), 0.9 * factor, 1.1 * factor
                )
                factor = np.clip(factor, 0.5, 4.0)
                factors.append(factor)
                ratio = factor * trust / (1 - 0.9**warmup)
            x = x - LR * ratio * u
        return x, factors

    found = run_ranks(
        RANKS, run(lambda: methods.OneBitLamb(methods.Mean(), warmup)), deterministic=True
    )

    for name in suite.SHAPES:
        x, factors = expected(name)
        assert np.abs(found[0].values[name] - x).max() <= 1e-12
        assert len(set(factors)) > 2  # The factor moves in this run.


def test_zero_one_adam_steps_alone_between_meetings():
    method = {"start": 4, "refresh": 2, "grow": 3, "every": 4}
    shape = methods.ZeroOneAdam(methods.Mean(), **method)
    refreshed = [step for step in range(STEPS) if shape.calendar.refreshes(step)]
    met = [step for step in range(STEPS) if shape.calendar.meets(step)]
    assert refreshed == [0, 1, 2]
    assert met == [0, 1, 2, 3, 4, 5, 6, 7, 9, 11]

    def expected(name):
        together = start(name)
        xs = [together.copy() for _ in range(RANKS)]
        ms, us = [np.zeros_like(together)] * RANKS, [np.zeros_like(together)] * RANKS
        v, total, times = np.zeros_like(together), 0.0, 0
        for step in range(STEPS):
            gs = [gradient(name, xs[rank], rank, step) for rank in range(RANKS)]
            if step in refreshed:
                gs = [np.mean(gs, axis=0)] * RANKS
                v, times = 0.999 * v + 0.001 * gs[0] ** 2, times + 1
            root = np.sqrt(v / (1 - 0.999**times)) + 1e-8
            rate = LR / (1 - 0.9 ** (step + 1))
            total += rate
            ms = [0.9 * m + 0.1 * g for m, g in zip(ms, gs, strict=True)]
            us = [u + rate * m for u, m in zip(us, ms, strict=True)]
            xs = [x - rate * m / root for x, m in zip(xs, ms, strict=True)]
            if step in met:
                mean = np.mean(us, axis=0)
                together = together - mean / root
                xs, ms = [together] * RANKS, [mean / total] * RANKS
                us, total = [np.zeros_like(mean)] * RANKS, 0.0
        return xs

    found = run_ranks(
        RANKS, run(lambda: methods.ZeroOneAdam(methods.Mean(), **method)), deterministic=True
    )

    for name in suite.SHAPES:
        for outcome, x in zip(found, expected(name), strict=True):
            assert np.abs(outcome.values[name] - x).max() <= 1e-12
    assert suite.spread(found) > 0  # The last two steps were alone.


@pytest.mark.parametrize("every", [1, 4], ids=["in meetings", "alone"])
def test_an_entry_of_zero_one_adam_moves_no_further_than_adam_can(every):
    betas = (0.9, 0.99)
    bound = 0.1 / np.sqrt(0.01 * (1 - 0.81 / 0.99))

    def on_rank(engine):
        method = methods.ZeroOneAdam(methods.Mean(), 1, grow=1, every=every, betas=betas)
        trainer = methods.ArrayTrainer({"w": np.zeros(2)}, method, lr=LR, engine=engine)
        slot, moved = trainer.slots[0], []
        for step in range(5):  # The variance is that of step 0 and stays.
            before = slot.value.copy()
            trainer.step({"w": np.array([1e-6 if step == 0 else 1.0, 1.0])})
            moved.append(np.abs(slot.value - before))
        return method.bound, moved

    for found, moved in run_ranks(2, on_rank):
        assert found == pytest.approx(bound, rel=1e-12)
        rates = [LR / (1 - 0.9 ** (step + 1)) for step in range(5)]
        for rate, (rare, usual) in zip(rates[1:], moved[1:], strict=True):
            assert rare == pytest.approx(bound * rate, rel=1e-9)  # Unbounded: 1e5 times as much.
            assert usual == pytest.approx(LR, rel=1e-6)


def test_the_bound_of_zero_one_adam_hides_no_infinity():
    def on_rank(engine):
        trainer = methods.ArrayTrainer(
            {"w": np.zeros(2)}, methods.ZeroOneAdam(methods.Mean(), 1), lr=LR, engine=engine
        )
        for value in (1.0, np.inf):
            trainer.step({"w": np.array([value, 1.0])})
        return trainer.slots[0].value

    first, second = run_ranks(1, on_rank)[0]
    assert np.isinf(first) and np.isfinite(second)


def test_zero_one_adam_sends_no_signs_where_the_mean_gradient_has_travelled():
    seen: list[int] = []

    class Watched(methods.Mean):
        """The mean, and when it was asked for."""

        async def __call__(self, x, state, ranks):
            seen.append(ranks.step)
            return await super().__call__(x, state, ranks)

    def on_rank(engine):
        method = methods.ZeroOneAdam(Watched(), 6, refresh=2)
        trainer = methods.ArrayTrainer({"w": np.zeros(2)}, method, lr=LR, engine=engine)
        for _ in range(8):
            trainer.step({"w": np.ones(2)})
        return [step for step in range(8) if method.calendar.refreshes(step)]

    assert run_ranks(1, on_rank) == [[0, 1, 2, 4]]
    assert seen == [3, 5, 6, 7]


def test_a_parameter_that_nobody_uses_stays_where_it_is():
    def unused(name, value, rank, step):
        found = gradient(name, value, rank, step)
        found.reshape(-1)[:2] = 0
        return found

    exchange = methods.ErrorFeedback(methods.InEngine(rabit.Compression.sign(8, phases=2)))
    for method in (
        lambda: methods.OneBitLamb(exchange, 3),
        lambda: methods.ZeroOneAdam(exchange, 3, grow=2),
    ):
        found = run_ranks(2, suite.Run(method, steps=9, gradient=unused), deterministic=True)
        for each in found:
            moved = each.values["w"] - each.first["w"]
            assert np.all(np.isfinite(moved)) and np.all(moved.reshape(-1)[:2] == 0)
            assert np.all(moved.reshape(-1)[2:] != 0)


def test_a_learning_rate_of_zero_is_refused_where_ranks_meet():
    def on_rank(engine):
        method = methods.ZeroOneAdam(methods.Mean(), 3)
        trainer = methods.ArrayTrainer({"w": np.ones(2)}, method, lr=0.0, engine=engine)
        with pytest.raises(
            rabit.InvalidArgument, match="'w' on rank 0: 0/1 Adam divides by the sum"
        ):
            trainer.step({"w": np.ones(2)})

    run_ranks(1, on_rank)


@pytest.mark.filterwarnings("error")
def test_a_parameter_without_gradients_is_no_division_by_zero_for_zero_one_adam():
    def train(engine):
        def descend(slot):
            if slot.name == "w":
                slot.value = slot.value - slot.lr * slot.grad

        values = {"w": np.ones(4), "frozen": np.full(4, 3.0)}
        method = methods.ZeroOneAdam(methods.Mean(), 2, grow=2, every=4)
        trainer = methods.ArrayTrainer(values, method, lr=0.01, update=descend, engine=engine)
        for _ in range(6):
            trainer.step({"w": np.ones(4)})
        return values["w"][0], values["frozen"].tolist()

    for moved, frozen in run_ranks(2, train):
        assert moved < 1
        assert frozen == [3.0] * 4
