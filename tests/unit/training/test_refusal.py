"""What elastic jobs cannot have yet is told when it is made."""

from __future__ import annotations

import numpy as np
import pytest

from rabit import InvalidArgument
from rabit.strategies import ArrayTrainer
from rabit.strategies.registry import as_strategy
from rabit.testing import run_ranks


def make():
    return ArrayTrainer({"w": np.zeros(4, np.float32)}, as_strategy("powersgd:rank=2"), lr=0.1)


def test_a_trainer_with_a_strategy_is_refused_in_an_elastic_job():
    def fn(engine):
        with pytest.raises(InvalidArgument, match="ArrayTrainer with a strategy in an elastic job") as found:
            make()
        assert "(--min-np 1)" in str(found.value) and "Use rabit.allreduce, or" in str(found.value)

    run_ranks(1, fn, min_np=1)


def test_other_jobs_have_it():
    def fn(engine):
        make()

    run_ranks(1, fn)
