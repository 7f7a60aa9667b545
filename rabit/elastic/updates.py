"""Updates: whether the members of an elastic job are to change though no one is lost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rabit.engine.current import current_engine
from rabit.ops.votes import Vote
from rabit.rendezvous.membership import KEY, Membership
from rabit.rendezvous.next_epoch import is_outdated
from rabit.rendezvous.survivors import Store
from rabit.session import rank

__all__ = ["HostsUpdatedInterrupt", "Updates"]

# So seldom a vote costs a message to the store.
_LOOK_EVERY_S = 0.1
# So much later a change, which takes seconds to come about, is seen where commits follow each other quickly: what the
# engine does for a vote, steps of 10 ms feel.
_VOTE_EVERY_S = 0.5
# Commits that are further apart than this wait for their own vote: it is little compared with the step.
_SELDOM_S = 0.1
# What rank 0 votes; above these bits it is how many checks come before the next vote is asked.
_IS_OUTDATED = 1
_IS_SELDOM = 2
_BITS = 2
# Steps may become slower meanwhile: at most this many checks without a vote.
_UNASKED_MOST = 63


class HostsUpdatedInterrupt(Exception):
    """Hosts have come or are to be left: the members of the job change.

    `elastic.run` continues from the commit that raised it.  A program may raise it as well, on any rank:
    the others go back to their last commit then.  Horovod's name.
    """


class Updates:
    """Rank 0 looks at the store, and all ranks learn in one vote what it has seen.  One thread only.

    So all ranks stop at the same commit, and no work is lost.  A vote takes as long as messages to rank 0 and
    back, which short steps would feel: it is on its way during the next step then, and the commit after that
    takes its answer.  Nor is there one in each step then.
    store: None: the members of this job change by losses alone, and no one looks.
    """

    def __init__(self, store: Store | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._look_at_s = 0.0
        self._is_outdated = False
        self._asked_s = -math.inf
        self._checks = 0  # since then
        self._unasked = 0  # checks to come before there is a vote again
        self._asked: Vote | None = None  # whose answer is for the next check
        self._joins = 0  # of the engine; ranks that had joined have missed checks
        self.has_told = False  # of an update, by an exception on all ranks

    def check(self, keeps_together: bool = False) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if there is an update.

        Blocks until all have come to this check, or where checks follow each other quickly to an earlier one, or not.
        keeps_together: the ranks wait for each other, also where the members cannot change so.
        """
        if self._store is None and not keeps_together:
            return
        if self._joins != current_engine().joins:
            self._joins, self._unasked, self._asked = current_engine().joins, 0, None
        self._checks += 1
        if self._unasked > 0:
            self._unasked -= 1
        else:
            vote, self._asked = self._asked or self._ask(), None
            answer = vote.wait()
            if answer & _IS_OUTDATED:
                self.has_told = True
                raise HostsUpdatedInterrupt(
                    "the hosts of the job have changed, and its ranks must meet again, which rabit.elastic.run does: "
                    "call commit() inside the function that it runs."
                )
            if keeps_together or answer & _IS_SELDOM:
                return
            self._unasked = answer >> _BITS
        if self._unasked == 0:
            self._asked = self._ask()

    def finish(self) -> None:
        """There is no further check.  Blocks until no vote is on its way."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.wait()

    def start_over(self) -> None:
        """The members are others now."""
        self._is_outdated = self.has_told = False
        self._look_at_s = 0.0
        self._asked_s = -math.inf
        self._unasked = self._joins = 0
        self._asked = None  # It was one of the engine that is gone.

    def _ask(self) -> Vote:
        now = self._clock()
        between_s = (now - self._asked_s) / max(1, self._checks)
        self._asked_s, self._checks = now, 0
        bits = 0
        if rank() == 0:  # The others' clocks and stores may say something else.
            bits = _IS_OUTDATED * self._sees_one(now) | _IS_SELDOM * (between_s > _SELDOM_S)
            bits |= _unasked(between_s) << _BITS
        return Vote(bits, "rabit.elastic.update", engine=current_engine())

    def _sees_one(self, now: float) -> bool:
        if self._store is not None and not self._is_outdated and now >= self._look_at_s:
            self._look_at_s = now + _LOOK_EVERY_S
            held = self._store.watch(KEY, 0, 0.0).value
            self._is_outdated = is_outdated(Membership.from_json(held))
        return self._is_outdated


def _unasked(between_s: float) -> int:
    """How many checks fit between two votes, if so much time is between two checks; at most some."""
    return min(max(0, int(_VOTE_EVERY_S / max(between_s, 1e-6)) - 1), _UNASKED_MOST)
