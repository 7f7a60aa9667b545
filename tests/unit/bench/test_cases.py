"""The buffers of a benchmark: what must come out, and that a wrong result is seen."""

from __future__ import annotations

import pytest

from rabit.bench.cases import Case, Spec, bus_factor
from rabit.bench.options import KIND_NAMES
from rabit.bench.timing import Figures, measure
from rabit.testing import run_ranks
from rabit.types import DType, Kind, Max, Sum

MOVING = [each for each in KIND_NAMES if each != "barrier"]


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_wrong_element_is_counted_and_a_right_result_is_not(name, size):
    def on_rank(engine):
        counts = []
        for dtype, op in ((DType.FLOAT32, Sum), (DType.BFLOAT16, Max), (DType.INT8, Sum)):
            case = Case(Spec(Spec.kind_of(name), 91, dtype, op, root=size - 1), engine)
            case.prepare(True)
            engine.submit([case.request(f"{name}.{dtype}", engine)])[0].wait()
            right = case.wrong()
            if case._output.size:
                case._output[-1] += 1
            counts.append((right, case.wrong()))
        return counts

    for rank, counts in enumerate(run_ranks(size, on_rank)):
        sees = name not in ("reduce", "gather") or rank == size - 1
        assert counts == [(0, int(sees))] * 3, f"rank {rank}"


def test_figures_are_equal_on_all_ranks_and_name_the_route():
    def on_rank(engine):
        spec = Spec(Kind.ALLGATHER, 1000, DType.FLOAT64)
        return measure(engine, spec, calls=4)

    found = run_ranks(3, on_rank, inline_bytes=0)

    assert found[0] == found[1] == found[2]
    assert found[0].count == 123 and found[0].bytes == 984
    assert len(found[0].seconds) == 4 and min(found[0].seconds) > 0
    assert (found[0].wrong, found[0].route) == (0, "builtin/direct")


def test_a_brief_call_that_is_longer_than_its_time_is_not_repeated():
    """Turns of 64 MiB on a slow link would take three times as long as a budget has for them."""

    def on_rank(engine):
        spec = Spec(Kind.ALLREDUCE, 4000, DType.FLOAT32)
        return [
            measure(engine, spec, longest_s=longest_s, is_brief=is_brief)
            for longest_s, is_brief in ((0.0, True), (0.0, False), (0.05, True))
        ]

    found = run_ranks(2, on_rank)

    assert found[0] == found[1]
    once, thorough, several = (len(each.seconds) for each in found[0])
    assert (once, thorough) == (1, 5) and several >= 2
    assert min(found[0][0].seconds) > 0


def test_bandwidths_follow_from_the_median():
    spec = Spec(Kind.ALLREDUCE, 4000, DType.FLOAT32)
    figures = Figures(spec, 4, 1000, 4000, (1e-6, 4e-6, 2e-6), 0, "builtin/ring")

    assert (figures.p50_us, figures.p95_us) == (2.0, 4.0)
    assert figures.algbw == 2.0
    assert figures.busbw == 3.0


def test_factors_are_what_a_link_has_to_carry():
    assert [bus_factor(Spec.kind_of(each), 4) for each in KIND_NAMES] == [
        1.5, 0.75, 0.75, 0.75, 1, 1, 0.75, 0.75, 1
    ]  # fmt: skip
