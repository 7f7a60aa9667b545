"""State: what an elastic job continues from; every rank keeps the last commit in its memory."""

from __future__ import annotations

import abc
import copy
import pickle
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from rabit.elastic.renewal import Leaves, Renewal
from rabit.elastic.replicas import Replicas, Standing
from rabit.elastic.updates import Updates
from rabit.engine.current import current_engine
from rabit.errors import Internal, InvalidArgument
from rabit.ops.objects import allgather_object, broadcast_object, misfit
from rabit.session import is_initialized, rank, seat_now

__all__ = ["ObjectState", "State"]


class State(abc.ABC):
    """Base of states: subclasses say how to save, restore and broadcast what they hold.

    The ranks commit after the same steps.  A rank that is lost between two commits costs the work
    since the last one.  Not thread-safe.
    is_local: parts of it differ from rank to rank (a residual of a method, say), and belong to
    one step on all ranks: the state keeps two commits then, and a commit waits for the other ranks.
    replicas: of such a state, in an elastic job: ranks on this many other hosts keep copies of a rank's own parts,
    and the process that replaces a lost rank continues with them.  0: it begins without.
    """

    is_local = False
    _commits = 0  # of this process and of those from which it has taken its state
    _was_reset = False  # The ranks have changed since this process made it.
    _is_beginning = True  # Nothing has been committed yet: what is saved takes no other rank.
    _is_first = False  # It has met with the others when no rank had begun with this state.
    _updates: Updates | None = None  # while elastic.run calls a function with this state

    def __init__(self, replicas: int = 0) -> None:
        if replicas < 0:
            raise InvalidArgument(f"{type(self).__name__}: replicas is {replicas}: expected 0 or more.")
        self._reset_callbacks: list[Callable[[], None]] = []
        self._is_new = True  # until it has been synchronised
        self._replicas = Replicas(replicas) if replicas else None

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Calls each of `callbacks` after the ranks have changed, before the state is synchronised."""
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        """The ranks have changed: rank, size and engine are the new ones."""
        self._was_reset = True
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """From now on a loss goes back to this point.  Copies, and checks for updates of the hosts."""
        self._is_beginning = False
        try:
            self.save()
        except InvalidArgument as error:
            if self._replicas is not None and self._has_replicas():
                self._replicas.refuse(error)
            raise
        if self._has_replicas():
            try:
                self._replicate(self._commits + 1)
            except BaseException:
                self.step_back(1)  # It is not a commit: others may continue from the previous one.
                raise
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks, at the same commit, if the members are to change.

        Part of `commit`.  In a job that may grow all ranks vote, and it takes the answer; where commits
        follow each other quickly, that of an earlier commit.  With a state that is local it waits for all.
        In other jobs it does nothing.
        """
        if self._updates is not None:
            self._updates.check(keeps_together=self.is_local)

    def sync(self) -> None:
        """Every rank takes the newest commit, from the lowest rank that has it.  Blocks.

        A rank that finished the last step before the loss may have committed it, and others not.  Where
        parts are local all go back to the last commit that every rank has, and keep their own.  A rank in which a
        loss has interrupted the first of these calls adds its own parts, as they were before it, to the commit that
        the call gave the others.  Where it gave none, the lowest such rank gives the rest.
        """
        if self._has_replicas() and not self.is_local:
            raise InvalidArgument(
                f"{type(self).__name__}: replicas on rank {rank()}: there is nothing to copy, since every rank of this "
                "state has all of it: it has no strategy and no per_rank values. Leave replicas out."
            )
        if self._is_beginning and not self._was_reset:
            self.save()  # The program may have loaded something since it made the state.
        mine = self._standing()
        ranks = allgather_object(mine, "rabit.elastic.commits")
        counts = [peer.commits for peer in ranks]
        chosen = max(counts)
        self._is_first |= chosen < 0 and not any(peer.begins for peer in ranks)
        if self.is_local and chosen >= 0:
            # Newcomers have none.  One that has begun has its own parts of commit 0.
            chosen = min(max(0, peer.commits) for peer in ranks if peer.commits >= 0 or peer.begins)
            if mine.commits > chosen:
                self.step_back(mine.commits - chosen)
                self._commits = chosen  # Also if what follows fails: its copies are of that commit.
            counts = [min(count, chosen) for count in counts]
        has_own = self.is_local and mine.commits >= 0
        if has_own:  # Else newcomers would get what the root has done since that commit.
            self.restore()
        self.broadcast(max(range(len(ranks)), key=lambda number: (counts[number], ranks[number].begins)))
        if self.is_local:
            taken = self._taken_over(ranks, chosen)
            if self._has_replicas():
                assert self._replicas is not None
                self.take_left(self._replicas.left_over(chosen, ranks))
            self.take_own(has_own, taken)
        self._commits = max(0, chosen)
        self._is_beginning = False
        self.save()
        self._is_new = False
        if self._has_replicas():
            self._replicate(self._commits)

    def _standing(self) -> Standing:
        seat, is_heir = seat_now()
        kept = self._replicas.kept() if self._replicas is not None else frozenset()
        # What a process that comes has committed by itself is not a commit of the others.
        has_none = self._commits == 0 or current_engine().config.joins
        commits = -1 if self._is_new and has_none else self._commits
        return Standing(commits, seat, is_heir, own_host(), kept, self._begins())

    def _begins(self) -> bool:
        """Whether it is one of the first ranks with this state, and a loss has kept it from having a commit of it."""
        is_first = self._is_first or not current_engine().config.joins
        return is_first and self._is_new and self._was_reset and self._commits == 0

    def _has_replicas(self) -> bool:
        """True in what can lose ranks and continue."""
        if self._replicas is None or self._updates is None:
            return False
        return current_engine().config.min_np > 0

    def _taken_over(self, ranks: Sequence[Standing], commit: int) -> Any:
        """The own part of the rank for which this one has come; None: there is none."""
        if not self._has_replicas():
            return None
        assert self._replicas is not None
        self._replicas.place(ranks)
        return self._replicas.hand_over(commit, ranks)

    def _replicate(self, commit: int) -> None:
        assert self._replicas is not None
        self._replicas.exchange(commit, self.own_part())

    @abc.abstractmethod
    def save(self) -> None:
        """Keeps a copy of the state as it is."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Brings the last copy back.  After a loss rank, size and engine are the new ones already."""

    @abc.abstractmethod
    def broadcast(self, root_rank: int) -> None:
        """Gives every rank the state of `root_rank`.  Blocks."""

    def step_back(self, commits: int) -> None:
        """Of a state that is local: goes back this many commits before the last; one is kept."""
        raise Internal(f"{type(self).__name__} is local and has no step_back. Write it.")

    def own_part(self) -> Any:
        """Of a state that is local: what is this rank's own in the last copy; no None."""
        raise Internal(f"{type(self).__name__} has replicas and no own_part. Write it.")

    def take_own(self, has_own: bool, taken: Any) -> None:  # noqa: B027 (for states that are local)
        """Of a state that is local, after a broadcast: brings back what is this rank's own.

        has_own: it has the commit that all continue from.  taken: what `own_part` gave on the rank for which this
        one has come; None: it has its own, or there is none, and it begins.
        """

    def take_left(self, parts: Sequence[Any]) -> None:  # noqa: B027 (most have no use for them)
        """Before `take_own`: what `own_part` gave on lost ranks that nobody has replaced, where it is kept here."""

    def reset(self) -> None:  # noqa: B027 (most states have nothing to adapt)
        """Adapts what depends on rank and size."""


class ObjectState(State):
    """Named values, as attributes: numbers, NumPy arrays, whatever copies and pickles (else InvalidArgument).

    A value with `state_dict` and `load_state_dict`, such as an ElasticSampler, stays the same object:
    its state dictionary is what is saved, and loading it adapts it to the ranks.
    per_rank: names of the values that differ from rank to rank; a rank that comes begins with those that its
    program has passed.  replicas: see State.

        state = rabit.elastic.ObjectState(step=0, weights=np.zeros(1000))
        state = rabit.elastic.ObjectState(step=0, residual=np.zeros(1000), per_rank=["residual"], replicas=1)
    """

    # Of values whose copies go where those of the last commit are: none. The allocator gives a new array what the step
    # has just freed, which is in the caches still: 1 MiB took 22 us there, and 65 us where the last commit was.
    _kinds: Sequence[Leaves] = ()

    def __init__(self, *, per_rank: Collection[str] = (), replicas: int = 0, **values: Any) -> None:
        unknown = sorted(set(per_rank) - set(values))
        if unknown:
            raise InvalidArgument(
                f"{type(self).__name__}: per_rank has {', '.join(unknown)}, and the values are "
                f"{', '.join(values) or 'none'}. Pass the value by this name."
            )
        self.is_local = self.is_local or bool(per_rank)
        super().__init__(replicas)
        self._names = tuple(values)
        self._per_rank = tuple(per_rank)
        self._saved: dict[str, Any] | None = None  # the snapshot of the last commit
        self._before: dict[str, Any] | None = None  # that of the one before, where parts are local
        self._check_names(values)
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def _check_names(self, names: Collection[str]) -> None:
        """Raises InvalidArgument for those that the state has for itself: a value would take their place."""
        taken = [name for name in names if hasattr(ObjectState, name) or (name[:1] == "_" and name in vars(self))]
        if taken:
            raise InvalidArgument(
                f"{type(self).__name__}: a state has something of its own that is called {', '.join(taken)}. Give the "
                "value another name."
            )

    def save(self) -> None:
        saved = self._saved
        before, worn = (saved, self._before) if self.is_local else (None, saved)
        renewal = self._renewal(worn)
        self._before = before  # In `worn` there is no commit any more.
        try:
            self._saved = renewal.fill()
        except BaseException:  # A signal's, such as Ctrl-C: half of one commit and half of another would be none.
            self._saved = renewal.fill()
            raise

    def _renewal(self, worn: Any) -> Renewal:
        snapshot = self._snapshot()
        try:
            return Renewal(snapshot, worn, self._kinds)
        except (TypeError, AttributeError, RuntimeError, pickle.PicklingError) as error:
            if type(error).__name__ == "OutOfMemoryError":  # torch's: no value is to blame.
                raise
            where = f" on rank {rank()}" if is_initialized() else ""
            raise InvalidArgument(
                f"{type(self).__name__}{where}: {misfit('the value', snapshot, copy.deepcopy)} cannot be copied: "
                f"{error}. Keep it outside of the state, or pass what it is made of."
            ) from error

    def _snapshot(self) -> dict[str, Any]:
        """What a commit copies."""
        return {"values": self._contents()}

    def _values(self) -> dict[str, Any]:
        """Those of the last commit."""
        assert self._saved is not None
        values: dict[str, Any] = self._saved["values"]
        return values

    def restore(self) -> None:
        self._take(copy.deepcopy(self._values()))

    def broadcast(self, root_rank: int) -> None:
        shared = {name: content for name, content in self._contents().items() if name not in self._per_rank}
        self._take(broadcast_object(shared, root_rank, "rabit.elastic.values"))

    def step_back(self, commits: int) -> None:
        if commits != 1 or self._before is None:
            raise Internal(
                f"{type(self).__name__} on rank {rank()} is {commits} commits ahead of another rank, and goes back by "
                "1 at most. Call commit() after the same steps on all ranks, in the function that elastic.run calls, "
                "where it waits for the other ranks."
            )
        self._saved, self._before = self._before, None
        self.restore()

    def own_part(self) -> Any:
        values = self._values()
        return {name: values[name] for name in self._per_rank}

    def take_own(self, has_own: bool, taken: Any) -> None:
        own = taken or {name: self._values()[name] for name in self._per_rank}
        self._take(copy.deepcopy(own))

    def reset(self) -> None:
        for name in self._names:
            value = getattr(self, name)
            if _is_stateful(value) and hasattr(value, "reset"):
                value.reset()

    def _contents(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self._names}
        return {
            name: value.state_dict() if _is_stateful(value) else value
            for name, value in values.items()
        }

    def _take(self, contents: dict[str, Any]) -> None:
        for name, value in contents.items():
            held = getattr(self, name)
            if _is_stateful(held):
                held.load_state_dict(value)
            else:
                setattr(self, name, value)


def own_host() -> str:
    """What all ranks of this host have in common."""
    return current_engine().config.host_key


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
