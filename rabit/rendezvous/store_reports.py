"""What the ranks of a rabit.Meeting report of their ends, held by its store in the order of arrival.

A launcher that starts its ranks hears them through a pipe.  Processes that somebody else has started share the store
with the driver, and nothing more: the number of a report is claimed before the report is written, so that a rank that
only noticed a loss comes after the rank that caused it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from rabit.errors import RabitError, TimedOut
from rabit.rendezvous.placement import given_secret
from rabit.rendezvous.store_client import StoreClient

__all__ = ["read_reports", "reporter"]

_COUNT = "meeting/reports"
# A driver that does not answer is gone, and nobody reads the report.
_LIMIT_S = 2.0


def reporter(environ: Mapping[str, str]) -> Callable[[bytes], None]:
    """A function that sends one report of the rank that `environ` describes; at most 2 s."""
    rank = int(environ["RABIT_RANK"])
    address, secret = environ["RABIT_STORE_ADDRESS"], given_secret(environ, rank)

    def report(line: bytes) -> None:
        # Without the driver there is no reader; the error itself is on the standard error stream.
        with (
            contextlib.suppress(RabitError),
            contextlib.closing(StoreClient(address, secret, rank=rank, timeout=_LIMIT_S)) as store,
        ):
            store.set(_key(_claim(store)), b"%d %s" % (rank, line))

    return report


def read_reports(store: StoreClient, seen: int) -> Iterator[tuple[int, int, bytes]]:
    """The reports after number `seen`: the number of each, its rank and its line."""
    try:
        count = store.watch(_COUNT, seen, 0.0).version
    except TimedOut:
        return
    for number in range(seen + 1, count + 1):
        try:
            rank, _, line = store.get(_key(number), _LIMIT_S).partition(b" ")
        except TimedOut:
            continue  # Its rank was killed between the claim and the report.
        yield number, int(rank), line


def _claim(store: StoreClient) -> int:
    version, is_mine = 0, False
    while not is_mine:
        is_mine, held = store.compare_and_set(_COUNT, version, b"")
        version = held.version
    return version


def _key(number: int) -> str:
    return f"meeting/report/{number}"
