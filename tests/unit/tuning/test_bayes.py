"""The Gaussian process against closed forms, and the search against known functions."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from rabit.tuning.bayes import GaussianProcess, Minimizer, expected_improvement


def matern(distance: float) -> float:
    scaled = math.sqrt(5.0) * distance
    return (1.0 + scaled + scaled**2 / 3.0) * math.exp(-scaled)


def test_the_posterior_of_two_points_has_the_closed_form():
    points, values = np.array([[0.0], [0.4]]), np.array([1.0, 3.0])
    length, noise = 0.5, 0.1
    process = GaussianProcess(1)

    process.condition(points, values, np.array([length]), noise)
    mean, deviation = process.predict(np.array([[0.1]]))

    a, b = matern(0.1 / length), matern(0.3 / length)
    k, own = matern(0.4 / length), 1.0 + noise**2
    determinant = own * own - k * k
    inverse = np.array([[own, -k], [-k, own]]) / determinant
    centred = values - 2.0
    cross = np.array([a, b])
    assert mean[0] == pytest.approx(2.0 + cross @ inverse @ centred, rel=1e-7)
    scale = math.sqrt(centred @ inverse @ centred / 2)
    assert deviation[0] == pytest.approx(scale * math.sqrt(1 - cross @ inverse @ cross), rel=1e-6)


def test_without_noise_the_process_passes_through_its_points_and_returns_to_the_mean_far_away():
    points, values = np.array([[0.1, 0.2], [0.5, 0.9], [0.8, 0.3]]), np.array([4.0, -1.0, 2.0])
    process = GaussianProcess(2)

    process.condition(points, values, np.array([0.3, 0.3]), 1e-6)

    mean, deviation = process.predict(points)
    assert mean == pytest.approx(values, abs=1e-4)
    assert deviation == pytest.approx(np.zeros(3), abs=1e-3)
    mean, deviation = process.predict(np.array([[50.0, 50.0]]))
    assert mean[0] == pytest.approx(values.mean())
    assert deviation[0] == pytest.approx(process.scale)


def test_a_name_is_equal_or_different_whatever_its_number():
    process = GaussianProcess(2, categorical=[1])
    points = np.array([[0.5, 0.0], [0.5, 1.0]])
    process.condition(points, np.array([0.0, 1.0]), np.array([0.5, 0.5]), 0.01)

    mean, _ = process.predict(np.array([[0.5, 2.0], [0.5, 9.0]]))

    assert mean[0] == mean[1] == pytest.approx(0.5)


def test_the_fit_finds_a_short_length_and_the_noise():
    random = np.random.default_rng(3)
    points = random.random((40, 2))
    smooth = np.sin(12 * points[:, 0])  # wild in the first dimension, constant in the second

    quiet, loud = GaussianProcess(2), GaussianProcess(2)
    quiet.fit(points, smooth)
    loud.fit(points, smooth + random.normal(scale=0.5, size=40))

    assert quiet.lengths[0] < 0.5 < quiet.lengths[1]
    assert quiet.noise < 0.05 < loud.noise


def test_expected_improvement_follows_the_formula():
    mean, deviation = np.array([1.0, 3.0, 2.0, 1.5]), np.array([0.5, 2.0, 0.0, 0.0])

    gains = expected_improvement(mean, deviation, 2.0)

    samples = np.random.default_rng(1).normal(size=400_000)
    for index in (0, 1):
        value = np.maximum(2.0 - (mean[index] + deviation[index] * samples), 0).mean()
        assert gains[index] == pytest.approx(value, rel=0.01)
    # At z = 2: 1 * Phi(2) + 0.5 * phi(2).
    assert gains[0] == pytest.approx(0.97724987 + 0.5 * 0.05399097, rel=1e-6)
    assert gains[2:] == pytest.approx([0.0, 0.5])


def parabola(x):
    return 5.0 + (40 * x[0] - 20.0) ** 2


def branin(x):
    u, v = 15 * x[0] - 5, 15 * x[1]
    curve = v - 5.1 / (4 * math.pi**2) * u * u + 5 / math.pi * u - 6
    return curve**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(u) + 10


def valley(x):
    """Like a step time over four knobs on logarithmic scales: flat, with a cliff and an optimum."""
    costs = (2.0 * (x[0] - 0.6) ** 2, 0.8 * max(0.3 - x[1], 0.0), 0.3 * (x[2] - 0.8) ** 2)
    return 1.0 + sum(costs) + 0.2 * abs(x[3] - 0.5) + 1.5 * (x[0] > 0.85)


def search(function, dimensions, count, seed, noise=0.0):
    random = np.random.default_rng(seed)
    minimizer = Minimizer(dimensions, seed=seed)
    for _ in range(count):
        point = minimizer.ask()
        minimizer.tell(point, function(point) + noise * random.normal())
    return min(function(each) for each in minimizer.points), minimizer


def guess(function, dimensions, count, seed):
    return min(map(function, np.random.default_rng(seed).random((count, dimensions))))


def test_a_parabola_is_solved_within_15_probes():
    for seed in range(3):
        _, minimizer = search(parabola, 1, 15, seed)
        assert abs(40 * minimizer.best()[0][0] - 20.0) < 1.0


@pytest.mark.parametrize(
    ("function", "dimensions", "lowest", "count"),
    [(branin, 2, 0.397887, 30), (valley, 4, 1.0, 30)],
)
def test_the_search_ends_far_below_random_guesses(function, dimensions, lowest, count):
    seeds = range(4)
    ours = np.median([search(function, dimensions, count, each)[0] for each in seeds]) - lowest
    luck = [guess(function, dimensions, count, each) for each in range(40)]

    assert ours < 0.5 * (np.median(luck) - lowest)


def test_noise_does_not_lead_the_search_astray():
    for seed in range(3):
        _, minimizer = search(valley, 4, 30, seed, noise=0.03)
        assert valley(minimizer.best()[0]) < 1.12


def test_only_candidates_are_proposed_and_each_once():
    grid = np.array([[x, y] for x in (0.0, 0.5, 1.0) for y in (0.0, 1.0)])
    minimizer = Minimizer(2, seed=1, candidates=grid, initial=2)
    seen = []
    while (point := minimizer.ask()) is not None:
        seen.append(tuple(point))
        minimizer.tell(point, float(point.sum()))

    assert sorted(seen) == sorted(map(tuple, grid))
    assert tuple(minimizer.best()[0]) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_points_take_every_name(seed):
    grid = np.array([[name, x] for name in (0.0, 0.5, 1.0) for x in np.linspace(0.0, 1.0, 4)])
    minimizer = Minimizer(2, seed=seed, candidates=grid, categorical=[0], initial=4)
    minimizer.tell(grid[0], 1.0)
    for _ in range(2):
        point = minimizer.ask()
        assert point is not None
        minimizer.tell(point, 1.0)

    assert {point[0] for point in minimizer.points} == {0.0, 0.5, 1.0}


def test_the_same_seed_asks_the_same_questions():
    runs = [search(branin, 2, 12, 5)[1].points for _ in range(2)]
    assert np.array_equal(runs[0], runs[1])


@pytest.mark.parametrize("sampler", ["TPESampler", "GPSampler"])
def test_the_search_is_as_good_as_that_of_optuna(sampler):
    """Against its default, and against the one that works as ours does."""
    optuna = pytest.importorskip("optuna")
    if sampler == "GPSampler":
        pytest.importorskip("torch")
        pytest.importorskip("scipy")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

    def theirs(function, dimensions, seed):
        study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed))

        def objective(trial):
            return function([trial.suggest_float(f"x{i}", 0, 1) for i in range(dimensions)])

        study.optimize(objective, n_trials=30)
        return study.best_value

    for function, dimensions, lowest in ((branin, 2, 0.397887), (valley, 4, 1.0)):
        ours = np.median([search(function, dimensions, 30, seed)[0] for seed in range(10)])
        other = np.median([theirs(function, dimensions, seed) for seed in range(10)])
        assert ours - lowest <= 1.1 * (other - lowest)
