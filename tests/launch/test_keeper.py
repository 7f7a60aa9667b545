"""Keeper: what an agent does for its ranks when the launcher is gone."""

from __future__ import annotations

import dataclasses
import selectors
import time

import pytest
from support.faulty_stores import FaultyStore

from rabit.launch.nodes import keeper
from rabit.launch.nodes.keeper import KEPT, OVER, Keeper
from rabit.rendezvous.membership import KEY, Membership
from rabit.rendezvous.next_epoch import next_epoch
from rabit.rendezvous.replicated_store import ReplicatedStore

TIMEOUT_S = 30.0


@pytest.fixture(autouse=True)
def times(monkeypatch):
    monkeypatch.setattr(keeper, "_BEAT_S", 0.01)
    monkeypatch.setattr(keeper, "_ALONE_BEAT_S", 0.01)


class Host:
    """A host that keeps these processes of a job with ranks on hosts a, b and c."""

    def __init__(self, numbers):
        self.stores = [FaultyStore(seed) for seed in range(3)]
        connects = [(f"store {i}", each.connect) for i, each in enumerate(self.stores)]
        self.store = ReplicatedStore(connects)
        self.store.set(KEY, Membership.first("abc", 1, stores=3).to_json())
        self.selector = selectors.DefaultSelector()
        self.reasons = []
        self.keeper = Keeper(ReplicatedStore(connects), numbers, self.selector, self.reasons.append)

    def held(self):
        return Membership.from_json(self.store.watch(KEY, 0, 0.0).value)

    def change(self, change):
        version, held = self.store.watch(KEY, 0, 0.0)
        assert self.store.compare_and_set(KEY, version, change(Membership.from_json(held)).to_json())[0]

    def reason(self):
        """Why the keeper wants the host's processes to end."""
        until = time.monotonic() + TIMEOUT_S
        while not self.reasons:
            assert time.monotonic() < until, "the keeper wants nothing"
            for key, _ in self.selector.select(0.1):
                key.data()
        return self.reasons[0]


def until(found):
    limit = time.monotonic() + TIMEOUT_S
    while not found():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_it_says_again_and_again_that_members_are_kept():
    host = Host([1])
    first = host.store.told(KEPT)

    until(lambda: host.store.told(KEPT) not in (None, first))
    host.keeper.close()


def test_what_ends_is_told_by_the_launcher_as_long_as_it_lives():
    host = Host([1, 2])
    host.keeper.ended(2, "was killed")
    until(lambda: host.store.told(KEPT) is not None)

    assert host.held().ended == {}
    host.keeper.alone()
    until(lambda: host.held().ended == {2: "was killed"})
    host.keeper.ended(1, "")
    host.keeper.close()
    assert host.held().ended == {1: "", 2: "was killed"}
    assert host.store.told(OVER) is None


def test_the_last_one_tells_that_the_job_is_over():
    host = Host([2])
    host.change(lambda held: held.with_ended(0, "").with_ended(1, "was killed"))
    host.keeper.alone()
    host.keeper.ended(2, "")
    host.keeper.close()

    assert host.store.told(OVER) == b""
    assert host.keeper.outcome == "the job has ended, as with status 0"


def test_a_job_of_which_too_few_have_ended_well_has_failed():
    host = Host([2])
    host.change(lambda held: held.with_ended(0, "").with_ended(1, "was killed"))
    host.change(lambda held: dataclasses.replace(held, least=3))
    host.keeper.alone()
    host.keeper.ended(2, "")
    host.keeper.close()

    assert host.keeper.outcome == "the job has failed: rank 1 was killed"


def test_who_does_not_end_last_does_not_know_how_the_job_ends():
    host = Host([2])
    host.keeper.alone()
    host.keeper.ended(2, "")
    host.keeper.close()

    assert host.keeper.outcome == ""


def test_who_is_given_up_ends():
    host = Host([1])
    host.keeper.alone()
    host.change(lambda held: next_epoch(held.with_here(0, 1, "cut off").with_here(2, 1, "cut off")))

    assert host.reason() == "the job continues without the processes of this host"


def test_a_host_of_which_the_launcher_has_said_that_it_is_lost_ends():
    """The launcher lives, and the connection to it is lost."""
    host = Host([1])
    host.keeper.alone()
    host.change(lambda held: held.with_ended(1, "was lost with its host"))

    assert host.reason() == "the job continues without the processes of this host"


def test_a_spare_ends_with_the_ranks():
    host = Host([3])
    host.change(lambda held: held.with_newcomer(3, "d").with_waiting(3))
    host.keeper.alone()
    for each in range(3):
        host.change(lambda held, each=each: held.with_ended(each, ""))

    assert host.reason() == "all ranks of the job have ended"


def test_a_spare_ends_when_nobody_keeps_ranks(monkeypatch):
    monkeypatch.setattr(keeper, "_UNKEPT_S", 0.1)
    host = Host([3])
    host.change(lambda held: held.with_newcomer(3, "d").with_waiting(3))
    host.keeper.alone()

    assert host.reason() == "no member of the job has been kept anywhere for 0.1 s"


def test_a_host_that_is_cut_off_ends(monkeypatch):
    monkeypatch.setattr(keeper, "_CUT_OFF_S", 0.1)
    monkeypatch.setattr("rabit.rendezvous.replicated_store._ANSWER_S", 0.1)
    host = Host([0])
    host.keeper.alone()
    host.stores[0].die()
    host.stores[1].die()

    assert host.reason() == "fewer than 2 stores have answered for 0.1 s"
