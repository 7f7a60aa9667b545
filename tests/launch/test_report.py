"""Which failure is the cause."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rabit.launch.report import (
    Failure,
    choose_culprit,
    describe_status,
    exit_status,
    named_peers,
    render,
)
from rabit.launch.roster import Roster
from rabit.launch.told import Told


def failure(rank, at_s, status=1, tail=(), was_stopped=False):
    return Failure(rank, "h", status, at_s, tail, was_stopped)


def lost(peer):
    return (f"rabit.errors.PeerLost: allreduce 'x' on rank 9: rank {peer} closed its connection",)


@pytest.mark.parametrize(
    ("failures", "culprit"),
    [
        ([], None),
        ([failure(0, 1.0, was_stopped=True)], None),
        ([failure(2, 2.0), failure(1, 1.0)], 1),
        ([failure(0, 1.0, was_stopped=True), failure(1, 2.0)], 1),
        # Rank 0 ends first, but only misses rank 3, which failed too.
        ([failure(0, 1.0, tail=lost(3)), failure(3, 1.5, status=-9)], 3),
        # A chain: 0 misses 1, which misses 2.
        ([failure(0, 1.0, tail=lost(1)), failure(1, 1.1, tail=lost(2)), failure(2, 1.2)], 2),
        # Each blames the other: the first is the cause.
        ([failure(0, 1.0, tail=lost(1)), failure(1, 1.1, tail=lost(0))], 0),
        # The missed rank was only stopped by the launcher.
        ([failure(0, 1.0, tail=lost(1)), failure(1, 1.5, status=-15, was_stopped=True)], 0),
        # The missed rank is unknown.
        ([failure(0, 1.0, tail=lost(7))], 0),
    ],
)
def test_the_culprit(failures, culprit):
    found = choose_culprit(failures)

    assert (None if found is None else found.rank) == culprit


def test_the_rank_itself_is_not_a_peer():
    assert named_peers(9, lost(3)) == [3]
    assert named_peers(0, ["rank 4 is fine", "ValueError: rank 5"]) == []


@pytest.mark.parametrize(
    "strange",
    [
        b"hello",
        b"7",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"event": "leaving", "lost": Infinity}',
        b'{"event": "raised", "type": "E"}',
    ],
)
def test_what_another_program_writes_hides_no_reason(strange):
    reason = {"type": "ValueError", "message": "m", "place": "p", "code": "c", "lost": -1}
    heard = Roster({3: "h"}, 4, lambda rank: [])

    heard.hear(3, json.dumps({"event": "raised", **reason}).encode() + b"\n", 1.0)
    heard.hear(3, strange + b"\n", 2.0)

    assert heard[3].told == Told(1.0, "ValueError", "m", "p", "c", -1)


def test_statuses():
    assert exit_status(3) == 3 and exit_status(-11) == 139
    assert describe_status(-11) == "was killed by SIGSEGV (signal 11)"
    assert describe_status(-40) == "was killed by a real-time signal (signal 40)"
    assert describe_status(3) == "exited with status 3"


def test_the_block_names_everything():
    culprit = failure(1, 2.5, status=-9, tail=["a", "b"])
    text = render(culprit, [culprit, failure(0, 3.0, was_stopped=True), failure(2, 3.1)], 3)

    assert text == (
        "rabitrun: rank 1 of 3 (host h) was killed by SIGKILL (signal 9), 2.5 s after the start.\n"
        "  If nobody killed it, the system ran out of memory: see 'dmesg | tail' on that host.\n"
        "  Its last 2 lines:\n"
        "    | a\n"
        "    | b\n"
        "  Then rabitrun stopped 1 other rank.\n"
        "  1 other rank failed as a consequence or later.\n"
        "  rabitrun exits with status 137, that of the cause.\n"
    )


def test_a_message_of_several_lines_is_quoted_and_ends_somewhere():
    told = Told(1.0, raised="RuntimeError", message="CUDA error\n\nrabitrun: all is well\n" + "more\n" * 20)
    culprit = dataclasses.replace(failure(1, 1.0), told=told)

    lines = render(culprit, [culprit], 2).splitlines()

    assert lines[0] == "rabitrun: rank 1 of 2 (host h) raised RuntimeError: CUDA error"
    assert lines[1:4] == ["    | ", "    | rabitrun: all is well", "    | more"]
    assert lines[11:13] == ["    | (12 more lines)", "  That was 1.0 s after the start."]
