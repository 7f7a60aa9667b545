"""A tree of ranks agrees on what a star agrees on: values, order of failures, groups, tunables."""

from __future__ import annotations

import numpy as np
import pytest

import rabit
from rabit.testing import run_ranks

RANKS = 7
TREE = {"coordination": "tree", "coordination_fan_out": 2}


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_steps_of_many_tensors_are_right_on_every_rank(transport):
    def on_rank(engine):
        sums = []
        for step in range(4):
            handles = [
                rabit.allreduce_async(
                    np.full(3, engine.rank + i + step), name=f"t{i}", op=rabit.Sum
                )
                for i in range(50)
            ]
            rows = rabit.allgather(np.full((engine.rank % 3, 2), engine.rank), name="rows")
            sums.append([handle.result()[0] for handle in handles] + [len(rows)])
        return sums

    total = sum(range(RANKS))
    rows = sum(rank % 3 for rank in range(RANKS))
    expected = [[total + RANKS * (i + step) for i in range(50)] + [rows] for step in range(4)]
    for result in run_ranks(RANKS, on_rank, transport, **TREE):
        assert result == expected


def test_groups_and_the_rest_of_the_world_go_on_apart():
    members = [1, 3, 4, 6]

    def on_rank(engine):
        group = rabit.add_process_set(members)
        values = []
        for _ in range(3):
            if engine.rank in members:
                values.append(
                    float(rabit.allreduce(np.ones(2), name="g", op=rabit.Sum, process_set=group)[0])
                )
            values.append(float(rabit.allreduce(np.ones(2), name="w", op=rabit.Sum)[0]))
        return values

    for rank, values in enumerate(run_ranks(RANKS, on_rank, **TREE)):
        assert values == ([4.0, 7.0] if rank in members else [7.0]) * 3


def test_the_rank_that_differs_is_named():
    def on_rank(engine):
        shape = (3, 5) if engine.rank == 5 else (3, 4)
        with pytest.raises(rabit.Mismatch) as caught:
            rabit.allreduce(np.ones(shape, np.float32), name="conv")
        # The name works right after.
        rabit.allreduce(np.ones(3, np.float32), name="conv")
        return str(caught.value)

    for message in run_ranks(RANKS, on_rank, **TREE):
        assert "'conv'" in message
        assert "rank 5 float32[3,5]" in message or "rank 5 submitted float32[3,5]" in message


def test_a_stall_names_the_rank_that_is_missing():
    messages = [""] * RANKS

    def on_rank(engine):
        with pytest.raises(rabit.RabitError) as caught:
            rabit.allreduce(np.ones(1), name="other" if engine.rank == 4 else "late")
        messages[engine.rank] = str(caught.value)

    with pytest.raises(rabit.TimedOut):  # closing after the abort tells of it as well
        run_ranks(RANKS, on_rank, stall_warning=0.1, stall_abort=0.5, **TREE)

    for message in messages:
        assert "'late' (allreduce float64[1]): ready on ranks 0-3, 5, 6" in message
        assert "for rank 4" in message


def test_two_sets_of_the_same_ranks_are_apart():
    def on_rank(engine):
        one, other = rabit.add_process_set([0, 1]), rabit.add_process_set([0, 1])
        assert one.process_set_id != other.process_set_id
        if engine.rank < 2:
            first = rabit.allreduce_async(np.ones(3), name="x", op=rabit.Sum, process_set=one)
            second = rabit.allreduce_async(np.full(5, 2.0), name="x", op=rabit.Sum, process_set=other)
            assert (rabit.synchronize(second) == 4).all() and (rabit.synchronize(first) == 2).all()
        assert rabit.remove_process_set(one)
        if engine.rank < 2:
            assert (rabit.allreduce(np.ones(2), name="x", op=rabit.Sum, process_set=other) == 2).all()

    run_ranks(3, on_rank)
