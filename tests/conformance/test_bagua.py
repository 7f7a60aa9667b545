"""Bagua's algorithms against plain NumPy that has all ranks in one place.

Net 2-10-50-4, ten steps, every rank with data of its own; the formulas are those of Gan et al.,
"BAGUA: Scaling up Distributed Learning with System Relaxations", 2021, and of its released code.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import threading

import numpy as np
import pytest

import rabit.strategies as methods
from rabit.testing import run_ranks

RANKS, STEPS, RATE = 4, 10, 0.1
WIDTHS = (2, 10, 50, 4)


def first_parameters(seed=0):
    random = np.random.default_rng(seed)
    found = {}
    for layer, (before, after) in enumerate(itertools.pairwise(WIDTHS)):
        found[f"{layer}.w"] = random.standard_normal((before, after)) / np.sqrt(before)
        found[f"{layer}.b"] = np.zeros(after)
    return found


def gradients(parameters, rank, step):
    """Of the mean squared error of the net with ReLU, on a batch of this rank and step."""
    random = np.random.default_rng([7, rank, step])
    inputs, targets = random.standard_normal((8, 2)), random.standard_normal((8, 4))
    layers, activations = len(WIDTHS) - 1, [inputs]
    for layer in range(layers):
        x = activations[-1] @ parameters[f"{layer}.w"] + parameters[f"{layer}.b"]
        activations.append(np.maximum(x, 0) if layer + 1 < layers else x)
    error = 2 * (activations[-1] - targets) / targets.size
    found = {}
    for layer in reversed(range(layers)):
        found[f"{layer}.w"] = activations[layer].T @ error
        found[f"{layer}.b"] = error.sum(axis=0)
        error = (error @ parameters[f"{layer}.w"].T) * (activations[layer] > 0)
    return found


def trained(make, seed=0, at_start=False):
    """The parameters of each rank after all steps.  at_start: gradients are those of the first ones."""

    def train(engine):
        parameters = first_parameters(seed)
        trainer = methods.ArrayTrainer(parameters, make(), lr=RATE, engine=engine)
        for step in range(STEPS):
            where = first_parameters(seed) if at_start else parameters
            trainer.step(gradients(where, engine.rank, step))
        trainer.pipeline.finish()
        return parameters

    return run_ranks(RANKS, train, timeout=60, deterministic=True)


def assert_equal(found, expected, tolerance=1e-12):
    for mine, theirs in zip(found, expected, strict=True):
        for name in mine:
            assert np.abs(mine[name] - theirs[name]).max() <= tolerance, name


def averaged(all_x, groups_of_step, turn):
    """All ranks' parameters after an exchange in which rank i takes the mean over its group."""
    return [
        {name: np.mean([all_x[j][name] for j in groups_of_step(turn, i)], axis=0) for name in x}
        for i, x in enumerate(all_x)
    ]


def everybody(turn, rank):
    return range(RANKS)


def pairs(turn, rank):
    """The table of the released code for four ranks: [2, 3, 0, 1], then [3, 2, 1, 0]."""
    return rank, ([2, 3, 0, 1], [3, 2, 1, 0])[turn % 2][rank]


def decentralized(groups, every):
    all_x, turn = [first_parameters() for _ in range(RANKS)], 0
    for step in range(STEPS):
        all_g = [gradients(x, rank, step) for rank, x in enumerate(all_x)]
        if step and step % every == 0:  # At first all are equal.
            all_x, turn = averaged(all_x, groups, turn), turn + 1
        all_x = [
            {name: x[name] - RATE * g[name] for name in x}
            for x, g in zip(all_x, all_g, strict=True)
        ]
    return averaged(all_x, groups, turn) if STEPS % every == 0 else all_x


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize(("peers", "groups"), [("all", everybody), ("shift-one", pairs)])
def test_decentralized_averages_what_the_gradient_was_taken_of(peers, groups, every):
    found = trained(lambda: methods.Decentralized(peers, every))

    assert_equal(found, decentralized(groups, every))


def eight_bits(x):
    """What is known of x after eight bits between its extremes."""
    low, high = x.min(), x.max()
    if high == low:
        return np.full_like(x, low)
    step = (high - low) / 255
    return low + np.rint((x - low) / step) * step


def low_precision(every):
    all_x = [first_parameters() for _ in range(RANKS)]
    known = [{name: x.copy() for name, x in each.items()} for each in all_x]  # W of every rank
    for step in range(STEPS):
        for rank, x in enumerate(all_x):
            g = gradients(x, rank, step)
            for name in x:
                x[name] = x[name] - RATE * g[name]
        if (step + 1) % every:
            continue
        moves = []
        for rank, x in enumerate(all_x):
            left, right = known[rank - 1], known[(rank + 1) % RANKS]
            moves.append(
                {
                    name: eight_bits(
                        x[name] + (left[name] + right[name]) / 3 - 5 / 3 * known[rank][name]
                    )
                    for name in x
                }
            )
        for rank, move in enumerate(moves):
            for name in move:
                known[rank][name] = known[rank][name] + move[name]
                all_x[rank][name] = known[rank][name].copy()
    return all_x, known


@pytest.mark.parametrize("every", [1, 2])
def test_the_ring_in_eight_bits_follows_its_formula(every):
    found = trained(lambda: methods.LowPrecisionRing(every=every))

    expected, _ = low_precision(every)
    assert_equal(found, expected, 1e-9)


def test_neighbours_know_each_other_bit_for_bit():
    def train(engine):
        parameters = first_parameters()
        trainer = methods.ArrayTrainer(
            parameters, methods.LowPrecisionRing(), lr=RATE, engine=engine
        )
        for step in range(STEPS):
            trainer.step(gradients(parameters, engine.rank, step))
        return {slot.name: slot.state for slot in trainer.slots}

    states = run_ranks(RANKS, train, timeout=60)

    for rank, mine in enumerate(states):
        for name, state in mine.items():
            assert np.array_equal(state.left, states[rank - 1][name].own)
            assert np.array_equal(state.right, states[(rank + 1) % RANKS][name].own)


def test_the_mean_of_gradients_is_one_net_on_all_data():
    found = trained(lambda: methods.Synchronous(methods.Mean()))

    one = first_parameters()
    for step in range(STEPS):
        all_g = [gradients(one, rank, step) for rank in range(RANKS)]
        one = {
            name: x - RATE * np.mean([g[name] for g in all_g], axis=0) for name, x in one.items()
        }
    assert_equal(found, [one] * RANKS)
    assert all(np.array_equal(each[name], found[0][name]) for each in found for name in one)


def bytegrad(values):
    """The mean of every rank's values: its chunks in eight bits, and their means once more."""
    flat = [each.reshape(-1) for each in values]
    ends = np.cumsum([len(flat[0]) // RANKS + (i < len(flat[0]) % RANKS) for i in range(RANKS)])
    chunks = [np.split(each, ends[:-1]) for each in flat]
    sums = [
        eight_bits(np.mean([eight_bits(each[i]) for each in chunks], axis=0))
        for i in range(RANKS)
        if chunks[0][i].size
    ]
    return np.concatenate(sums).reshape(values[0].shape)


def test_eight_bits_in_two_phases_follow_their_formula():
    found = trained(lambda: methods.Synchronous(methods.TwoPhase(methods.MinMax8())))

    one = first_parameters()
    for step in range(STEPS):
        all_g = [gradients(one, rank, step) for rank in range(RANKS)]
        one = {name: x - RATE * bytegrad([g[name] for g in all_g]) for name, x in one.items()}
    assert_equal(found, [one] * RANKS, 1e-9)


WARM_UP = 4


def qadam():
    x = first_parameters()
    m, v = ({name: np.zeros_like(each) for name, each in x.items()} for _ in range(2))
    for step in range(STEPS):
        all_g = [gradients(first_parameters(), rank, step) for rank in range(RANKS)]
        for name in x:
            g = [each[name] for each in all_g]
            if step < WARM_UP:
                m[name] = 0.9 * m[name] + 0.1 * np.mean(g, axis=0)
                v[name] = 0.999 * v[name] + 0.001 * np.mean(g, axis=0) ** 2
            else:
                m[name] = bytegrad([0.9 * m[name] + 0.1 * each for each in g])
            seen = min(step + 1, WARM_UP)  # The variance stays, and so does its correction.
            root = np.sqrt(v[name] / (1 - 0.999**seen))
            update = m[name] / (1 - 0.9 ** (step + 1)) / (root + 1e-8)
            x[name] = x[name] - RATE * np.where(v[name] > 0, update, 0)  # 8 bits may miss a zero.
    return x


def test_qadam_follows_its_formula_before_and_after_its_warm_up():
    """Where a code falls must not depend on the rounding of earlier steps: gradients are given."""
    found = trained(
        lambda: methods.OneBitAdam(methods.TwoPhase(methods.MinMax8()), WARM_UP), at_start=True
    )

    assert_equal(found, [qadam()] * RANKS, 1e-8)


class OwnQAdam(methods.Strategy):
    """QAdam as a user writes it: Adam on the mean gradient first, then momentum in eight bits."""

    has_momentum = True

    def __init__(self, warmup, betas=(0.9, 0.999), eps=1e-8):
        self.warmup, self.betas, self.eps = warmup, betas, eps
        self.exchange = methods.TwoPhase(methods.MinMax8())

    def plan(self, slots):
        for slot in slots:
            if slot.state is None:
                slot.state = {key: np.zeros(slot.shape, slot.dtype) for key in "mv"}

    async def gradient(self, slot, ranks):
        (b1, b2), state = self.betas, slot.state
        if ranks.step < self.warmup:
            g = await ranks.mean(slot.grad)
            m = b1 * state["m"] + (1 - b1) * g
            v = b2 * state["v"] + (1 - b2) * g * g
        else:
            mine = b1 * state["m"] + (1 - b1) * slot.grad
            m, v = (await self.exchange(mine, None, ranks)).value, state["v"]
        slot.state = {"m": m, "v": v}
        seen = min(ranks.step + 1, self.warmup)
        root = np.sqrt(v / (1 - b2**seen)) + self.eps
        slot.grad = np.where(v > 0, m / (1 - b1 ** (ranks.step + 1)) / root, 0)


def test_a_method_of_a_user_s_own_equals_the_one_that_is_built_in():
    built_in = methods.OneBitAdam(methods.TwoPhase(methods.MinMax8()), WARM_UP)

    own = trained(lambda: OwnQAdam(WARM_UP), at_start=True)

    assert len(inspect.getsource(OwnQAdam).splitlines()) <= 60
    assert_equal(own, trained(lambda: copy.deepcopy(built_in), at_start=True), 1e-9)


def test_two_nets_in_one_program_do_not_disturb_each_other():
    def train(engine):
        nets = [first_parameters(seed) for seed in (1, 2)]
        makes = (methods.LowPrecisionRing, methods.Decentralized)
        trainers = [
            methods.ArrayTrainer(net, make(), lr=RATE, engine=engine, name=str(number))
            for number, (net, make) in enumerate(zip(nets, makes, strict=True))
        ]
        for step in range(STEPS):
            turns = zip(nets, trainers, strict=True)
            for net, trainer in turns if (step + engine.rank) % 2 else reversed(list(turns)):
                trainer.step(gradients(net, engine.rank, step))
        for trainer in trainers:
            trainer.pipeline.finish()
        return nets

    both = run_ranks(RANKS, train, timeout=60, deterministic=True)

    assert_equal([each[0] for each in both], trained(methods.LowPrecisionRing, 1))
    assert_equal([each[1] for each in both], trained(methods.Decentralized, 2))


@pytest.mark.parametrize(
    "x",
    [
        np.array([-1.0, 1.0]),  # where the codes of the released library underflow
        np.array([-1.0, -0.5, 0.25, 1.0]),
        np.zeros(5),
        np.full(7, 3.25),
        1e4 + np.linspace(0, 100, 33),
        np.array([5.0]),
    ],
)
def test_eight_bits_are_within_half_a_step(x):
    x = x.astype(np.float32)
    codec = methods.MinMax8()

    bounds, codes = codec.encode(x, lambda: np.random.default_rng(0))
    error = np.abs(codec.decode((bounds, codes), x) - x).max()

    assert codes.dtype == np.uint8
    assert error <= 0.51 * (x.max() - x.min()) / 255


def test_an_average_keeps_the_mean_of_the_models_while_training_pauses():
    def train(engine):
        values = {"w": np.random.default_rng(engine.rank).standard_normal(50)}
        first = values["w"].copy()
        trainer = methods.ArrayTrainer(values, methods.AsyncAverage(), lr=RATE, engine=engine)
        means = []
        for _ in range(3):
            trainer.step({"w": np.zeros(50)})
            trainer.pipeline.finish()
            means.append(values["w"].copy())
        return first, means

    firsts, found = zip(*run_ranks(RANKS, train, timeout=60), strict=True)

    for after in zip(*found, strict=True):
        assert np.abs(np.mean(after, axis=0) - np.mean(firsts, axis=0)).max() <= 1e-12
    assert all(np.allclose(each[0], found[0][0], atol=1e-12) for each in found)


def test_nobody_waits_for_a_rank_that_stands_still():
    """Thirty steps of the others are one of the slow rank: it continues only when they have done them."""
    away = threading.Barrier(RANKS)

    def train(engine):
        values = {"w": np.full(50, float(engine.rank))}
        trainer = methods.ArrayTrainer(values, methods.AsyncAverage(), lr=RATE, engine=engine)
        trainer.step({"w": np.zeros(50)})
        for _ in range(30 if engine.rank else 0):
            trainer.step({"w": np.zeros(50)})
        away.wait(30)  # Broken, which raises, if somebody waits for rank 0 above.
        for _ in range(3):
            trainer.step({"w": np.zeros(50)})
        trainer.pipeline.finish()
        return trainer.pipeline.step, values["w"]

    steps, found = zip(*run_ranks(RANKS, train, timeout=60), strict=True)

    assert steps == (4, 34, 34, 34)
    assert np.abs(np.mean(found, axis=0) - np.mean(range(RANKS))).max() <= 1e-12
    assert np.ptp(found, axis=0).max() < RANKS - 1


@pytest.mark.parametrize(
    "name",
    ["mean", "bytegrad", "qadam", "decentralized", "lowprecision", "async"],
)
def test_it_has_a_name_and_the_method_can_be_changed_while_training(name):
    def train(engine):
        parameters = first_parameters()
        losses = []
        for spec in ("mean", name, "mean"):
            trainer = methods.ArrayTrainer(parameters, methods.make(spec), lr=RATE, engine=engine)
            for step in range(3):
                trainer.step(gradients(parameters, engine.rank, step))
            trainer.pipeline.finish()
            losses.append(all(np.isfinite(each).all() for each in parameters.values()))
        return losses

    assert run_ranks(RANKS, train, timeout=60) == [[True] * 3] * RANKS


@pytest.mark.parametrize(
    ("make", "moves"),
    [
        (lambda: methods.Decentralized("all"), 0),
        (lambda: methods.Decentralized("shift-one"), 0),
        (lambda: methods.ZeroOneAdam(methods.Mean(), 100), 1),  # whose step is bounded by the rate
    ],
)
def test_parameters_that_are_changed_between_steps_stay_changed(make, moves):
    def train(engine):
        values = {"w": np.full(5, float(engine.rank % 2))}
        trainer = methods.ArrayTrainer(values, make(), lr=1e-3, engine=engine)
        for _ in range(3):
            trainer.step({"w": np.full(5, float(moves))})
        values["w"][:] = 7.0  # as a checkpoint that is loaded
        for _ in range(3):
            trainer.step({"w": np.full(5, float(moves))})
        trainer.pipeline.finish()
        return values["w"]

    found = run_ranks(2, train, timeout=60)

    assert all(np.abs(each - 7).max() <= 0.02 for each in found)
