"""Training with a divided optimizer state is training without, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import rabit
from rabit.sharding import ShardedState, SquareSum, adamw, momentum, sgd
from rabit.testing import run_ranks

SHAPES = {"w": (33, 65), "b": (65,), "s": (), "row": (1, 100), "empty": (0, 3)}
UPDATES = {
    "sgd": lambda: sgd(0.1, 0.01),
    "momentum": lambda: momentum(0.1),
    "adamw": lambda: adamw(0.1),
}
STEPS = 5


def arrays(*seed):
    random = np.random.default_rng(seed)
    return {
        name: np.asarray(random.standard_normal(shape), np.float32)
        for name, shape in SHAPES.items()
    }


def train_sharded(state, rank, steps, clip=None):
    return [state.step(arrays(rank, step), clip_norm=clip) for step in steps]


def train_whole(engine, update, clip):
    parameters, states, norms = arrays(99), {name: {} for name in SHAPES}, []
    for step in range(STEPS):
        gradients = {
            name: np.asarray(rabit.allreduce(value, name=name, engine=engine))
            for name, value in arrays(engine.rank, step).items()
        }
        if clip is not None:
            squares = SquareSum()
            for value in gradients.values():
                squares.add(value)
            norms.append(squares.norm())
            factor = np.float32(min(1.0, clip / (norms[-1] + 1e-6)))
            gradients = {name: np.asarray(value * factor) for name, value in gradients.items()}
        for name, parameter in parameters.items():
            flat = parameter.reshape(-1)
            update(flat, gradients[name].reshape(-1), states[name], step + 1)
            parameters[name] = flat.reshape(parameter.shape)
    return parameters, states, norms or [None] * STEPS


def bits(values):
    return {name: np.asarray(value).tobytes() for name, value in values.items()}


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_parameters_state_and_norm_are_those_of_training_without(size, name, clip):
    def run(engine):
        state = ShardedState(arrays(99), UPDATES[name](), engine=engine)
        norms = train_sharded(state, engine.rank, range(STEPS), clip)
        return bits(state.parameters), norms, state.state_dict()["state"]

    sharded = run_ranks(size, run, deterministic=True)
    parameters, states, norms = run_ranks(
        size, lambda engine: train_whole(engine, UPDATES[name](), clip), deterministic=True
    )[0]

    for found, found_norms, _ in sharded:
        assert found == bits(parameters)
        assert found_norms == norms
    for tensor, state in states.items():
        for key, whole in state.items():
            joined = np.concatenate([parts[key][tensor].value for _, _, parts in sharded])
            assert joined.tobytes() == whole.tobytes()


def test_a_rank_keeps_its_part_of_the_state():
    def run(engine):
        state = ShardedState({"x": np.ones(6400, np.float32)}, adamw(), engine=engine)
        state.step({"x": np.ones(6400, np.float32)})
        return sum(part["x"].value.nbytes for part in state.state_dict()["state"].values())

    assert run_ranks(4, run) == [2 * 4 * 1600] * 4


@pytest.mark.parametrize("after", [1, 2, 3, 4, 7])
def test_a_state_of_four_ranks_goes_on_in_a_job_of_any_size(after, tmp_path):
    def save(engine):
        with rabit.checkpoint.Checkpoint(tmp_path, engine=engine) as checkpoint:
            state = ShardedState(arrays(99), adamw(0.1), engine=engine)
            train_sharded(state, engine.rank, range(3))
            checkpoint.save(state.state_dict(), step=3)
        return state.state_dict()

    def load(engine):
        with rabit.checkpoint.Checkpoint(tmp_path, engine=engine) as checkpoint:
            found = checkpoint.restore().state
        state = ShardedState(arrays(0), adamw(0.1), engine=engine)
        state.load_state_dict(found)
        return state.state_dict()

    saved, loaded = run_ranks(4, save), run_ranks(after, load)

    for found in loaded:
        assert bits(found["parameters"]) == bits(saved[0]["parameters"])
        assert found["steps"] == 3
    for key in ("mean", "square"):
        for name in SHAPES:
            before = np.concatenate([state["state"][key][name].value for state in saved])
            joined = np.concatenate([state["state"][key][name].value for state in loaded])
            assert joined.tobytes() == before.tobytes()
            assert joined.size == np.prod(SHAPES[name], dtype=int)


def test_a_resumed_job_of_the_same_size_has_the_bits_of_one_that_went_on():
    def run(engine):
        state = ShardedState(arrays(99), adamw(0.1), engine=engine)
        train_sharded(state, engine.rank, range(3))
        again = ShardedState(arrays(0), adamw(0.1), name="again", engine=engine)
        again.load_state_dict(state.state_dict())
        for each in (state, again):
            train_sharded(each, engine.rank, range(3, 6))
        return bits(state.parameters) == bits(again.parameters)

    assert run_ranks(3, run, deterministic=True) == [True] * 3


def test_a_gradient_that_is_not_finite_on_one_rank_gives_every_rank_a_norm_of_nan():
    def run(engine):
        state = ShardedState({"x": np.ones(200, np.float32)}, sgd(0.1), engine=engine)
        gradient = np.ones(200, np.float32)
        gradient[150] = np.inf if engine.rank == 1 else 1
        return state.step({"x": gradient}, clip_norm=1.0)

    assert all(np.isnan(norm) for norm in run_ranks(2, run))


def test_other_tensors_on_a_rank_are_a_mismatch():
    def run(engine):
        names = ["a", "b"] if engine.rank else ["a", "c"]
        with pytest.raises(rabit.Mismatch, match="has other tensors"):
            ShardedState({name: np.ones(3, np.float32) for name in names}, sgd(0.1), engine=engine)

    run_ranks(2, run)


@pytest.mark.parametrize(
    ("gradients", "part"),
    [
        ({}, "the gradient of 'x' is missing"),
        ({"x": np.ones(2)}, r"has shape \(2,\); expected shape \(3,\)"),
    ],
)
def test_a_wrong_gradient_is_named(gradients, part):
    def run(engine):
        state = ShardedState({"x": np.ones(3, np.float32)}, sgd(0.1), engine=engine)
        with pytest.raises(rabit.InvalidArgument, match=part):
            state.step(gradients)

    run_ranks(1, run)
