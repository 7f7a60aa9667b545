"""The book of a job's processes, and the alarms of its supervisor."""

from __future__ import annotations

import json

import pytest

from rabit.launch.alarms import Alarms
from rabit.launch.roster import News, Roster


def roster(ranks=2, servers=0):
    return Roster(dict.fromkeys(range(ranks + servers), "h"), ranks, lambda number: [])


def hear(book, number, **document):
    book.hear(number, json.dumps(document).encode() + b"\n", 1.0)


def test_a_job_is_over_when_every_process_has_ended_or_is_lost():
    book = roster(ranks=2, servers=1)
    for number in range(3):
        book.started(number, 100 + number)

    book.ended(0, 0, 0, 1.0)
    book.lose([1])
    assert book.have_ranks_ended and not book.is_over and book.is_any_running

    book.ended(2, -15, 0, 2.0, was_stopped=True)
    assert book.is_over and book.is_any_running  # the lost one runs still
    assert book.lost == {1} and book.rank_statuses == {0: 0}
    assert [failure.rank for failure in book.failures()] == [0, 2]

    book.vanished(book.numbers, -9)
    assert not book.is_any_running and book.rank_statuses == {0: 0, 1: -9}
    assert book[2].status == -15 and len(book.failures()) == 2  # nobody has seen rank 1 end


def test_a_newcomer_is_waited_for_and_becomes_a_rank():
    book = roster()
    book.add(2, "other")
    assert not book.have_started([2]) and book.open_ranks == {0, 1}

    book.started(2, 7)
    book.became_ranks([0, 1, 2, 5])
    hear(book, 2, event="admitted", size=3)
    hear(book, 2, event="admitted", size=3)
    hear(book, 0, event="given up", member=1, why="silent")

    assert book.open_ranks == {0, 1, 2} and book[2].host == "other"
    assert book.news == [News(2, size=3), News(1, why="silent")]


@pytest.mark.parametrize(
    "document",
    [
        {"event": "raised", "type": "E"},
        {"event": "leaving", "lost": "nobody"},
        {"event": "given up", "member": 9, "why": ""},
        {"event": "admitted"},
        {"event": ["joined"]},
        {"event": "of a later version"},
        ["joined"],
    ],
)
def test_a_line_that_is_not_understood_changes_nothing(document):
    book = roster()
    hear(book, 0, event="leaving", lost=1)
    told = book[0].told

    book.hear(0, json.dumps(document).encode() + b"\n", 2.0)

    assert book[0].told == told and book.news == [] and book[0].waits_for_all is None


def test_a_rank_that_ends_well_before_the_others_meet_is_missed():
    book = roster(3)
    hear(book, 2, event="joined")
    book.ended(1, 0, 0, 1.0)

    assert book.missed_in_init() == (1, 2)
    hear(book, 2, event="met")
    assert book.missed_in_init() is None


def test_alarms_ring_once_and_the_first_first():
    alarms, rung = Alarms(), []
    alarms.set("late", 3.0, lambda: rung.append("late"))
    alarms.set("early", 1.0, lambda: (rung.append("early"), alarms.clear("late")))
    alarms.put_off("early", 0.5, lambda: rung.append("replaced"))
    assert alarms.due() == 1.0

    alarms.ring(0.9)
    assert rung == []
    alarms.put_off("early", 2.0, lambda: (rung.append("early"), alarms.clear("late")))
    alarms.ring(5.0)
    alarms.ring(6.0)

    assert rung == ["early"] and alarms.due() is None and not alarms.is_set("late")
