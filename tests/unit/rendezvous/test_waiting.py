"""Whom a rank waits for in init()."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from rabit import Config
from rabit.rendezvous import waiting
from rabit.rendezvous.discovery import StoreServer
from rabit.rendezvous.store_client import StoreClient

SECRET = bytes(range(32))


@pytest.fixture
def store():
    """The address of a store, and a client of it."""
    with contextlib.closing(StoreServer("127.0.0.1", 0, SECRET)) as server:
        address = f"127.0.0.1:{server.port}"
        with contextlib.closing(StoreClient(address, SECRET)) as client:
            yield address, client


def waits(address, rank, size=4, **settings):
    config = Config(rank=rank, size=size, store_address=address, secret=SECRET, **settings)
    return waiting.whom_it_waits_for(config, 2)


def test_the_first_rank_that_has_come_names_the_others(store):
    address, client = store
    for key in ("2/host/1", "2/host/2", "1/host/0"):  # Of rank 0: from an engine before this one.
        client.set(key, b"here")

    said = waits(address, 1)

    assert said == f"rank 1 of 4 waits in init() for ranks 0, 3, which have not come to {address} yet."
    assert waits(address, 2) == ""


def test_nobody_waits_when_all_have_come(store):
    address, client = store
    for rank in range(2):
        client.set(f"member/host/{rank}", b"here")

    assert waits(address, 0, size=2, min_np=1) == ""


def test_many_ranks_that_have_not_come_are_some_numbers(store):
    address, client = store
    client.set("2/host/0", b"here")

    assert "for ranks 1, 2, 3, 4, 5, 6, 7, 8, …, which have" in waits(address, 0, size=40)


@pytest.mark.parametrize(
    ("mine", "theirs", "least", "text"),
    [
        ("member/host/0", "2/host/1", 1, "RABIT_MIN_NP is 1 here, and on rank 1 it is not set."),
        ("2/host/0", "member/host/1", 0, "RABIT_MIN_NP is 0 here, and on rank 1 it is set."),
    ],
)
def test_a_rank_of_another_kind_of_job_is_named_as_such(store, mine, theirs, least, text):
    address, client = store
    client.set(mine, b"here")
    client.set(theirs, b"here")

    said = waits(address, 0, size=2, min_np=least)

    assert said == f"rank 0 of 2 waits in init() for rank 1: {text} rabitrun --min-np sets it for all ranks alike."


def test_a_store_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(waiting, "_ANSWER_S", 0.1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"

        assert f"rank 3 of 4 waits in init() for the store of the job at {address}, which" in waits(address, 3)


def test_a_block_that_takes_long_says_so_and_a_quick_one_does_not(monkeypatch, capsys):
    has_said = threading.Event()

    def describe():
        has_said.set()
        return "rank 0 waits"

    with waiting.says_after_a_while(pytest.fail):
        pass
    monkeypatch.setattr(waiting, "_AFTER_S", 0.01)
    with waiting.says_after_a_while(describe) as block:
        assert has_said.wait(60)
        block.join()

    assert capsys.readouterr().err == "rabit: rank 0 waits\n"
