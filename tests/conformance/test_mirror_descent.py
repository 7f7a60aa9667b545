"""Any-batch mirror descent: unions, consensus, mirror maps, deadlines and lost links."""

from __future__ import annotations

import numpy as np
import pytest
from support import strategy_suite as suite

import rabit
import rabit.strategies as methods
from rabit.testing import run_ranks


@pytest.mark.parametrize("rounds", [1, 5, 20])
def test_the_distance_of_the_ranks_shrinks_by_the_second_eigenvalue_each_round(rounds):
    ranks = 6
    second = np.sort(np.abs(np.linalg.eigvalsh(weights_of("ring", ranks))))[-2]

    def train(engine):
        method = methods.AnyBatchMirrorDescent(graph="ring", rounds=rounds)
        method.samples = 1
        w = np.random.default_rng(engine.rank).standard_normal(8)
        first = w.copy()
        trainer = methods.ArrayTrainer({"w": w}, method, lr=1.0, engine=engine)
        trainer.step({"w": np.zeros(8)})
        return first, w

    firsts, lasts = (np.array(each) for each in zip(*run_ranks(ranks, train), strict=True))

    assert np.abs(lasts.mean(axis=0) - firsts.mean(axis=0)).max() <= 1e-12
    before, after = (np.linalg.norm(each - each.mean(axis=0)) for each in (firsts, lasts))
    assert 0 < after <= before * second**rounds * (1 + 1e-9)


def weights_of(graph, size):
    from rabit.strategies.gossip import graph_weights

    return graph_weights(graph, size, 0)


def test_in_the_simplex_a_step_is_multiplicative_and_rows_stay_distributions():
    steps = 40
    costs = np.array([0.9, 0.1, 0.5])

    def train(engine):
        method = methods.AnyBatchMirrorDescent(methods.Entropy(), graph="ring")
        w = np.full((2, 3), 1 / 3)
        trainer = methods.ArrayTrainer({"w": w}, method, lr=1.0, engine=engine)
        random = np.random.default_rng([3, engine.rank])
        for step in range(steps):
            trainer.set_lr(0.5 / np.sqrt(step + 1))
            method.samples = 1 + (step + engine.rank) % 3
            noise = random.standard_normal((method.samples, 2, 3))
            trainer.step({"w": (costs + 0.2 * noise).sum(axis=0)})
            assert np.all(w >= 0) and np.abs(w.sum(axis=-1) - 1).max() <= 1e-12
        return w

    for w in run_ranks(3, train):
        assert np.all(w[:, 1] > 0.8)  # Most weight goes to what costs least.


def test_the_euclidean_map_ends_at_the_edge_of_its_ball():
    mirror = methods.Euclidean(radius=2.0)

    inside, outside = (
        mirror(np.array([1.0, 0]), np.array([0, 1.0]), 1.0),
        mirror(np.array([3.0, 0]), np.array([0, 4.0]), 1.0),
    )

    assert np.array_equal(inside, [1.0, -1.0])
    assert np.allclose(outside, [1.2, -1.6], atol=1e-15)


def test_regret_against_a_fixed_optimum_grows_slower_than_the_root_of_time():
    steps, ranks = 256, 4

    def train(engine):
        method = methods.AnyBatchMirrorDescent(graph="ring")
        random = np.random.default_rng([11, engine.rank])
        best = np.linspace(-1, 1, 6)
        w = np.zeros(6)
        trainer = methods.ArrayTrainer({"w": w}, method, lr=1.0, engine=engine)
        regret = []
        for step in range(steps):
            method.samples = 1 if engine.rank == 0 else 10  # one rank is ten times slower
            regret.append(0.5 * float(((w - best) ** 2).sum()))
            data = best + 0.5 * random.standard_normal((method.samples, 6))
            trainer.set_lr(0.5 / np.sqrt(step + 1))
            trainer.step({"w": (w - data).sum(axis=0)})
        return np.cumsum(regret)

    total = np.mean(run_ranks(ranks, train, timeout=60), axis=0)

    times = np.arange(1, steps + 1)
    slope = np.polyfit(np.log(times[15:]), np.log(total[15:]), 1)[0]
    assert slope <= 0.55


def test_links_are_lost_on_both_ends_and_the_mean_stays():
    ranks = 4
    graph = methods.losing_links("all", ranks, 0.5, seed=5)
    seen = [graph(step) for step in range(20)]
    assert len({str(each) for each in seen}) > 10
    assert all(rank in each[peer] for each in seen for rank in each for peer in each[rank])
    run = suite.Run(
        lambda: methods.Gossip(graph), steps=20, gradient=suite.nothing, apart=1.0, dtype=np.float64
    )

    found = run_ranks(ranks, run, timeout=30)

    firsts, lasts = (
        np.array([getattr(each, name)["w"] for each in found]) for name in ("first", "values")
    )
    assert np.abs(lasts.mean(axis=0) - firsts.mean(axis=0)).max() <= 1e-12
    assert suite.spread(found) < 1e-2  # 3 before


def test_a_rank_that_nobody_with_samples_reaches_stays_where_it_is():
    def train(engine):
        method = methods.AnyBatchMirrorDescent(graph={0: [1], 1: [0], 2: []})
        w = np.full(2, float(engine.rank))
        trainer = methods.ArrayTrainer({"w": w}, method, lr=1.0, engine=engine)
        method.samples = 0
        trainer.step({"w": np.ones(2)})
        return w.tolist()

    assert run_ranks(3, train) == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


def test_a_deadline_ends_a_step_after_the_least_parts():
    now = [100.0]
    deadline = methods.Deadline(1.0, least=2, clock=lambda: now[0])

    def done(seconds):
        found = []
        for part in deadline.of(range(6)):
            found.append(part)
            now[0] += seconds
        return found

    assert done(0.3) == [0, 1, 2, 3]
    assert done(5.0) == [0, 1]
    assert done(0.01) == [0, 1, 2, 3, 4, 5]


class VirtualTime:
    """A clock that moves by what is done; ranks that meet continue at the time of the latest."""

    def __init__(self) -> None:
        self.now = 0.0

    def meet(self, name: str) -> None:
        self.now = float(rabit.allreduce(np.array([self.now]), name=name, op=rabit.Max)[0])


def trained_by_deadline(slowness: float, steps: int = 200) -> tuple[list[np.ndarray], np.ndarray]:
    """(regret of each rank, samples of each rank in a unit of time); rank 0 is so many times slower."""
    best = np.linspace(-1, 1, 6)

    def train(engine):
        time = VirtualTime()
        method = methods.AnyBatchMirrorDescent(graph="ring")
        deadline = methods.Deadline(60.0, clock=lambda: time.now)
        random = np.random.default_rng([11, engine.rank])
        w, regret, samples = np.zeros(6), [], 0
        trainer = methods.ArrayTrainer({"w": w}, method, lr=1.0, engine=engine)
        for step in range(steps):
            regret.append(0.5 * float(((w - best) ** 2).sum()))
            total, method.samples = np.zeros(6), 0
            for _ in deadline.of(range(1000)):
                total += w - (best + 2 * random.standard_normal(6))
                method.samples += 1
                time.now += slowness if engine.rank == 0 else 1.0
            samples += method.samples
            trainer.set_lr(0.5 / np.sqrt(step + 1))
            trainer.step({"w": total})
            time.meet(f"time.{step}")
        return np.cumsum(regret), samples / time.now

    regrets, rates = zip(*run_ranks(4, train, timeout=60), strict=True)
    return list(regrets), np.array(rates)


def test_a_rank_that_is_five_times_slower_costs_the_others_little():
    _, alone = trained_by_deadline(1.0, steps=20)
    regrets, beside = trained_by_deadline(4.9)  # It never ends with the deadline.

    assert np.all(beside[1:] >= 0.9 * alone[1:])
    assert beside[0] >= 0.9 * alone[0] / 4.9
    total = np.mean(regrets, axis=0)
    times = np.arange(1, len(total) + 1)
    assert np.polyfit(np.log(times[15:]), np.log(total[15:]), 1)[0] <= 0.55


def test_a_deadline_without_time_is_refused():
    with pytest.raises(rabit.InvalidArgument, match=r"Deadline\(seconds=0\): seconds takes a number in \(0, inf\)"):
        methods.Deadline(0)
