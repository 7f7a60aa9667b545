"""ReplicatedStore: one store as far as anybody can see, while a minority of three is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Iterator

import pytest
from support.faulty_stores import FaultyStore

from rabit.errors import Aborted, InvalidArgument, PeerLost, TimedOut
from rabit.rendezvous import replica
from rabit.rendezvous.acceptor import HISTORY, VALUE_MAX, Acceptance, Ballot
from rabit.rendezvous.discovery import StoreServer
from rabit.rendezvous.membership_store import open_store
from rabit.rendezvous.replicated_store import ReplicatedStore
from rabit.rendezvous.store_client import StoreClient, Versioned

SECRET = bytes(range(32))


@pytest.fixture
def stores() -> list[FaultyStore]:
    return [FaultyStore(seed) for seed in range(3)]


@contextlib.contextmanager
def opened(stores: list[FaultyStore]) -> Iterator[ReplicatedStore]:
    with contextlib.closing(
        ReplicatedStore([(f"store {i}", each.connect) for i, each in enumerate(stores)])
    ) as found:
        yield found


@contextlib.contextmanager
def served(count: int = 3) -> Iterator[tuple[list[StoreServer], list[str]]]:
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(contextlib.closing(StoreServer("127.0.0.1", 0, SECRET)))
            for _ in range(count)
        ]
        addresses = [f"127.0.0.1:{each.port}" for each in servers]
        for address in addresses:
            with contextlib.closing(StoreClient(address, SECRET)) as client:
                client.set(replica.MARK, b"")
        yield servers, addresses


def test_it_is_the_store_that_one_alone_is():
    with (
        served() as (_, addresses),
        contextlib.closing(open_store(addresses, SECRET)) as one,
        contextlib.closing(open_store(addresses, SECRET)) as other,
    ):
        with pytest.raises(TimedOut, match="'members' has version 0 still"):
            other.watch("members", 0, 0.01)
        assert one.compare_and_set("members", 0, b"0,1") == (True, Versioned(1, b"0,1"))
        assert other.compare_and_set("members", 0, b"0,2") == (False, Versioned(1, b"0,1"))
        one.set("members", bytes(VALUE_MAX))
        assert other.watch("members", 1, 20.0) == Versioned(2, bytes(VALUE_MAX))
        with pytest.raises(InvalidArgument, match=f"at most {VALUE_MAX}"):
            one.set("members", bytes(VALUE_MAX + 1))


def test_who_waits_sees_a_change_though_a_store_is_gone():
    with served() as (servers, addresses), contextlib.closing(open_store(addresses, SECRET)) as one:
        one.set("epoch", b"1")
        servers[0].close()
        with contextlib.closing(open_store(addresses, SECRET)) as other:
            setter = threading.Thread(target=lambda: other.set("epoch", b"2"))
            setter.start()

            assert one.watch("epoch", 1, 20.0) == Versioned(2, b"2")
            setter.join()
            assert one.unreached() == [0]


def test_another_secret_is_refused():
    with served() as (_, addresses), contextlib.closing(open_store(addresses, bytes(32))) as store:
        assert store.unreached() == [0, 1, 2]


def test_what_is_told_at_one_store_is_found():
    with served() as (_, addresses), contextlib.closing(open_store(addresses, SECRET)) as store:
        assert store.told("member/address/3") is None
        with contextlib.closing(StoreClient(addresses[2], SECRET)) as client:
            client.set("member/address/3", b"127.0.0.1:1")
        assert store.told("member/address/3") == b"127.0.0.1:1"
        assert store.spread("keeper", b"") == 3


def test_what_is_told_to_all_stores_is_told_once():
    with served() as (_, addresses), contextlib.closing(open_store(addresses, SECRET)) as store:
        store.tell("2/failed", b"first")
        for address in addresses:
            with contextlib.closing(StoreClient(address, SECRET)) as client:
                assert client.get("2/failed", 20.0) == b"first"
                client.tell("2/failed", b"second")
                assert client.get("2/failed") == b"first"


def test_a_minority_that_is_lost_changes_nothing(stores):
    with opened(stores) as store:
        assert store.compare_and_set("key", 0, b"1")[0]
        stores[1].die()

        assert store.compare_and_set("key", 1, b"2") == (True, Versioned(2, b"2"))
        assert store.compare_and_set("key", 1, b"3") == (False, Versioned(2, b"2"))


def test_without_a_majority_the_stores_that_are_away_are_named(stores, monkeypatch):
    monkeypatch.setattr("rabit.rendezvous.replicated_store._ANSWER_S", 0.1)
    with opened(stores) as store:
        store.set("key", b"1")
        stores[0].die()
        stores[2].die()

        with pytest.raises(PeerLost, match=r"no 2 of the 3 stores .* not reached are store 0, store 2"):
            store.set("key", b"2")


def test_a_store_that_was_away_catches_up(stores, monkeypatch):
    monkeypatch.setattr(replica, "_PAUSE_S", 0.0)
    with opened(stores) as store:
        store.set("key", b"1")
        stores[0].die()
        store.set("key", b"2")
        stores[0].come_back()
        store.set("key", b"3")
        stores[1].die()

        assert store.watch("key", 0, 0.0) == Versioned(3, b"3")


def test_a_store_that_comes_back_empty_is_not_asked(stores, monkeypatch):
    """It would have forgotten what it has promised and accepted."""
    monkeypatch.setattr(replica, "_PAUSE_S", 0.0)
    with opened(stores) as store:
        store.set("key", b"1")
        stores[0].die()
        store.set("key", b"2")
        stores[0].come_back_empty()

        assert store.unreached() == [0]
        assert store.watch("key", 0, 0.0) == Versioned(2, b"2")


def lose_the_next_answers(monkeypatch, meanwhile):
    """The next proposal is accepted, `meanwhile()` runs, and then its proposer hears of no acceptance."""
    accepted = ReplicatedStore._accepted

    def lose_answers(self, key, ballot, held, deadline):
        assert accepted(self, key, ballot, held, deadline)
        monkeypatch.setattr(ReplicatedStore, "_accepted", accepted)
        meanwhile()
        return False

    monkeypatch.setattr(ReplicatedStore, "_accepted", lose_answers)


def test_who_cannot_tell_whether_its_change_has_happened_says_so(stores, monkeypatch):
    """The answers to its proposal are lost, and then more changes come than stores remember."""
    with opened(stores) as store, opened(stores) as others:

        def meanwhile():
            for _ in range(HISTORY + 1):
                others.set("key", b"other")

        lose_the_next_answers(monkeypatch, meanwhile)
        with pytest.raises(Aborted, match="may have happened or not"):
            store.set("key", b"mine")


def test_a_change_whose_answers_are_lost_happens_once(stores, monkeypatch):
    with opened(stores) as store, opened(stores) as others:
        lose_the_next_answers(monkeypatch, lambda: others.set("key", b"other"))

        assert store.compare_and_set("key", 0, b"mine") == (True, Versioned(1, b"mine"))
        assert store.watch("key", 0, 0.0) == Versioned(2, b"other")


def test_an_acceptor_keeps_what_it_has_promised():
    state = Acceptance().promise(Ballot(2, 7))

    assert state.promise(Ballot(1, 9)) is None
    assert state.accept(Ballot(1, 9), state.with_change(1, b"old")) is None
    taken = state.accept(Ballot(2, 7), state.with_change(5, b"new"))
    assert (taken.version, taken.value, taken.writers) == (1, b"new", (5,))
    assert Acceptance.from_bytes(taken.to_bytes()) == taken


@dataclasses.dataclass(frozen=True)
class Event:
    """One call: what was asked, between which moments, and what it has found."""

    began: float
    ended: float
    kind: str  # "read", "swap" (has changed the key), "miss" (has not)
    expected: int | None
    held: Versioned


def act(store, seed: int, calls: int, events: list[Event], unsure: set[bytes]) -> None:
    chance = random.Random(seed)
    seen = 0
    for number in range(calls):
        value = b"%d/%d" % (seed, number)
        began = time.monotonic()
        try:
            if chance.random() < 0.3:
                held, kind, expected = store.watch("key", -1, 0.0), "read", None
            elif chance.random() < 0.3:
                is_mine, held = store._change("key", None, value)
                kind, expected = "swap", None
                assert is_mine
            else:
                expected = seen
                is_mine, held = store.compare_and_set("key", expected, value)
                kind = "swap" if is_mine else "miss"
        except (PeerLost, Aborted):
            unsure.add(value)
            continue
        events.append(Event(began, time.monotonic(), kind, expected, held))
        seen = held.version


def check(events: list[Event], unsure: set[bytes]) -> None:
    """There is one order of all calls in which a store alone would have answered so.

    The version says which: a change first, then who has found it.  What is left to see is that it agrees
    with the order in time, and with what each call has asked for.
    """
    values: dict[int, bytes] = {0: b""}
    changes = [each for each in events if each.kind == "swap"]
    assert len({each.held.version for each in changes}) == len(changes)
    for each in events:
        assert values.setdefault(each.held.version, each.held.value) == each.held.value
        if each.expected is not None:
            is_next = each.held.version == each.expected + 1
            assert is_next if each.kind == "swap" else each.held.version != each.expected
    assert len(set(values.values())) == len(values)
    made = {each.held.value for each in changes} | unsure | {b""}
    assert set(values.values()) <= made
    for first in events:
        for later in events:
            if first.ended < later.began:
                order = (later.held.version, later.kind != "swap") >= (first.held.version, first.kind != "swap")
                assert order, (first, later)
                assert later.kind != "swap" or later.held.version > first.held.version


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_are_those_of_one_store(seed, monkeypatch):
    """Four processes, stores that lose messages, and one that is away for a while."""
    monkeypatch.setattr(replica, "_PAUSE_S", 0.0)
    monkeypatch.setattr("rabit.rendezvous.replicated_store._LONGEST_PAUSE_S", 0.005)
    stores = [FaultyStore(10 * seed + i, loss=0.1 * (seed % 2)) for i in range(3)]
    events: list[Event] = []
    unsure: set[bytes] = set()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(opened(stores)) for _ in range(4)]
        threads = [
            threading.Thread(target=act, args=(each, 100 * seed + i, 25, events, unsure))
            for i, each in enumerate(clients)
        ]
        for each in threads:
            each.start()
        victim = stores[seed % 3]
        while len(events) < 30 and any(each.is_alive() for each in threads):
            time.sleep(0.001)
        victim.die()
        while len(events) < 60 and any(each.is_alive() for each in threads):
            time.sleep(0.001)
        victim.come_back()
        for each in threads:
            each.join()

    assert len(events) > 60
    check(events, unsure)
