"""Commits whose arrays go into the memory of older commits."""

from __future__ import annotations

import numpy as np
import pytest

from rabit import InvalidArgument
from rabit.elastic import ObjectState
from rabit.elastic.renewal import Renewal


class Arrays:
    """NumPy arrays, without Python objects in them."""

    def place(self, value, worn):
        if type(value) is not np.ndarray or type(worn) is not np.ndarray:
            return None
        if value.shape != worn.shape or value.dtype != worn.dtype or value.dtype.hasobject:
            return None
        if value.strides != worn.strides or not (value.flags.c_contiguous or value.flags.f_contiguous):
            return None
        return id(value), id(worn)

    def fill(self, worn, value):
        np.copyto(worn, value)


def renewed(value, worn):
    return Renewal(value, worn, [Arrays()]).fill()


def test_arrays_go_where_those_of_the_older_copy_are():
    value = {"a": np.arange(3.0), "b": [np.ones((2, 2)), "text"], "c": (np.asfortranarray(np.eye(3)),)}
    worn = renewed(value, None)
    value["a"] += 1
    value["b"][1] = "other"

    found = renewed(value, worn)

    assert found["a"] is worn["a"] and found["b"][0] is worn["b"][0] and found["c"][0] is worn["c"][0]
    assert found["a"].tolist() == [1, 2, 3] and found["b"][1] == "other" and worn["b"][1] == "text"
    assert found["a"] is not value["a"]


@pytest.mark.parametrize(
    "value",
    [
        np.ones(4), np.ones(3, np.float32), np.ones(3, ">f8"), np.ones((3, 1)), np.ones(6)[::2],
        np.array(["a", [], None], object), np.ma.ones(3), np.float64(1), [1, 2, 3], None,
    ],
)  # fmt: skip
def test_what_does_not_fit_is_copied_anew(value):
    worn = {"a": np.zeros(3)}

    found = renewed({"a": value}, worn)["a"]

    assert found is not worn["a"] and worn["a"].tolist() == [0, 0, 0]
    assert type(found) is type(value) and np.array_equal(found, value)


def test_two_arrays_do_not_share_what_one_array_had_twice():
    one = np.ones(3)
    worn = renewed([one, one], None)
    assert worn[0] is worn[1]

    found = renewed([np.full(3, 2.0), np.full(3, 3.0)], worn)

    assert [each.tolist() for each in found] == [[2, 2, 2], [3, 3, 3]]


def test_one_array_at_two_places_stays_one():
    one = np.ones(3)

    found = renewed([one, one], [np.zeros(3), np.zeros(3)])

    assert found[0] is found[1] and found[0].tolist() == [1, 1, 1]


def test_a_list_that_holds_itself_is_copied():
    value = [np.ones(2)]
    value.append(value)
    worn = renewed(value, None)

    found = renewed(value, worn)

    assert found[0] is worn[0] and found[1] is found


class Renewing(ObjectState):
    _kinds = (Arrays(),)


def test_a_state_commits_into_the_memory_of_its_last_commit():
    state = Renewing(step=0, weights=np.zeros(3))
    before = state._saved["values"]["weights"]
    state.weights += 1
    state.step = 1

    state.commit()

    assert state._saved["values"]["weights"] is before
    state.weights += 1
    state.restore()
    assert state.weights.tolist() == [1, 1, 1] and state.step == 1


def test_a_state_with_own_parts_keeps_both_of_its_commits():
    state = Renewing(step=0, own=np.zeros(3), per_rank=["own"])
    for step in range(1, 5):
        state.step = step
        state.own += 1
        state.save()

    state.step_back(1)

    assert state.step == 3 and state.own.tolist() == [3, 3, 3]


class NoCopies:
    def __deepcopy__(self, memo):
        raise TypeError("no copies of this")


def test_a_commit_that_cannot_be_made_leaves_the_last_one_whole():
    state = ObjectState(step=0, weights=np.zeros(3), other=None)
    state.weights += 1
    state.other = NoCopies()
    with pytest.raises(InvalidArgument, match=r"\['other'\] of type NoCopies cannot be copied: no copies"):
        state.commit()

    state.restore()

    assert state.weights.tolist() == [0, 0, 0] and state.other is None and state._commits == 0


class Interrupted(Arrays):
    """Arrays during whose second copy somebody presses Ctrl-C."""

    def __init__(self):
        self.left = 2

    def fill(self, worn, value):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        super().fill(worn, value)


def test_a_commit_that_is_interrupted_is_whole():
    state = ObjectState(step=0, first=np.zeros(3), second=np.zeros(3))
    state.first += 1
    state.second += 1
    state.step = 1
    state._kinds = [Interrupted()]
    with pytest.raises(KeyboardInterrupt):
        state.save()

    state.restore()

    assert (state.step, state.first.tolist(), state.second.tolist()) == (1, [1, 1, 1], [1, 1, 1])
