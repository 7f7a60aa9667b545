"""Meeting: where the ranks that one optimizer trains compare what they do, before its first gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rabit.engine.process_set import ProcessSet
from rabit.errors import Mismatch
from rabit.ops.objects import allgather_object

from .method_text import method_text
from .strategy import Strategy

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["Meeting"]


class _Said(NamedTuple):
    rank: int
    method: str
    shown: str
    steps: int
    is_settled: bool


class Meeting:
    """One object for each optimizer, made on all ranks in the same order.

    Ranks with other methods would wait for each other, or combine what does not belong together.  After
    a `join()` they meet again: ranks have taken other numbers of steps then, and methods go by the step.
    """

    def __init__(self, engine: Engine, process_set: ProcessSet, method: Strategy | None) -> None:
        self._engine = engine
        self._process_set = process_set
        self._method = method_text(method)
        self._shown = repr(method.spec) if method is not None and method.spec else self._method
        self._name = engine.next_name("rabit.meeting")
        self._joins = -1

    @property
    def is_due(self) -> bool:
        """True before the first gradients, and before those after a join."""
        return self._joins != self._engine.joins

    def meet(self, steps: int, is_settled: bool = True) -> tuple[int, bool]:
        """The largest number of steps that a rank has taken, and whether all ranks are settled.

        Blocks until every rank has called it.  Raises Mismatch on all ranks if their methods differ.
        """
        self._joins = self._engine.joins
        mine = _Said(self._engine.rank, self._method, self._shown, steps, is_settled)
        found = [
            _Said(*each)
            for each in allgather_object(
                tuple(mine), self._name, self._process_set, engine=self._engine
            )
        ]
        for each in found:
            if each.method != found[0].method:
                raise Mismatch(
                    f"optimizers train by different methods: rank {found[0].rank} by {found[0].shown}, rank "
                    f"{each.rank} by {each.shown} (seen by rank {mine.rank}). Give DistributedOptimizer, or "
                    "RABIT_STRATEGY, the same strategy with the same arguments on every rank.",
                    each.rank,
                )
        return max(each.steps for each in found), all(each.is_settled for each in found)
