"""ProcessSet: a subset of the ranks that communicates on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rabit.engine.current import current_engine, known_engine
from rabit.errors import InvalidArgument

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = [
    "ProcessSet",
    "add_process_set",
    "check_process_set",
    "global_process_set",
    "group_on",
    "remove_process_set",
]


class ProcessSet:
    """Some of the ranks, ascending.  Usable after `init(process_sets=…)` or `add_process_set`.

    ranks_or_comm: the global ranks, or an mpi4py communicator, whose processes' ranks among all of
    MPI.COMM_WORLD they are.
    backend: of operations of the set that name none; "": the default.  Equal on all ranks.
    """

    def __init__(self, ranks_or_comm: Any, *, backend: str = "") -> None:
        self.backend = backend
        self.mpi_comm = ranks_or_comm if hasattr(ranks_or_comm, "Get_group") else None
        ranks = ranks_or_comm if self.mpi_comm is None else _ranks_of(ranks_or_comm)
        self._ranks = tuple(sorted(int(rank) for rank in ranks))
        self._group = 0
        self._engine: Engine | None = None

    @classmethod
    def of_group(cls, engine: Engine, ranks: Sequence[int], group: int) -> ProcessSet:
        """The set of a group that `engine` has already."""
        found = cls(ranks)
        found._group, found._engine = group, engine
        return found

    def __repr__(self) -> str:
        return f"ProcessSet(ranks={list(self._ranks)}, process_set_id={self.process_set_id})"

    @property
    def ranks(self) -> list[int]:
        """The global ranks, ascending."""
        return list(self._ranks)

    @property
    def process_set_id(self) -> int | None:
        """The number of the group; None while it is not registered with a running engine."""
        if self._engine is None or self._engine.is_closed:
            return None
        return self._group

    def size(self) -> int:
        """Number of ranks in the set."""
        return len(self.ranks)

    def rank(self) -> int:
        """Position of this process inside the set.  Raises InvalidArgument if it is outside."""
        mine, ranks = self._current().rank, self.ranks
        if mine not in ranks:
            raise InvalidArgument(
                f"rank {mine} is not in the process set of ranks {ranks}. Call rank() only where included() is true."
            )
        return ranks.index(mine)

    def included(self) -> bool:
        """True if this process is in the set."""
        return self._current().rank in self.ranks

    def _current(self) -> Engine:
        return self._engine or known_engine()

    def group_on(self, engine: Engine) -> int:
        """The number of the group on `engine`.  Raises InvalidArgument if it is not registered."""
        if self._engine is not engine or engine.is_closed:
            raise InvalidArgument(
                f"the process set of ranks {self.ranks} is not registered with this engine. Pass "
                "it to init(process_sets=…), or call add_process_set on every rank."
            )
        return self._group

    def register(self, engine: Engine) -> None:
        """Adds the set to `engine`.  Collective; blocks until every rank has called."""
        self._group = engine.add_group(self._ranks, backend=self.backend)
        self._engine = engine

    def unregister(self) -> None:
        """Removes the set from its engine.  Collective; blocks until every rank has called."""
        engine = self._engine
        if engine is not None:
            engine.remove_group(self._group)
            self._engine = None


def _ranks_of(comm: Any) -> Sequence[int]:
    from mpi4py import MPI

    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks: Sequence[int] = MPI.Group.Translate_ranks(group, list(range(group.Get_size())), world)
    return ranks


class _GlobalProcessSet(ProcessSet):
    """All ranks of the current engine."""

    def __init__(self) -> None:
        super().__init__(())

    def __repr__(self) -> str:
        return "global_process_set"

    @property
    def ranks(self) -> list[int]:
        return list(range(known_engine().size))

    @property
    def process_set_id(self) -> int | None:
        return 0

    def size(self) -> int:
        return known_engine().size

    def group_on(self, engine: Engine) -> int:
        return 0

    def register(self, engine: Engine) -> None:
        raise InvalidArgument("the set of all ranks exists always and cannot be added.")

    def unregister(self) -> None:
        raise InvalidArgument("the set of all ranks exists always and cannot be removed.")


global_process_set: ProcessSet = _GlobalProcessSet()


def check_process_set(process_set: Any) -> None:
    """Raises InvalidArgument if it is not one: a number of Horovod's, the ranks themselves, a group of torch."""
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgument(
            f"process_set is {process_set!r} of type {type(process_set).__name__}, which is not a ProcessSet. "
            "Pass what add_process_set returned, or leave it out: then all ranks take part."
        )


def group_on(process_set: ProcessSet, engine: Engine) -> int:
    """The number of the group on `engine`.  Raises InvalidArgument if it has none."""
    check_process_set(process_set)
    return process_set.group_on(engine)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set of ranks and returns it.

    Every rank of the job calls it, members or not, with the same ranks and in the same order;
    blocks until all have.  Ranks may have several sets, each a group of its own: the same name in two of
    them is two tensors.  Horovod refuses the ranks of a set that there is.
    """
    found = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if found.process_set_id is not None:
        raise InvalidArgument(f"{found} is registered already. Use it, or remove it first.")
    found.register(current_engine())
    return found


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set; False if it was not registered.  Collective; blocks until all have called."""
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    process_set.unregister()
    return True
