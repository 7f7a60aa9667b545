"""CallOrder: finds the collective that ranks of a group call differently, and says so.

The names of a group's operations contain their kind, type and size, so that repeated ones find what
the engine has prepared.  Ranks that call different collectives therefore never meet in the engine:
it sees two operations, each with ranks missing.  But the n-th collective of a group is the same on
all ranks.  A rank that waits for long compares its calls with those of others, through torch's store.

A difference ends the group: its operations stay in flight, and later calls would meet those of another number.
What the engine finds in operations of one name (another root, say) does not: the calls correspond, and continue.
"""

from __future__ import annotations

import json
import time
from collections import deque
from typing import Any

import rabit

__all__ = ["CallOrder"]

_FIRST_LOOK_S = 0.25
_PAUSE_MAX_S = 0.5
_PAUSE_PER_RANK_S = 0.005  # the store is one process, and all ranks ask it
_REMEMBERED = 64


class CallOrder:
    """The collectives that this rank has called of one group.  Thread-safe."""

    def __init__(self, store: Any, rank: int, size: int, group: str) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._group = group
        self._count = 0
        self._calls: deque[tuple[int, tuple[Any, ...]]] = deque(maxlen=_REMEMBERED)
        self.mismatch = ""  # what has ended the group

    def note(self, key: tuple[Any, ...]) -> None:
        """This rank calls a collective.  key: its kind, what must be equal of it, and its type."""
        self._count += 1
        self._calls.append((self._count, key))

    def start_again(self, joins: int) -> None:
        """Ranks have missed calls of others until now: after this many joins all count from one number on."""
        self._count = joins << 32

    def refuse(self, what: str) -> None:
        """Raises Mismatch: the group has ended, and `what` was called on it."""
        raise rabit.Mismatch(
            f"{what} on rank {self._rank}: group '{self._group}' has ended with a mismatch, after which the calls of "
            "its ranks no longer correspond. Call destroy_process_group and init_process_group (or new_group) on "
            f"every rank. The mismatch was: {self.mismatch}"
        )

    def wait(self, handle: rabit.Handle, limit_s: float | None) -> None:
        """Waits for an operation of the group, at most `limit_s`; None: as long as the engine does.

        Raises Mismatch if ranks have called different collectives, and what the engine raises.
        """
        started, pause = time.monotonic(), _FIRST_LOOK_S
        longest = _PAUSE_MAX_S + _PAUSE_PER_RANK_S * self._size
        while True:
            left = float("inf") if limit_s is None else started + limit_s - time.monotonic()
            try:
                handle.wait(max(0.0, min(pause, left)))
                return
            except rabit.TimedOut:
                if handle.done():
                    raise
            if left <= pause:
                raise rabit.TimedOut(
                    f"'{handle.name}' on rank {self._rank} has not finished after {limit_s:g} s and "
                    "is still in flight. Wait again, or look for the rank that did not submit it."
                )
            difference = self._difference()
            if difference:
                self.mismatch = difference
                raise rabit.Mismatch(difference)
            pause = min(longest, 2 * pause)

    def _difference(self) -> str:
        """What ranks disagree about, in words; empty if they do not, or if nobody can be asked."""
        try:
            mine = [(number, _described(key)) for number, key in self._calls.copy()]
            self._store.set(f"calls.{self._rank}", json.dumps(mine))
            if self._store.check(["mismatch"]):
                return str(self._store.get("mismatch").decode())
            # Whoever differs from rank 0 finds it, or rank 0 does.
            for peer in range(1, self._size) if self._rank == 0 else (0,):
                if self._store.check([f"calls.{peer}"]):
                    theirs = dict(json.loads(self._store.get(f"calls.{peer}")))
                    found = self._first_difference(mine, peer, theirs)
                    if found:
                        self._store.set("mismatch", found)
                        return found
        except RuntimeError as error:
            if isinstance(error, rabit.RabitError):
                raise
            # Who serves the store has died: the engine tells who that is.
        return ""

    def _first_difference(
        self, mine: list[tuple[int, str]], peer: int, theirs: dict[int, str]
    ) -> str:
        for number, call in mine:
            other = theirs.get(number, call)
            if other != call:
                return (
                    f"collective {number} of group '{self._group}' is {call} on rank {self._rank}, "
                    f"but {other} on rank {peer}. Call the same collectives in the same order, with "
                    "equal shapes and types, on every rank of the group (errors.md#mismatch)."
                )
        return ""


def _described(key: tuple[Any, ...]) -> str:
    kind, *rest = key
    if not rest:
        return str(kind)
    *counts, dtype = rest
    return f"{kind} of {dtype}[{', '.join(map(str, counts))}]" if counts else f"{kind} of {dtype}"
