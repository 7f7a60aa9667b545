"""Works of process groups for a torch that loses their Python halves."""

from __future__ import annotations

import gc
import weakref

import pytest

from rabit_torch.distributed.work import KeptWorks, loses_works


class Pretended:
    """A Work as far as KeptWorks asks."""

    def __init__(self):
        self.is_over = False
        self.has_tensors = True

    def has_ended(self):
        return self.is_over

    def let_go(self):
        self.has_tensors = False


def test_works_that_nobody_else_has_stay_and_lose_their_tensors_when_they_have_ended():
    kept = KeptWorks()
    first, second = Pretended(), Pretended()
    kept.keep(first)
    kept.keep(second)
    references = [weakref.ref(first), weakref.ref(second)]
    first.is_over = second.is_over = True
    del first  # `second` is somebody's, who may ask for its result

    kept.keep(Pretended())
    gc.collect()

    assert [each() is not None for each in references] == [True, True]
    assert [each().has_tensors for each in references] == [False, True]


def test_works_that_have_not_ended_keep_all_that_come_after():
    kept = KeptWorks()
    slow = Pretended()
    kept.keep(slow)
    later = Pretended()
    later.is_over = True
    kept.keep(later)
    reference = weakref.ref(later)
    del later

    kept.keep(Pretended())

    assert reference().has_tensors
    slow.is_over = True
    kept.keep(Pretended())
    assert not reference().has_tensors


@pytest.mark.parametrize(
    ("version", "loses"),
    [("2.4.1+cu121", True), ("2.6.0", True), ("2.8.0a0+git1", False), ("2.13.0+cpu", False), ("3.0.0", False)],
)
def test_which_torch_loses_works(version, loses):
    assert loses_works(version) is loses
