"""run: a training function that goes on when ranks are lost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from rabit.diagnostics.ending import tell_given_up
from rabit.diagnostics.tracebacks import one_line
from rabit.elastic.state import State
from rabit.elastic.survivors import next_membership
from rabit.engine.current import current_engine
from rabit.errors import Aborted, InvalidArgument, PeerLost, RabitError, TimedOut, first_loss
from rabit.ops.reductions import barrier
from rabit.rendezvous.membership import Membership
from rabit.rendezvous.store_client import StoreClient
from rabit.session import member_number, start_over

__all__ = ["run"]

T = TypeVar("T")

# Losses in a row without a commit in between: what comes back each time is no lost rank.
_RESETS_MAX = 16


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Makes `func(state, ...)` go on with the ranks that are left when some are lost::

        @rabit.elastic.run
        def train(state):
            while state.step < 1000:
                ...
                state.step += 1
                state.commit()

    Calls `func` with the state of the newest commit: at the start, and again after each loss, on the
    ranks that are left.  So `func` begins where `state` says.  Returns what `func` returns, when all
    ranks have returned.  In a job that is not elastic (rabitrun without --min-np) a loss is raised.
    """

    @functools.wraps(func)
    def wrapper(state: State, *arguments: Any, **named: Any) -> T:
        if not isinstance(state, State):
            raise InvalidArgument(
                f"the first argument of {getattr(func, '__name__', 'the function')} is "
                f"{type(state).__name__}: elastic.run needs a State, such as "
                "rabit.elastic.ObjectState(step=0). Pass it first."
            )
        recovery = Recovery(state)
        while True:
            try:
                recovery.prepare()
                result = func(state, *arguments, **named)
                # Nobody leaves while others may still need it to repeat a step.
                barrier(name="rabit.elastic.end")
                return result
            except Exception as error:
                recovery.take(error)

    return wrapper


class Recovery:
    """Brings one process from a loss to the next membership.  One for each call of a function."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._member = member_number()
        self._config = current_engine().config
        self._store: StoreClient | None = None
        self._membership: Membership | None = None  # None: the first
        self._error: BaseException | None = None  # that is not recovered from yet
        self._is_over = False  # for this process
        self._resets = 0
        self._commits = state.commits

    def take(self, error: Exception) -> None:
        """Raises `error` unless it says that a rank was lost, and there is a way on."""
        is_loss = isinstance(error, PeerLost | Aborted) or first_loss() is not None
        if self._member is None or self._is_over or not is_loss:
            raise error
        if self._state.commits > self._commits:
            self._commits, self._resets = self._state.commits, 0
        self._resets += 1
        if self._resets > _RESETS_MAX:
            raise error
        self._error = error

    def prepare(self) -> None:
        """Before each call of the function: the ranks that are left, with one state."""
        error, self._error = self._error, None
        if error is not None:
            self._state.restore()
            self._start_over(self._member_lost(error), one_line(error))
            self._state.on_reset()
        self._state.sync()

    def _start_over(self, lost: int, why: str) -> None:
        agreed = self._membership = self._agree(lost, why)
        if agreed.members[0] == self._member:
            tell_given_up(agreed.lost)
        try:
            start_over(agreed)
        except TimedOut as error:  # One of them has been lost meanwhile, without a word.
            raise PeerLost(str(error), error.rank) from error

    def _agree(self, lost: int, why: str) -> Membership:
        config = self._config
        assert self._member is not None
        if self._store is None:
            self._store = StoreClient(
                config.store_address, config.secret, rank=self._member, library_path=config.library
            )
        epoch = 1 if self._membership is None else self._membership.epoch
        self._is_over = True
        agreed = next_membership(
            self._store, self._member, epoch, lost, why, config.elastic_timeout
        )
        self._is_over = False
        return agreed

    def _member_lost(self, error: BaseException) -> int:
        """The number of the process that this one has lost, or -1."""
        loss = error if isinstance(error, RabitError) and error.rank >= 0 else first_loss()
        rank = -1 if loss is None else loss.rank
        members = range(self._config.size) if self._membership is None else self._membership.members
        return members[rank] if 0 <= rank < len(members) else -1
