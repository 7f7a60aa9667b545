"""Whom a process reaches, and who goes where some members do not reach each other."""

from __future__ import annotations

import contextlib
import socket

import pytest

from rabit.rendezvous.host_port import format_address
from rabit.rendezvous.next_epoch import cut_off
from rabit.rendezvous.reach import not_reached, unreachable


@contextlib.contextmanager
def silent():
    """An address that answers nobody: it has as many connections waiting as it takes."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield format_address(*server.getsockname())


@contextlib.contextmanager
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield format_address(*server.getsockname())


def test_a_host_that_does_not_answer_is_not_reached():
    with silent() as away, listening() as here:
        assert unreachable({4: here, 2: away, 7: here}, 0.2) == [2]


def test_a_process_that_has_ended_is_not_cut_off():
    with listening() as address:
        pass

    assert unreachable({1: address}, 5.0) == []


class Book:
    """Addresses of members."""

    def __init__(self, addresses):
        self.addresses = addresses

    def told(self, key):
        address = self.addresses.get(int(key.removeprefix("member/address/")))
        return None if address is None else address.encode()


def test_a_member_looks_for_those_that_have_an_address_and_not_for_itself():
    with silent() as away, listening() as here:
        assert not_reached(Book({0: away, 1: here, 3: away}), (0, 1, 2, 3), 0, 0.2) == [3]


@pytest.mark.parametrize(
    ("members", "away", "wanted"),
    [
        ((0, 1, 2), {}, {}),
        ((0, 1, 2), {0: (1,), 1: (0,)}, {1: [0]}),
        ((0, 1, 2), {0: (1,)}, {1: [0]}),  # one direction
        ((0, 1, 2), {1: (0,)}, {1: [0]}),
        ((5, 3, 4), {5: (3,), 3: (5,)}, {3: [5]}),  # the last of the members, and not the highest number
        ((0, 1, 2, 3), {2: (0, 1, 3)}, {2: [0, 1, 3]}),
        # Hosts with processes 0, 1 and 2, 3 of five, then with 0 and 1, 2, 3: the smaller one goes.
        ((0, 1, 2, 3, 4), {0: (2, 3), 1: (2, 3)}, {3: [0, 1], 2: [0, 1]}),
        ((0, 1, 2, 3, 4), {0: (1, 2, 3)}, {0: [1, 2, 3]}),
        ((0, 1), {0: (7,), 7: (1,)}, {}),  # of those that are no members
    ],
    ids=str,
)
def test_so_many_go_that_all_others_reach_each_other(members, away, wanted):
    assert cut_off(members, away) == wanted
