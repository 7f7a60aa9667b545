"""What ranks compare of a gradient method."""

from __future__ import annotations

import numpy as np
import pytest

from rabit.strategies import AnyBatch, LocalSGD, Synchronous, available, make
from rabit.strategies.powersgd import PowerSGD
from rabit.training.method_text import method_text


@pytest.mark.parametrize("name", available())
def test_a_method_by_name_has_one_text_that_says_its_arguments(name):
    assert method_text(make(name)) == method_text(make(name))
    assert " at 0x" not in method_text(make(name))


def test_other_arguments_are_another_text_however_deep_they_are():
    texts = [method_text(make(each)) for each in ("local", "local:every=7", "powersgd", "powersgd:rank=3")]

    assert len(set(texts)) == 4
    assert "LocalSGD(every=7" in texts[1] and "rank=3" in texts[3]
    assert method_text(None) == "no strategy"


def test_numbers_of_numpy_and_of_python_are_the_same():
    assert method_text(LocalSGD(np.int64(4))) == method_text(LocalSGD(4))
    assert method_text(LocalSGD(4, mix=np.float64(0.5))) == method_text(LocalSGD(4, mix=0.5))


def test_what_a_rank_has_for_itself_is_left_out():
    one, other = AnyBatch(), AnyBatch()
    one.samples, one.owner, one.log, one._mine = 7, "gradient", print, "here"

    assert method_text(one) == method_text(other) == "AnyBatch()"
    assert method_text(Synchronous(PowerSGD(1))) != method_text(Synchronous(PowerSGD(2)))
