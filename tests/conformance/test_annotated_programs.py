"""Annotated programs on 2 x 2 ranks give what one process gives, whatever the layouts."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from rabit import sharding
from rabit.errors import InvalidArgument, Mismatch
from rabit.sharding import Annotation, Mesh, Runner
from rabit.testing import run_ranks

MESH = Mesh({"data": 2, "model": 2})
AXES = (None, "data", "model")
LAYOUTS = [dims for dims in itertools.product(AXES, AXES) if dims[0] is None or dims[0] != dims[1]]


def results_of(programs):
    """programs: (plan, whole inputs). For each, the parts of the outputs of all ranks."""

    def rank(engine):
        found = []
        for plan, arrays in programs:
            names = [plan.program.values[number].name for number in plan.program.inputs]
            parts = [
                plan.part(name, array, engine.rank)
                for name, array in zip(names, arrays, strict=True)
            ]
            runner = Runner(plan)
            found.append(runner.run(*parts))
            runner.close()
        return found

    return list(zip(*run_ranks(4, rank), strict=True))


def check(programs, wholes, tolerance=0.0):
    for (plan, _), parts, whole in zip(programs, results_of(programs), wholes, strict=True):
        for number, spec, *of_ranks, expected in zip(
            plan.program.outputs, plan.results, *parts, whole, strict=True
        ):
            value = plan.program.values[number]
            for rank, part in enumerate(of_ranks):
                wanted = expected[spec.part(value.shape, plan.mesh, plan.mesh.place(rank))]
                assert part.shape == wanted.shape and part.dtype == expected.dtype
                np.testing.assert_allclose(part, wanted, rtol=tolerance, atol=tolerance)


def planned(function, arrays, **annotations):
    said = {name: Annotation(*dims) for name, dims in annotations.items()}
    return sharding.complete(sharding.trace(function, *arrays), MESH, said)


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def doubled(target, x):
    return sharding.annotate(x * 2, target)


@pytest.mark.parametrize("shape", [(4, 6), (5, 3), (1, 7)])
def test_every_layout_becomes_every_other(shape):
    array = random(*shape)
    programs = [
        (planned(functools.partial(doubled, target), [array], x=(source,)), [array])
        for source in LAYOUTS
        for target in LAYOUTS
    ]

    check(programs, [[array * 2]] * len(programs))


def softmax_attention(q, k, v, mask):
    scores = np.einsum("bhid,bhjd->bhij", q, k) / 2.0
    scores = np.where(mask, scores, -1e9)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.transpose(np.einsum("bhij,bhjd->bhid", weights, v), (0, 2, 1, 3)).reshape(6, 3, 8)


def looked_up(table, numbers, w):
    rows = table[numbers]
    return {
        "loss": np.mean((rows @ w) ** 2, axis=(0, 1)),
        "top": np.max(rows, axis=1),
        "cut": rows[:, 1:, None],
    }


def joined(x, y):
    both = np.concatenate([x, y * 3], axis=1)
    return np.stack([both, np.broadcast_to(both[:1], both.shape)], axis=2).sum(
        axis=(0, 2)
    ), np.cumsum(both, axis=0)


def two_layers(x, w1, w2):
    a = np.maximum(x @ w1, 0)
    y = np.tensordot(a, w2, axes=([1], [0]))
    dh = np.dot(y, w2.T) * (a > 0)
    return y, x.T @ dh, a.T @ y


HEADS = [random(6, 2, 3, 4), random(6, 2, 3, 4), random(6, 2, 3, 4), np.tri(3, dtype=bool)]
TABLE = [random(7, 4), np.array([[0, 6, 3], [5, 1, 2]]), random(4, 5)]
NET = [random(7, 4), random(4, 6), random(6, 5)]
CASES = [
    (softmax_attention, HEADS, {"q": (("data", "model", None, None),)}),
    (softmax_attention, HEADS, {"k": ((None, None, "data", "model"),)}),
    (looked_up, TABLE, {"table": (("data", "model"),)}),
    (looked_up, TABLE, {"numbers": (("data", "model"),), "w": ((None, "model"),)}),
    (looked_up, TABLE, {"table": (None, ("model", None)), "w": (None, ("data", None))}),
    (joined, [random(5, 3), random(5, 2)], {"x": (("data", "model"),)}),
    (two_layers, NET, {"x": (("data", None),)}),
    (two_layers, NET, {"x": (("data", None),), "w1": ((None, "model"),)}),
    (
        two_layers,
        NET,
        {"x": (("data", "model"),), "w1": (("data", "model"),), "w2": (("data", "model"),)},
    ),
    (
        two_layers,
        NET,
        {"x": (("data", None),), "w1": (None, ("data", None)), "w2": (None, ("data", "model"))},
    ),
]


def test_programs_equal_one_process():
    programs = [(planned(function, arrays, **said), arrays) for function, arrays, said in CASES]
    wholes = []
    for function, arrays, _ in CASES:
        whole = function(*arrays)
        whole = list(whole.values()) if isinstance(whole, dict) else whole
        wholes.append(
            [
                np.asarray(array)
                for array in (whole if isinstance(whole, (list, tuple)) else [whole])
            ]
        )

    check(programs, wholes, tolerance=1e-5)


def test_a_mesh_of_another_size_and_a_plan_of_another_program_are_refused():
    array = random(4, 4)
    small = sharding.complete(sharding.trace(lambda x: x + 1, array), Mesh({"data": 3}))

    with pytest.raises(InvalidArgument, match=r"has 3 ranks, and the job has 4"):
        run_ranks(4, lambda engine: Runner(small))
    with pytest.raises(Mismatch, match="rank 3 has another plan than rank 0"):
        run_ranks(
            4,
            lambda engine: Runner(
                planned(lambda x: x.sum(axis=engine.rank // 3), [array], x=(("data", None),))
            ),
        )


def test_a_part_of_another_shape_is_refused():
    array = random(4, 4)
    plan = planned(lambda x: x + 1, [array], x=(("data", None),))

    def rank(engine):
        runner = Runner(plan)
        with pytest.raises(
            InvalidArgument, match=r"'x' is float32\[4, 4\], and \(data, -\).*float32\[2, 4\]"
        ):
            runner.run(array)

    run_ranks(4, rank)
