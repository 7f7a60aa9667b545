"""Where an elastic job starts its next process."""

from __future__ import annotations

from rabit.launch.hosts import Host
from rabit.launch.room import Cooldown, Room


def room(*hosts, most=8, spares=0, cooldown=None) -> Room:
    return Room([Host(name, slots) for name, slots in hosts], most, spares, cooldown or Cooldown(10, 25))


def test_the_host_with_the_most_free_slots_gets_the_next_process():
    found = room(("a", 2), ("b", 3))
    for number, host in enumerate("ab"):
        found.add(number, host)

    assert str(found.next_host(range(2), 0.0)) == "b"
    assert found.size == 5


def test_nothing_is_started_beyond_the_most():
    found = room(("a", 4), most=2)
    found.add(0, "a")
    found.add(1, "a")

    assert found.next_host(range(2), 0.0) is None
    assert found.size == 2


def test_a_spare_shares_slots_and_a_rank_does_not():
    without, with_one = room(("a", 2)), room(("a", 2), spares=1)
    for each in (without, with_one):
        each.add(0, "a")
        each.add(1, "a")

    assert without.next_host(range(2), 0.0) is None
    assert str(with_one.next_host(range(2), 0.0)) == "a"
    with_one.add(2, "a")
    assert with_one.next_host(range(2), 0.0) is None


def test_slots_are_numbered_without_gaps():
    found = room(("a", 3))

    assert [found.add(number, "a") for number in range(3)] == [0, 1, 2]
    assert found.remove(1) == "a"
    assert found.add(7, "a") == 1
    assert found.remove(1) == ""


def test_the_youngest_leave_a_host_that_has_fewer_slots():
    found = room(("a", 3), ("b", 1))
    for number, host in enumerate("aaab"):
        found.add(number, host)

    found.set_hosts([Host("a", 1)])

    assert found.leaving(range(4)) == [1, 2, 3]
    assert found.leaving([0, 1]) == [1]
    assert found.size == 1
    # Who is to leave makes room for nobody on the slots that there are.
    assert found.next_host(range(4), 0.0) is None


def test_a_host_is_set_aside_for_longer_each_time():
    found = room(("a", 2))

    assert [found.failed("a", now) for now in (0.0, 1.0, 2.0)] == [0, 0, 10]
    assert found.next_host([], 11.0) is None
    assert found.due() == 12.0
    assert str(found.next_host([], 12.0)) == "a"
    assert found.due() is None
    assert [found.failed("a", now) for now in (13.0, 14.0, 15.0)] == [0, 0, 20]
    assert [found.failed("a", now) for now in (36.0, 37.0, 38.0)] == [0, 0, 25]


def test_failures_that_lie_apart_are_chance():
    found = room(("a", 2))

    assert [found.failed("a", 50.0 * each) for each in range(6)] == [0] * 6
