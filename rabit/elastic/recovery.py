"""run: a training function that continues when ranks are lost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rabit.diagnostics.ending import tell_given_up
from rabit.diagnostics.tracebacks import one_line
from rabit.elastic.state import State
from rabit.elastic.updates import HostsUpdatedInterrupt, Updates
from rabit.engine.current import current_engine
from rabit.errors import Aborted, InvalidArgument, PeerLost, RabitError, TimedOut, first_loss
from rabit.ops.collectives import barrier
from rabit.rendezvous.membership import Membership
from rabit.rendezvous.membership_store import membership_store
from rabit.rendezvous.survivors import next_membership, whom_not_reached
from rabit.session import leave, member_number, members_now, start_over

if TYPE_CHECKING:
    from rabit.rendezvous.membership_store import MembershipStore

__all__ = ["run"]

T = TypeVar("T")

# Losses in a row without a commit in between: a failure that returns each time is not a lost rank.
_RESETS_MAX = 16


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Makes `func(state, ...)` continue with the ranks that are left when some are lost::

        @rabit.elastic.run
        def train(state):
            while state.step < 1000:
                ...
                state.step += 1
                state.commit()

    Calls `func` with the state of the newest commit: at the start, and again after each loss and each
    update of the hosts, on the ranks that there are then.  So `func` begins where `state` says.  Returns
    what `func` returns, when all ranks have returned; the process of a rank whose host is to be left
    ends (SystemExit).  In a job that is not elastic (rabitrun without --min-np) a loss is raised.
    """

    @functools.wraps(func)
    def wrapper(state: State, *arguments: Any, **named: Any) -> T:
        if not isinstance(state, State):
            raise InvalidArgument(
                f"the first argument of {getattr(func, '__name__', 'the function')} is "
                f"{type(state).__name__}: elastic.run needs a State, such as "
                "rabit.elastic.ObjectState(step=0). Pass it first."
            )
        with Recovery(state) as recovery:
            while True:
                try:
                    recovery.prepare()
                    result = func(state, *arguments, **named)
                    recovery.finish()
                    return result
                except Exception as error:
                    recovery.take(error)

    return wrapper


class Recovery:
    """Brings one process from a loss, or an update of the hosts, to the next membership.

    One for each call of a function.  Its block is what the state's commits see updates in.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._member = member_number()
        self._config = current_engine().config
        self._store: MembershipStore | None = None
        if self._member is not None:
            self._store = membership_store(self._config, self._member)
        self._updates = Updates(self._store if self._config.max_np else None)
        self._epoch, self._members = members_now()
        self._error: BaseException | None = None  # that is not recovered from yet
        self._is_over = False  # for this process
        self._have_met = True  # the members of this epoch
        self._resets = 0
        self._commits = state._commits

    def __enter__(self) -> Recovery:
        self._state._updates = self._updates
        return self

    def __exit__(self, *_: object) -> None:
        self._state._updates = None
        if self._store is not None:
            self._store.close()

    def take(self, error: Exception) -> None:
        """Raises `error` unless it says that members were lost or change, and there is a way on."""
        is_update = isinstance(error, HostsUpdatedInterrupt)
        is_loss = isinstance(error, PeerLost | Aborted) or first_loss() is not None
        if self._member is None or self._is_over or not (is_loss or is_update):
            raise error
        if self._state._commits > self._commits:
            self._commits, self._resets = self._state._commits, 0
        self._resets += 1
        if self._resets > _RESETS_MAX:
            raise error
        self._error = error

    def prepare(self) -> None:
        """Before each call of the function: the ranks that there are, with one state."""
        error, self._error = self._error, None
        if isinstance(error, HostsUpdatedInterrupt):
            if not self._updates.has_told:  # The program's own: the others may wait for this rank.
                current_engine().abort(one_line(error))
            self._start_over(-1, "")
        elif error is not None:
            self._start_over(self._member_lost(error), one_line(error))
            # Not before: where ranks are lost during a recovery there is no engine, and what restores may need one,
            # such as a sampler that deals its samples by rank and size.
            self._state.restore()
        if error is not None:
            self._state.on_reset()
        self._state.sync()

    def has_prepared(self) -> bool:
        """Like `prepare`; False: members have been lost meanwhile, and it is to be called again."""
        try:
            self.prepare()
        except Exception as error:
            self.take(error)
            return False
        return True

    def finish(self) -> None:
        """The function has returned: no one leaves while others may need it to repeat a step."""
        self._updates.finish()
        barrier(name="rabit.elastic.end")

    def _start_over(self, lost: int, why: str) -> None:
        agreed = self._agree(lost, why)
        if self._member not in agreed.members:
            # What follows the training, such as saving its result, is for those that continue.
            leave()
            raise SystemExit(0)
        survivors = [member for member in agreed.members if member in self._members]
        self._epoch, self._members = agreed.epoch, agreed.members
        if survivors[0] == self._member:
            # A member that leaves as requested has not failed, and its host is as good as before.
            told = {member: "" if member in agreed.left else why for member, why in agreed.lost.items()}
            tell_given_up(told)
        self._have_met = False
        try:
            start_over(agreed)
            self._have_met = True
        except TimedOut as error:  # One of them has been lost meanwhile, silently.
            raise PeerLost(str(error), error.rank) from error
        self._updates.start_over()

    def _agree(self, lost: int, why: str) -> Membership:
        assert self._member is not None and self._store is not None
        self._is_over = True
        # Members that could not come together may be cut off from each other, and not from the store.
        away = None
        if not self._have_met:
            away = whom_not_reached(self._store, self._members, self._member)
        limit_s = self._config.elastic_timeout
        agreed = next_membership(
            self._store, self._member, self._epoch, lost, why, limit_s, away
        )
        self._is_over = False
        return agreed

    def _member_lost(self, error: BaseException) -> int:
        """The number of the process that this one has lost, or -1."""
        loss = error if isinstance(error, RabitError) and error.rank >= 0 else first_loss()
        rank = -1 if loss is None else loss.rank
        return self._members[rank] if 0 <= rank < len(self._members) else -1
