"""StoreClient: what launchers and ranks say to the store from Python."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from rabit.errors import InvalidArgument, TimedOut
from rabit.rendezvous.discovery import StoreServer
from rabit.rendezvous.store_client import StoreClient, Versioned

SECRET = bytes(range(32))


@contextlib.contextmanager
def clients(count: int) -> Iterator[list[StoreClient]]:
    with contextlib.closing(StoreServer("127.0.0.1", 0, SECRET)) as server:
        found = [StoreClient(f"127.0.0.1:{server.port}", SECRET, rank=i) for i in range(count)]
        yield found
        for each in found:
            each.close()


def test_what_one_client_sets_the_other_reads():
    with clients(2) as (one, other):
        one.set("binary", b"a\0b\xff")
        one.set("empty", b"")
        one.set("largest", bytes(65536))

        assert other.get("binary") == b"a\0b\xff"
        assert other.get("empty") == b""
        assert other.get("largest", 5.0) == bytes(65536)


def test_watch_returns_when_the_key_has_changed():
    with clients(2) as (one, other):
        one.set("epoch", b"1")
        setter = threading.Thread(target=lambda: other.set("epoch", b"2"))
        setter.start()

        assert one.watch("epoch", 1, 20.0) == Versioned(2, b"2")
        setter.join()


def test_watch_names_the_key_that_nobody_sets():
    with clients(1) as (one,):
        with pytest.raises(TimedOut, match="'late' was not set before the deadline"):
            one.get("late")
        one.set("late", b"x")
        with pytest.raises(TimedOut, match="'late' has version 1 still"):
            one.watch("late", 1, 0.01)


def test_of_two_that_compare_and_set_one_succeeds():
    with clients(2) as (one, other):
        assert one.compare_and_set("members", 0, b"0,1") == (True, Versioned(1, b"0,1"))
        assert other.compare_and_set("members", 0, b"0,2") == (False, Versioned(1, b"0,1"))
        assert other.compare_and_set("members", 1, b"0,2") == (True, Versioned(2, b"0,2"))
        assert one.get("members") == b"0,2"


def test_another_secret_is_refused():
    with (
        contextlib.closing(StoreServer("127.0.0.1", 0, SECRET)) as server,
        pytest.raises(InvalidArgument, match="another secret"),
    ):
        StoreClient(f"127.0.0.1:{server.port}", bytes(32), timeout=20.0)


def test_too_large_a_value_and_a_closed_client_are_refused():
    with clients(1) as (one,):
        with pytest.raises(InvalidArgument, match="at most 65536"):
            one.set("key", bytes(65537))
        one.close()
        one.close()
        with pytest.raises(InvalidArgument, match="client is NULL"):
            one.set("key", b"")
