"""run_ranks: how the ranks of one process end."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import rabit
from rabit.testing import run_ranks


def test_a_rank_that_has_returned_stays_for_what_the_others_still_wait_for():
    returns, pending = threading.Event(), []

    def on_rank(engine):
        if engine.rank == 0:
            pending.append(rabit.allreduce_async(np.ones(3), name="x"))
            returns.set()
            return None
        assert returns.wait(60)
        for _ in range(20):
            with pytest.raises(rabit.InvalidArgument):
                rabit.broadcast(np.ones(3), 5, name="y")
        return rabit.allreduce(np.ones(3), name="x").tolist()

    assert run_ranks(2, on_rank) == [None, [1.0] * 3]


def test_a_rank_that_waits_for_one_that_has_returned_is_named_when_the_time_is_over():
    def on_rank(engine):
        if engine.rank == 1:
            rabit.allreduce(np.ones(3), name="x")

    with pytest.raises(
        rabit.TimedOut, match=r"rank (0, )?1 of 2 ranks had not finished after 0\.5 s"
    ):
        run_ranks(2, on_rank, timeout=0.5)


def test_an_error_ends_ranks_that_have_returned():
    def on_rank(engine):
        if engine.rank == 1:
            raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file") as raised:
        run_ranks(3, on_rank)

    assert raised.value.__notes__ == ["on rank 1 of run_ranks"]
