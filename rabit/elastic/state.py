"""State: what an elastic job goes on from; every rank keeps the last commit in its memory."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterable
from typing import Any

from rabit.elastic.updates import Updates
from rabit.errors import Internal
from rabit.ops.objects import allgather_object, broadcast_object

__all__ = ["ObjectState", "State"]


class State(abc.ABC):
    """Base of states: subclasses say how to save, restore and broadcast what they hold.

    The ranks commit after the same steps.  A rank that is lost between two commits costs the work
    since the last one.  Not thread-safe.
    is_local: parts of it differ from rank to rank, such as what a method has not sent yet, and belong to
    one step on all ranks: the state keeps two commits then, and a commit waits for the other ranks.
    """

    is_local = False

    def __init__(self) -> None:
        self.commits = 0  # of this process and of those from which it has taken its state
        self.updates: Updates | None = None  # while elastic.run calls a function with this state
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Calls each of `callbacks` after the ranks have changed, before the state is synchronised."""
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        """The ranks have changed: rank, size and engine are the new ones."""
        self.reset()
        for each in self._reset_callbacks:
            each()

    def commit(self) -> None:
        """From now on a loss goes back to this point.  Copies, and checks for updates of the hosts."""
        self.save()
        self.commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks, at the same commit, if the members are to change.

        Part of `commit`.  In a job that may grow, or with a state that is local, it is a vote of all ranks;
        in others it does nothing.
        """
        if self.updates is not None:
            self.updates.check(keeps_together=self.is_local)

    def sync(self) -> None:
        """Every rank takes the newest commit, from the lowest rank that has it.  Blocks.

        A rank that finished the last step before the loss may have committed it, and others not.  Where
        parts are local all go back to the last commit that every rank has, and keep their own.
        """
        counts = allgather_object(self.commits, "rabit.elastic.commits")
        chosen = max(counts)
        if self.is_local and chosen > 0:
            chosen = min(each for each in counts if each > 0)  # Newcomers have none.
            if self.commits > chosen:
                self.step_back(self.commits - chosen)
                self.commits = chosen  # Also if what follows fails: its copies are of that commit.
            counts = [min(each, chosen) for each in counts]
        has_own = self.is_local and 0 < chosen == self.commits
        self.broadcast(counts.index(chosen))
        if self.is_local:
            self.take_own(has_own)
        self.commits = chosen
        self.save()

    @abc.abstractmethod
    def save(self) -> None:
        """Keeps a copy of the state as it is."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Brings the last copy back."""

    @abc.abstractmethod
    def broadcast(self, root_rank: int) -> None:
        """Gives every rank the state of `root_rank`.  Blocks."""

    def step_back(self, commits: int) -> None:
        """Of a state that is local: goes back so many commits before the last; one is kept."""
        raise Internal(f"{type(self).__name__} is local and has no step_back. Write it.")

    def take_own(self, has_own: bool) -> None:  # noqa: B027 (as above: for states that are local)
        """Of a state that is local, after a broadcast: brings back what is this rank's own.

        has_own: it has the commit that all go on from; else it has taken another rank's.
        """

    def reset(self) -> None:  # noqa: B027 (most states have nothing to adapt)
        """Adapts what depends on rank and size."""


class ObjectState(State):
    """Named values, as attributes: numbers, NumPy arrays, whatever copies and pickles.

    A value with `state_dict` and `load_state_dict`, such as an ElasticSampler, stays the same object:
    its state dictionary is what is saved, and loading it adapts it to the ranks.

        state = rabit.elastic.ObjectState(step=0, weights=np.zeros(1000))
    """

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._names = tuple(values)
        self._saved: dict[str, Any] = {}
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._contents())

    def restore(self) -> None:
        self._take(copy.deepcopy(self._saved))

    def broadcast(self, root_rank: int) -> None:
        contents = self._contents()
        self._take(broadcast_object(contents, root_rank, "rabit.elastic.values"))

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


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
