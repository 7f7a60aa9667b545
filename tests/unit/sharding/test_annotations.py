"""Annotations become plans: what is inferred, what each collective costs, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from rabit import sharding
from rabit.errors import InvalidArgument, Unsupported
from rabit.sharding import Annotation, Mesh, Spec
from rabit.sharding.annotated.resharding import steps_between

MESH = Mesh({"data": 2, "model": 2})
ROWS = ("data", None)


def two_layers(x, w1, w2):
    """A forward and a backward pass; the loss is half the sum of squares of y."""
    a = np.maximum(x @ w1, 0)
    y = a @ w2
    dh = (y @ w2.T) * (a > 0)
    return {"y": y, "dw1": x.T @ dh, "dw2": a.T @ y}


def two_layer_plan(**annotations):
    program = sharding.trace(two_layers, (8, 4), (4, 16), (16, 4))
    return sharding.complete(
        program, MESH, {name: Annotation(*said) for name, said in annotations.items()}
    )


def collectives(plan):
    return sorted(
        (step.kind, plan.program.values[move.value].name, step.axis, step.bytes)
        for move in plan.moves
        for step in move.steps
    )


def test_data_parallel_from_one_annotation():
    plan = two_layer_plan(x=(ROWS,))

    assert plan.spec("maximum") == plan.spec("y") == Spec(ROWS)
    assert plan.spec("w1") == plan.spec("w2") == Spec((None, None))
    assert collectives(plan) == [
        ("allreduce", "dw1", "data", 256),
        ("allreduce", "dw2", "data", 256),
    ]
    assert plan.bytes == 512


def test_a_second_annotation_completes_the_layers_of_a_tensor_parallel_net():
    plan = two_layer_plan(x=(ROWS,), w1=((None, "model"),))

    assert plan.spec("w2") == Spec(("model", None))
    assert plan.spec("maximum") == Spec(("data", "model"))
    assert plan.spec("y") == Spec(ROWS)
    assert collectives(plan) == [
        ("allreduce", "dw1", "data", 128),
        ("allreduce", "dw2", "data", 128),
        ("allreduce", "y", "model", 64),
    ]
    assert plan.bytes == 320


def test_storage_costs_what_stage_3_costs_and_does_not_spread():
    stored = (None, ROWS)
    plan = two_layer_plan(x=(ROWS,), w1=stored, w2=stored, dw1=stored, dw2=stored)

    assert plan.spec("maximum") == Spec(ROWS)
    assert collectives(plan) == [
        ("allgather", "w1", "data", 128),
        ("allgather", "w2", "data", 128),
        ("reducescatter", "dw1", "data", 128),
        ("reducescatter", "dw2", "data", 128),
    ]


def test_an_earlier_annotation_wins_and_the_loser_is_named():
    plan = two_layer_plan(x=(ROWS,), w1=(ROWS,))

    assert any("dimension 1 of x is not divided by data" in note for note in plan.notes)
    assert ("allgather", "w1", "data", 128) in collectives(plan)


def test_strict_refuses_what_no_annotation_mentions():
    program = sharding.trace(two_layers, (8, 4), (4, 16), (16, 4))
    said = {"x": Annotation(ROWS), "w1": Annotation(ROWS)}

    with pytest.raises(
        InvalidArgument,
        match=r"w1 from \(data, -\) to \(-, -\) at test_annotations.py:\d+, 128 bytes",
    ):
        sharding.complete(program, MESH, said, strict=True)


def test_a_program_may_annotate_its_own_values():
    def program(x, w):
        return sharding.annotate(sharding.annotate(x, ROWS) @ w, (None, None))

    plan = sharding.complete(sharding.trace(program, (6, 4), (4, 2)), MESH)

    assert plan.spec("matmul") == Spec((None, None))
    assert collectives(plan) == [("allgather", "matmul", "data", 24)]
    array = np.ones(3)
    assert sharding.annotate(array, ("data",)) is array


@pytest.mark.parametrize(
    ("source", "target", "kinds", "total"),
    [
        (Spec((None, None)), Spec(("data", "model")), ["slice", "slice"], 0),
        (Spec((None, None), ("data",)), Spec((None, None)), ["allreduce"], 256),
        (Spec((None, None), ("data",)), Spec(ROWS), ["reducescatter"], 128),
        (Spec(ROWS), Spec((None, None)), ["allgather"], 128),
        (Spec(ROWS), Spec((None, "data")), ["alltoall"], 64),
        (
            Spec(("data", "model")),
            Spec(("model", "data")),
            ["allgather", "alltoall", "slice"],
            64 + 64,
        ),
        (Spec((None, None), ("data",)), Spec((None, "model")), ["slice", "allreduce"], 128),
    ],
)
def test_resharding_costs_the_formula(source, target, kinds, total):
    steps = steps_between((8, 8), 4, source, target, MESH)

    assert [step.kind for step in steps] == kinds
    assert sum(step.bytes for step in steps) == total
    assert (steps[-1].after if steps else source) == target


def test_a_function_that_is_not_known_runs_whole_and_is_named():
    plan = sharding.complete(
        sharding.trace(lambda x: np.cumsum(x, axis=0), (4, 2)), MESH, {"x": Annotation(ROWS)}
    )

    assert plan.spec("cumsum") == Spec((None, None))
    assert any("numpy.cumsum is not known" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda x: x if x.sum() else -x, Unsupported, "a branch on its elements"),
        (lambda x: 3, InvalidArgument, "returned int"),
        (lambda x: np.einsum("ii->i", x), Unsupported, "takes a diagonal"),
        (lambda x: np.add(x, x, where=x > 0), Unsupported, "with where is not supported"),
        (lambda x: np.asarray(x), Unsupported, "conversion to a NumPy array"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_its_name(function, error, match):
    with pytest.raises(error, match=match):
        sharding.trace(function, (4, 4))


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"z": Annotation(ROWS)}, "names 'z'.*It has: x, w1, w2"),
        ({"x": Annotation(("rows", None))}, "the mesh has no axis 'rows'. It has: data, model"),
        ({"x": Annotation(("data",))}, "names 1 dimensions, and the array has the shape"),
        ({"x": Annotation(("data", "data"))}, "divides two dimensions by 'data'"),
    ],
)
def test_annotations_that_do_not_fit_are_refused(said, match):
    with pytest.raises(InvalidArgument, match=match):
        sharding.complete(sharding.trace(two_layers, (8, 4), (4, 16), (16, 4)), MESH, said)


def test_places_and_groups_of_a_mesh():
    assert [MESH.place(rank) for rank in range(4)] == [
        {"model": 0, "data": 0}, {"model": 1, "data": 0}, {"model": 0, "data": 1}, {"model": 1, "data": 1},
    ]  # fmt: skip
    assert MESH.groups("model") == [(0, 1), (2, 3)]
    assert MESH.groups("data") == [(0, 2), (1, 3)]
    with pytest.raises(InvalidArgument, match="has 0 ranks"):
        Mesh({"data": 0})


def test_equal_plans_have_one_digest():
    assert two_layer_plan(x=(ROWS,)).digest == two_layer_plan(x=(ROWS,)).digest
    assert two_layer_plan(x=(ROWS,)).digest != two_layer_plan(x=((None, "data"),)).digest


def test_the_table_shows_layouts_and_bytes():
    text = two_layer_plan(x=(ROWS,)).table()

    assert "mesh data=2 x model=2: 4 ranks" in text
    assert "512 bytes per rank and run" in text
    assert "allreduce   dw2    data  256    sum of parts, test_annotations.py:" in text
