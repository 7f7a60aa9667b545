"""State trees: undo, save, load, resize."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import rabit
from rabit.training import state


@dataclass
class Inner:
    q: np.ndarray
    steps: int = 0


@dataclass
class Outer:
    residual: np.ndarray = state.leaf(scope="local", elastic="mean")
    shard: Any = state.leaf(0.0, scope="local", elastic="zero")
    is_critical: bool = True
    inner: Any = None


def tree():
    return Outer(np.ones(2), 0.0, True, [Inner(np.arange(3.0)), None])


class Slot:
    def __init__(self):
        self.state = tree()


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Odd:
    """What a method of somebody else may keep: fields that __init__ does not take, attributes, named tuples."""

    pair: Pair
    count: int = dataclasses.field(default=0, init=False)


def test_a_copy_has_all_that_a_node_has():
    odd = Odd(Pair(np.ones(2), 3))
    odd.count, odd.note = 5, "mine"

    same = state.copied(odd)
    loaded = state.restored(odd, "w", {"w/pair/0": np.zeros(2), "w/pair/1": 4, "w/count": 6})
    resized = state.resized(odd, "w", state.Change(2, 3, has_new=True))

    for found, count in ((same, 5), (loaded, 6), (resized, 5)):
        assert type(found) is Odd and type(found.pair) is Pair and found is not odd
        assert (found.count, found.note) == (count, "mine")
    assert loaded.pair.second == 4 and odd.count == 5


def test_leaves_have_paths_scopes_and_rules():
    found = state.leaves(tree(), "w")

    assert list(found) == [
        "w/residual",
        "w/shard",
        "w/is_critical",
        "w/inner/0/q",
        "w/inner/0/steps",
    ]
    assert (found["w/residual"].scope, found["w/residual"].elastic) == ("local", "mean")
    assert (found["w/inner/0/q"].scope, found["w/inner/0/q"].elastic) == ("replicated", "copy")


def test_undo_gives_back_what_was_rebound():
    slot, undo = Slot(), state.Undo()
    undo.keep(slot)
    slot.state.residual = np.zeros(2)
    slot.state.inner[0].steps = 5
    undo.keep(slot)  # as of the first time

    undo.undo()

    assert slot.state.residual.tolist() == [1, 1] and slot.state.inner[0].steps == 0


def test_commit_makes_it_final():
    slot, undo = Slot(), state.Undo()
    undo.keep(slot)
    slot.state.residual = np.zeros(2)

    undo.commit()
    undo.undo()

    assert slot.state.residual.tolist() == [0, 0]


def test_saved_values_come_back_in_their_types():
    before = tree()
    before.shard, before.is_critical, before.inner[0].steps = np.ones(4), False, 3
    saved = {path: each.value for path, each in state.leaves(before, "w").items()}

    found = state.restored(tree(), "w", saved)

    assert found.shard.tolist() == [1] * 4  # a number at first
    assert found.is_critical is False and found.inner[0].steps == 3 and found.inner[1] is None


def test_a_missing_value_and_another_shape_are_named():
    saved = {path: each.value for path, each in state.leaves(tree(), "w").items()}
    with pytest.raises(rabit.InvalidArgument, match="has no 'w/inner/0/q'"):
        state.restored(tree(), "w", {k: v for k, v in saved.items() if k != "w/inner/0/q"})

    saved["w/residual"] = np.ones(3)
    with pytest.raises(rabit.InvalidArgument, match=r"'w/residual' has shape \(3,\) and \(2,\)"):
        state.restored(tree(), "w", saved)


@pytest.mark.parametrize("now", [2, 4])
def test_a_resize_conserves_the_sum_of_mean_residuals(now):
    stayed = min(now, 3)
    before = [tree() for _ in range(3)]
    for rank, each in enumerate(before[:stayed]):
        each.residual = np.float64([rank, 1])
    for each in before[stayed:]:  # what leaves has given its residual to another
        each.residual = np.zeros(2)

    after = [state.resized(each, "w", state.Change(3, now)) for each in before[:stayed]]
    newcomer = state.Change(3, now, is_new=True, has_new=True)
    after += [state.resized(tree(), "w", newcomer) for _ in range(now - stayed)]

    mean = np.mean([each.residual for each in before], axis=0)
    assert np.allclose(np.mean([each.residual for each in after], axis=0), mean, atol=1e-15)
    assert after[0].inner[0].q.tolist() == [0, 1, 2]


def test_what_starts_anew_forgets_the_shape_that_its_part_had():
    before = tree()
    before.shard = np.ones(5)  # of this rank's part, which has other bounds among other ranks

    found = state.resized(before, "w", state.Change(3, 2))

    assert found.shard == 0.0 and isinstance(found.shard, float)


def test_what_follows_another_field_and_what_cannot_be_divided():
    @dataclasses.dataclass
    class Known:
        """mine follows the mean; own is of one rank alone."""

        mean: np.ndarray
        mine: np.ndarray = state.leaf(scope="local", follows="mean")
        own: Any = state.leaf(None, scope="local", elastic="none")

    found = state.resized(Known(np.ones(2), np.zeros(2)), "w", state.Change(3, 3, has_new=True))
    assert found.mine.tolist() == [1, 1]

    with pytest.raises(rabit.InvalidArgument, match="'w/own' is of 3 ranks, and 2 continue"):
        state.resized(Known(np.ones(2), np.ones(2), np.ones(2)), "w", state.Change(3, 2))
