"""Copies of what is a rank's own, kept by ranks on other hosts, and who gets them."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import rabit
from rabit import InvalidArgument
from rabit.elastic import ObjectState
from rabit.elastic import state as states
from rabit.elastic.replicas import Replicas, Standing, keepers
from rabit.elastic.updates import Updates
from rabit.testing import run_ranks


@pytest.mark.parametrize(
    ("hosts", "count", "wanted"),
    [
        ("aabb", 1, [[2], [3], [0], [1]]),
        ("abc", 1, [[1], [2], [0]]),
        ("abc", 2, [[1, 2], [2, 0], [0, 1]]),
        ("abab", 1, [[1], [0], [3], [2]]),
        ("aaab", 1, [[3], [3], [3], [0]]),
        ("ab", 3, [[1], [0]]),
        ("aaa", 1, [[], [], []]),
    ],
    ids=str,
)
def test_copies_are_on_the_next_hosts(hosts, count, wanted):
    assert keepers(hosts, count) == wanted


@pytest.mark.parametrize("sizes", [*itertools.product((1, 3, 4), repeat=3)], ids=str)
def test_copies_are_never_on_the_host_itself_and_each_is_on_another(sizes):
    hosts = [host for host, count in zip("abc", sizes, strict=True) for _ in range(count)]

    for own, ranks in zip(hosts, keepers(hosts, 2), strict=True):
        assert {own, *(hosts[each] for each in ranks)} == set("abc")


class Job:
    """The ranks of a job as threads; `lost` are replaced, one after the other, by processes without a state."""

    def __init__(self, monkeypatch, hosts, replicas):
        self.hosts, self.replicas = hosts, replicas
        self.heirs = set()
        monkeypatch.setattr(states, "own_host", lambda: hosts[rabit.rank()])
        monkeypatch.setattr(states, "seat_now", lambda: (10 + rabit.rank(), rabit.rank() in self.heirs))

    def state(self, own):
        """As a program makes it; who comes begins like everybody else."""
        state = ObjectState(step=0, own=own, per_rank=["own"], replicas=self.replicas)
        state._updates = Updates(None)
        return state

    def play(self, losses, commits=3):
        """What each rank has in the end: so many commits before each loss of ranks and after the last one.

        0: only before the first.
        """

        def fn(engine):
            state = self.state(np.zeros(2))
            state.sync()
            for number, lost in enumerate([*losses, ()]):
                for _ in range(commits or 3 * (number == 0)):
                    state.step += 1
                    state.own = state.own + (engine.rank + 1) * state.step
                    state.commit()
                state.own = state.own - 1000  # work that is in no commit
                if engine.rank in lost:
                    self.heirs.add(engine.rank)
                    state = self.state(np.zeros(2))
                else:
                    state.restore()
                state.sync()
            return state.step, state.own.tolist(), state._commits

        return run_ranks(len(self.hosts), fn, min_np=1)


def undisturbed(ranks, steps):
    total = steps * (steps + 1) // 2
    return [(steps, [(rank + 1) * total] * 2, steps) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("hosts", "replicas", "losses"),
    [
        ("aabb", 1, [{0}]),
        ("aabb", 1, [{1}, {2}]),
        ("aabb", 1, [{0, 1}]),
        ("abc", 2, [{0, 1}, {1, 2}]),
        ("aabc", 2, [{0, 1}, {0}, {3}]),
    ],
    ids=str,
)
def test_who_comes_for_a_lost_rank_goes_on_with_its_own_part(monkeypatch, hosts, replicas, losses):
    found = Job(monkeypatch, hosts, replicas).play(losses)

    assert found == undisturbed(len(hosts), 3 * (len(losses) + 1))


def test_a_second_loss_before_the_next_commit_costs_nothing(monkeypatch):
    found = Job(monkeypatch, "ab", 1).play([{1}, {0}, {1}], commits=0)

    assert found == undisturbed(2, 3)


def test_without_copies_it_begins_as_its_program_does(monkeypatch):
    found = Job(monkeypatch, "ab", 0).play([{1}])

    assert found[0] == undisturbed(2, 6)[0]
    assert found[1] == (6, [2 * (4 + 5 + 6)] * 2, 6)


def test_with_all_copies_lost_it_begins_anew_and_says_so(monkeypatch, capfd):
    found = Job(monkeypatch, "ab", 1).play([{0, 1}])

    assert [own for _, own, _ in found] == [[1 + 2 + 3.0] * 2, [2 * (1 + 2 + 3.0)] * 2]
    said = capfd.readouterr().err
    for rank in range(2):
        assert f"rabit: rank {rank} begins without what its predecessor had of its own: " in said


def test_ranks_that_are_a_commit_ahead_go_back_and_so_do_the_copies(monkeypatch):
    """One rank fails while the copies of a commit travel: for it that is none."""
    job = Job(monkeypatch, "aab", 1)

    def fn(engine):
        state = job.state(0)
        state.sync()
        for _ in range(2):
            state.step, state.own = state.step + 1, state.own + engine.rank + 1
            state.commit()
        state.step, state.own = 100, 100
        state.save()
        state._replicate(3)
        if engine.rank == 0:
            state.step_back(1)  # as `commit` does when the exchange fails
        else:
            state._commits += 1
        if engine.rank == 2:
            job.heirs.add(2)
            state = job.state(0)
        state.sync()
        return state.step, state.own, state._commits

    assert run_ranks(3, fn, min_np=1) == [(2, 2, 2), (2, 4, 2), (2, 6, 2)]


def test_a_commit_whose_copies_do_not_arrive_is_none(monkeypatch):
    job = Job(monkeypatch, "ab", 1)

    def fn(engine):
        state = job.state(7)
        state.sync()
        state.own = 8
        state._replicas.exchange = lambda *_: (_ for _ in ()).throw(rabit.PeerLost("rank 1 is gone", 1))
        with pytest.raises(rabit.PeerLost):
            state.commit()
        return state._commits, state.own, state.own is not None and state._saved["values"]["own"]

    assert run_ranks(2, fn, min_np=1) == [(0, 7, 7)] * 2


def test_too_few_hosts_are_refused_when_the_job_starts(monkeypatch):
    job = Job(monkeypatch, "aa", 1)

    def fn(engine):
        with pytest.raises(InvalidArgument, match=r"replicas=1 on rank \d: .* the 2 ranks .* on 1\."):
            job.state(0).sync()

    run_ranks(2, fn, min_np=1)


def test_a_job_that_has_lost_its_other_hosts_goes_on_and_says_so(monkeypatch, capfd):
    hosts = ["a", "b"]
    job = Job(monkeypatch, hosts, 1)

    def fn(engine):
        state = job.state(engine.rank)
        state.sync()
        state.commit()
        rabit.barrier()
        hosts[:] = "aa"
        state.sync()
        state.own += 5
        state.commit()
        return state.own

    assert run_ranks(2, fn, min_np=1) == [5, 6]
    said = capfd.readouterr().err
    assert said.count("rabit: the ranks are on 1 hosts now, so 0 others keep copies") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"replicas": -1}, "replicas is -1: expected 0 or more"),
        ({"per_rank": ["residue"]}, "per_rank has residue, and the values are step"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(arguments, text):
    with pytest.raises(InvalidArgument, match=f"ObjectState: {text}"):
        ObjectState(step=0, **arguments)


def test_a_state_without_own_parts_has_nothing_to_copy():
    def fn(engine):
        state = ObjectState(step=0, replicas=1)
        state.sync()  # outside of an elastic job: nobody is lost there and replaced
        state._updates = Updates(None)
        with pytest.raises(InvalidArgument, match=r"ObjectState: replicas on rank \d: there is nothing to copy"):
            state.sync()

    run_ranks(2, fn, min_np=1)


def test_a_part_that_cannot_be_sent_ends_the_exchange_of_all():
    def body(engine):
        copies = Replicas(1)
        copies.place([Standing(0, seat, False, "ab"[seat], frozenset(), False) for seat in range(2)])
        part = {"worker": [threading.Lock()]} if engine.rank == 1 else {"worker": []}
        with pytest.raises(rabit.RabitError) as error:
            copies.exchange(1, part)
        assert copies.kept() == frozenset()
        return str(error.value)

    for text in run_ranks(2, body, timeout=60):
        assert "rank 1" in text and "['worker'][0] of type lock cannot be pickled" in text


def test_a_value_that_one_rank_cannot_copy_ends_the_commit_of_all(monkeypatch):
    job = Job(monkeypatch, "ab", 1)

    def body(engine):
        state = job.state([engine.rank])
        state.sync()
        if engine.rank == 1:
            state.own = threading.Lock()
        state.step = 7
        with pytest.raises(rabit.RabitError) as error:
            state.commit()
        state.own = [engine.rank]
        state.restore()
        assert state.step == 0  # That was no commit.
        state.step = 8
        state.commit()
        state.restore()
        return str(error.value), state.step

    for text, step in run_ranks(2, body, timeout=60, min_np=1):
        assert "rank 1" in text and "of type lock cannot be copied" in text
        assert step == 8
