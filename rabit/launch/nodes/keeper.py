"""Keeper: looks after the ranks of one host when the launcher is gone, by what the stores say."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import selectors
import threading
import time
from collections.abc import Callable, Collection, Mapping

from rabit.errors import RabitError
from rabit.rendezvous.membership import Membership
from rabit.rendezvous.replicated_store import ReplicatedStore
from rabit.rendezvous.survivors import change_membership
from rabit.threads import start_thread

__all__ = ["KEPT", "OVER", "Keeper"]

# Whoever keeps a member of the job sets it again and again, to another value each time; without that,
# stores end, and so do agents whose processes only wait to become members.
KEPT = "kept"
# Set when the job is over: stores end at once.
OVER = "over"
_BEAT_S = 5.0
_ALONE_BEAT_S = 1.0
# Without a majority for so long this host is taken to be cut off from the job.
_CUT_OFF_S = 20.0
_UNKEPT_S = 60.0
_LAST_WORDS_S = 15.0


class Keeper:
    """A thread of the agent; its verdict comes through the agent's selector.

    store: of the job.  numbers: of the processes of this host.  stop: called with the reason, by the thread
    that serves the selector, when what runs here is to end.
    """

    def __init__(
        self,
        store: ReplicatedStore,
        numbers: Collection[int],
        selector: selectors.BaseSelector,
        stop: Callable[[str], None],
    ) -> None:
        self._store = store
        self._selector = selector
        self._stop = stop
        self._lock = threading.Lock()
        self._running = set(numbers)
        self._ends: dict[int, str] = {}  # of processes that have ended, and how
        self._has_told = False  # of all ends
        self._is_alone = False
        self._is_over = False
        self._outcome = ""
        self._wake = threading.Event()
        self._reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._read_end, self._write_end = os.pipe()
        self._selector.register(self._read_end, selectors.EVENT_READ, self._heard)
        self._thread = start_thread(self._run, "keeper")

    def ended(self, number: int, how: str) -> None:
        """The process has ended; how: "" if well."""
        with self._lock:
            self._running.discard(number)
            self._ends[number] = how
            self._has_told = False
        self._wake.set()

    def alone(self) -> None:
        """The launcher is gone: from now on this host says itself how its processes end."""
        with self._lock:
            self._is_alone = True
        self._wake.set()

    def close(self) -> None:
        """Ends the thread; alone, when it has reported all ends, or after a while."""
        with self._lock:
            self._is_over = True
            is_alone = self._is_alone
        self._wake.set()
        if is_alone:
            self._thread.join(_LAST_WORDS_S)
        self._selector.unregister(self._read_end)
        self._store.close()

    @property
    def outcome(self) -> str:
        """How the whole job has ended, on the host where it ends last, once this is closed; else empty."""
        with self._lock:
            return self._outcome

    def _heard(self) -> None:
        os.read(self._read_end, 1)
        self._stop(self._reasons.get_nowait())

    def _run(self) -> None:
        answered_at = kept_at = time.monotonic()
        kept: bytes | None = None
        is_member = True
        while True:
            with self._lock:
                is_alone, running = self._is_alone, set(self._running)
                # The stores may end with the job: who has told everything asks nothing more.
                if self._has_told and not running if is_alone else self._is_over:
                    return
            if running and is_member and self._beats():
                answered_at = time.monotonic()
            verdict = ""
            if is_alone:
                with contextlib.suppress(RabitError):  # No majority: seen by the time.
                    membership = self._tell_ends()
                    answered_at = time.monotonic()
                    is_member = not running.isdisjoint(membership.members)
                    verdict = _verdict(membership, running)
                    if _is_over(membership):
                        with self._lock:
                            self._outcome = _outcome(membership)
                        self._store.spread(OVER, b"")
                        self._tell(verdict if running else "")
                        return
                now = self._store.told(KEPT)
                if now != kept:
                    kept, kept_at = now, time.monotonic()
                verdict = verdict or self._silence(answered_at, kept_at)
            else:
                kept_at = time.monotonic()
            self._tell(verdict if running else "")
            self._wake.wait(_ALONE_BEAT_S if is_alone else _BEAT_S)
            self._wake.clear()

    def _tell(self, verdict: str) -> None:
        if verdict:
            self._reasons.put(verdict)
            os.write(self._write_end, b"!")

    def _beats(self) -> bool:
        """Says that members are kept here; True if a majority of the stores has heard it."""
        return self._store.spread(KEPT, secrets.token_bytes(8)) >= self._store.majority

    def _silence(self, answered_at: float, kept_at: float) -> str:
        now = time.monotonic()
        if now - answered_at > _CUT_OFF_S:
            return f"fewer than {self._store.majority} stores have answered for {_CUT_OFF_S:g} s"
        if now - kept_at > _UNKEPT_S:
            return f"no member of the job has been kept anywhere for {_UNKEPT_S:g} s"
        return ""

    def _tell_ends(self) -> Membership:
        """What the stores hold with the ends of this host."""
        with self._lock:
            ends = dict(self._ends)
        held = change_membership(self._store, lambda held: _with_ends(held, ends))
        with self._lock:
            self._has_told = ends == self._ends
        return held


def _with_ends(membership: Membership, ends: Mapping[int, str]) -> Membership:
    """`membership` with what the launcher has not written of these ends."""
    for number, how in ends.items():
        if number in membership.hosts and number not in membership.ended:
            membership = membership.with_ended(number, how)
    return membership


def _is_over(membership: Membership) -> bool:
    return all(member in membership.ended for member in membership.members)


def _outcome(membership: Membership) -> str:
    """What rabitrun would have ended with, of a job that is over."""
    done = membership.done + sum(1 for how in membership.ended.values() if not how)
    if done >= membership.least:
        return "the job has ended, as with status 0"
    bad = next((f": rank {each} {how}" for each, how in membership.ended.items() if how), "")
    return f"the job has failed{bad}"


def _verdict(membership: Membership, running: Collection[int]) -> str:
    """Why what runs here is to end; "": it is wanted."""
    if _is_over(membership):
        return "all ranks of the job have ended"
    if any(each in membership.hosts and each not in membership.ended for each in running):
        return ""
    return "the job continues without the processes of this host"
