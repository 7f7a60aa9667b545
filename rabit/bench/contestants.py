"""Contestants: engines of this job, each with another algorithm of every kind, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rabit._native import capabilities
from rabit.bench.sizes import Tunables, propose
from rabit.bench.winners import Candidate
from rabit.engine.engine import Engine
from rabit.errors import InvalidArgument
from rabit.types import DType, Kind

__all__ = ["Contestants"]

# Engines of a job are told apart by their number; those of init() count from 1.
_FIRST_EPOCH = 1 << 20
# Those that 16-bit floats, and sums that must be equal from run to run, can do with.
_IN_RANK_ORDER = ("direct", "gather_all")
_LIBRARY = "library"
_REDUCES = (Kind.ALLREDUCE, Kind.REDUCE, Kind.REDUCESCATTER)


class Contestants:
    """The contestants of each kind, and the engine that runs each of them.  All ranks make the same calls.

    The first candidate of a backend chooses by itself, as a job without rules does.
    """

    def __init__(self, base: Engine, backends: Sequence[str], kinds: Sequence[str]) -> None:
        self._base = base
        self._backends = list(backends)
        self._kinds = list(kinds)
        self._engines: dict[int, Engine] = {}  # by the place of the algorithm among its kind's
        self._library: Engine | None = None
        self._names: dict[str, list[str]] = {}
        is_tree_of_hosts = 1 < base.local_size < base.size
        for kind in kinds:
            self._names[kind] = [
                each
                for each in capabilities()["routes"].get(kind, ())
                if each != "hierarchical" or is_tree_of_hosts
            ]

    @contextmanager
    def started(self) -> Iterator[Contestants]:
        """Starts the engines, and closes them in the end.  Collective.

        After an error the other ranks lose them, since nobody may wait for what is not measured any more.
        """
        config = self._base.config
        with ExitStack() as stack:
            if "builtin" in self._backends:
                for place in range(max(map(len, self._names.values()), default=0)):
                    rules = ";".join(
                        f"{kind}:builtin/{names[place]}"
                        for kind, names in self._names.items()
                        if place < len(names)
                    )
                    config_of_place = config.replace(backend="builtin", route=rules)
                    self._engines[place] = stack.enter_context(
                        Engine(config_of_place, epoch=_FIRST_EPOCH + place)
                    )
            if "mpi" in self._backends:
                rules = ";".join(f"{kind}:mpi/{_LIBRARY}" for kind in self._kinds)
                self._library = stack.enter_context(
                    Engine(config.replace(route=rules), epoch=_FIRST_EPOCH - 1)
                )
            yield self

    def propose(self, tunables: Tunables) -> None:
        """Puts `tunables` in force for everybody, the engine of the job included."""
        for engine in [self._base, *self._engines.values(), *filter(None, [self._library])]:
            propose(engine, tunables)

    def of(self, kind: str, dtype: DType) -> list[Candidate]:
        """Those that may run `kind`, what the job does by itself first."""
        must_be_ordered = (
            dtype in (DType.FLOAT16, DType.BFLOAT16) or self._base.config.deterministic
        )
        found = [Candidate(backend) for backend in self._backends]
        if "builtin" in self._backends:
            found += [
                Candidate("builtin", name)
                for name in self._names[kind]
                if name in _IN_RANK_ORDER
                or not must_be_ordered
                or Kind[kind.upper()] not in _REDUCES
            ]
        if self._library is not None:
            found.append(Candidate("mpi", _LIBRARY))
        return found

    def engine_of(self, kind: str, candidate: Candidate) -> Engine:
        if not candidate.algorithm:
            return self._base
        if candidate.backend == "mpi":
            if self._library is None:
                raise InvalidArgument(
                    f"{candidate} does not take part: the job has no backend mpi."
                )
            return self._library
        return self._engines[self._names[kind].index(candidate.algorithm)]
