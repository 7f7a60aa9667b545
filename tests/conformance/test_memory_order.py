"""NumPy arrays whose memory is not their value: other orders, views, masks, types that are exchanged alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rabit
from rabit.testing import run_ranks


def sliced(array):
    wide = np.zeros((4, 8), array.dtype)
    wide[:, ::2] = array
    return wide[:, ::2]


LAYOUTS = {
    "Fortran": np.asfortranarray,
    "transposed": lambda array: array.T.copy().T,
    "sliced": sliced,
    "backwards": lambda array: array[::-1, ::-1].copy()[::-1, ::-1],
    "matrix": lambda array: np.asmatrix(array.copy()),
    "subclass": lambda array: array.copy().view(type("Named", (np.ndarray,), {})),
}
IN_PLACE = ("matrix", "subclass")  # whose memory is row-major


def of(rank):
    return np.arange(16.0).reshape(4, 4) * (rank + 1)


SUM = of(0) + of(1)
ROWS = np.concatenate([of(0), of(1)])


def by_message(x):
    if rabit.rank() == 0:
        rabit.send(x, 1)
        return of(0)
    return rabit.recv(np.empty((4, 4)), 0)


def in_place(call, *arguments, **options):
    def run(x):
        assert call(x, *arguments, **options) is x
        return x

    return run


NEW = {
    "allreduce": (lambda x: rabit.allreduce(x, op=rabit.Sum, name="a"), SUM),
    "allreduce_async": (lambda x: rabit.allreduce_async(x, op=rabit.Sum, name="s").result(), SUM),
    "grouped": (lambda x: rabit.grouped_allreduce([x, x], op=rabit.Sum, name="g")[1], SUM),
    "reduce": (lambda x: _or(rabit.reduce(x, 0, op=rabit.Sum, name="r"), SUM), SUM),
    "broadcast": (lambda x: rabit.broadcast(x, 0, name="b"), of(0)),
    "allgather": (lambda x: rabit.allgather(x, name="ag"), ROWS),
    "gather": (lambda x: _or(rabit.gather(x, 0, name="ga"), ROWS), ROWS),
    "scatter": (lambda x: rabit.scatter(x, 0, name="sc"), lambda r: of(0)[2 * r : 2 * r + 2]),
    "reducescatter": (
        lambda x: rabit.reducescatter(x, op=rabit.Sum, name="rs"),
        lambda r: SUM[2 * r : 2 * r + 2],
    ),
    "alltoall": (
        lambda x: rabit.alltoall(x, name="at"),
        lambda r: np.concatenate([of(source)[2 * r : 2 * r + 2] for source in (0, 1)]),
    ),
    "message": (by_message, of(0)),
    "into": (lambda x: rabit.ordered_allgather_into(np.empty((8, 4)), x), ROWS),
}
WRITING = {
    "allreduce_": (in_place(rabit.allreduce_, op=rabit.Sum, name="a_"), SUM),
    "grouped_": (lambda x: rabit.grouped_allreduce_([x], op=rabit.Sum, name="g_")[0], SUM),
    "broadcast_": (in_place(rabit.broadcast_, 0, name="b_"), of(0)),
    "ordered": (in_place(rabit.ordered_allreduce_, rabit.Sum), SUM),
}


def _or(result, want):
    return want if result is None else result


def test_calls_work_on_logical_values():
    def on_rank(engine):
        for name, (call, want) in (NEW | WRITING).items():
            wanted = want(engine.rank) if callable(want) else want
            for layout, lay in LAYOUTS.items():
                if name in WRITING and layout not in IN_PLACE:
                    continue
                for who in ((0,), (0, 1)):
                    x = lay(of(engine.rank)) if engine.rank in who else of(engine.rank)
                    np.testing.assert_array_equal(call(x), wanted, err_msg=f"{name} {layout} {who}")
                    np.testing.assert_array_equal(
                        call(of(engine.rank)), wanted, err_msg=f"{name} after {layout}"
                    )

    run_ranks(2, on_rank)


@pytest.mark.parametrize("name", WRITING)
def test_a_result_does_not_go_into_memory_of_another_order(name):
    def on_rank(engine):
        for layout, lay in LAYOUTS.items():
            if layout not in IN_PLACE:
                with pytest.raises(rabit.InvalidArgument, match="not contiguous"):
                    WRITING[name][0](lay(of(engine.rank)))

    run_ranks(2, on_rank)


MASKED = np.ma.masked_array([1.0, 999.0], mask=[False, True])


@pytest.mark.parametrize("name", {**NEW, **WRITING})
@pytest.mark.parametrize("value", [MASKED, [MASKED, MASKED]], ids=["array", "list"])
def test_masks_are_refused(name, value):
    call = (NEW | WRITING)[name][0]
    if isinstance(value, list) and name in WRITING:
        pytest.skip("lists are not written")

    def on_rank(engine):
        receives = name == "message" and engine.rank == 1
        with pytest.raises(rabit.RabitError, match="has a mask" if not receives else "mask|shape"):
            call(value)

    run_ranks(2, on_rank)


EXCHANGED = [
    np.uint32,
    np.uint64,
    *(
        getattr(ml_dtypes, f"float8_{kind}")
        for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
    ),
]
COMPLEX = [np.complex64, np.complex128]


@pytest.mark.parametrize("dtype", EXCHANGED + COMPLEX)
def test_every_type_is_exchanged(dtype):
    def of(rank):
        return (
            np.array([[1, 2], [4, 8]]).astype(dtype)
            if rank
            else np.array([[8, 4], [2, 1]]).astype(dtype)
        )

    def on_rank(engine):
        mine, rank = of(engine.rank), engine.rank
        both = np.concatenate([of(0), of(1)])

        def check(found, want):
            assert found.dtype == want.dtype
            np.testing.assert_array_equal(found.view(np.uint8), want.view(np.uint8))

        for _ in range(2):  # again, as it is kept
            check(rabit.broadcast(mine, 1, name="b"), of(1))
            check(rabit.broadcast_(mine.copy(), 1, name="b_"), of(1))
            check(rabit.allgather(mine, name="g"), both)
            check(rabit.grouped_allgather([mine], name="gg")[0], both)
            parts = [of(source)[rank : rank + 1] for source in (0, 1)]
            check(rabit.alltoall(mine, name="a"), np.concatenate(parts))
            check(rabit.scatter(mine, 0, name="s"), of(0)[rank : rank + 1])
            gathered = rabit.gather(mine, 0, name="ga")
            assert (gathered is None) == (rank == 1)
            if rank == 0:
                check(gathered, both)
                rabit.send(mine, 1)
            else:
                check(rabit.recv(np.empty_like(mine), 0), of(0))
            check(rabit.ordered_allgather_into(np.empty((4, 2), dtype), mine), both)

    run_ranks(2, on_rank)


REDUCING = {
    "allreduce": lambda x, op: rabit.allreduce(x, op=op, name="w"),
    "allreduce_": lambda x, op: rabit.allreduce_(x, op=op, name="w"),
    "grouped": lambda x, op: rabit.grouped_allreduce([x, x], op=op, name="w"),
    "reduce": lambda x, op: rabit.reduce(x, 0, op=op, name="w"),
    "reducescatter": lambda x, op: rabit.reducescatter(x, op=op, name="w"),
    "grouped_reducescatter": lambda x, op: rabit.grouped_reducescatter([x], op=op, name="w"),
    "ordered": lambda x, op: rabit.ordered_allreduce_(x, op),
    "ordered_reducescatter": lambda x, op: rabit.ordered_reducescatter_into(
        np.empty(1, x.dtype), x, op
    ),
}


@pytest.mark.parametrize("name", REDUCING)
def test_what_cannot_be_combined_is_refused(name):
    def on_rank(engine):
        for dtype in EXCHANGED + COMPLEX:
            for op in rabit.ReduceOp:
                if dtype in COMPLEX and op in (rabit.Sum, rabit.Average):
                    continue
                with pytest.raises(rabit.Unsupported, match=r"\w+ of .* is not defined"):
                    REDUCING[name](np.ones(2).astype(dtype), op)

    run_ranks(2, on_rank)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_numbers_are_summed_and_averaged(dtype):
    def of(rank, count):
        return (np.arange(count) + (rank + 1) * 2j).astype(dtype)

    def on_rank(engine):
        for count in (3, 100_001):  # with the agreement, and in partitions
            total = of(0, count) + of(1, count)
            mine = of(engine.rank, count)
            for _ in range(2):
                np.testing.assert_array_equal(
                    rabit.allreduce(mine, op=rabit.Sum, name=f"s{count}"), total
                )
                np.testing.assert_array_equal(rabit.allreduce(mine, name=f"a{count}"), total / 2)
                factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
                scaled = rabit.allreduce(mine, op=rabit.Sum, name=f"p{count}", **factors)
                np.testing.assert_array_equal(scaled, total * 2)
            _, grouped = rabit.grouped_allreduce([mine, mine], op=rabit.Sum, name=f"g{count}")
            np.testing.assert_array_equal(grouped, total)
            np.testing.assert_array_equal(rabit.ordered_allreduce_(mine.copy(), rabit.Sum), total)
            parts = np.array_split(total, 2)
            found = rabit.reducescatter(mine, op=rabit.Sum, name=f"r{count}")
            np.testing.assert_array_equal(found, parts[engine.rank])
        with pytest.raises(rabit.Mismatch, match="complex"):
            rabit.allreduce(of(0, 2) if engine.rank else np.ones((2, 2)), name="other type")
        coded = rabit.allreduce(
            mine, op=rabit.Sum, name="coded", compression=rabit.Compression.fp16
        )
        np.testing.assert_array_equal(
            coded, total
        )  # which is for real numbers, and leaves others as they are

    run_ranks(2, on_rank)


def test_a_rank_that_has_joined_adds_nothing_to_complex_numbers():
    def on_rank(engine):
        if engine.rank == 0:
            found = rabit.allreduce(np.array([1 + 2j, 3]), op=rabit.Sum, name="w")
            np.testing.assert_array_equal(found, [1 + 2j, 3])
        rabit.join()

    run_ranks(2, on_rank)
