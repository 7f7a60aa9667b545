"""Meeting: where the ranks that one optimizer trains compare what they do, before its first gradients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rabit.engine.handle import Handle
from rabit.engine.process_set import ProcessSet
from rabit.errors import Mismatch
from rabit.ops.collectives import allgather_async

from .method_text import method_text
from .strategy import Strategy

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["Meeting", "Standing"]


class _Said(NamedTuple):
    """names: a checksum of those that the shapes belong to."""

    rank: int
    method: str
    shown: str
    steps: int
    is_settled: bool
    names: str
    shapes: Sequence[Sequence[int]]


class Standing(NamedTuple):
    """What a meeting has found.

    steps: the most that a rank has taken.  leader: the first rank that has.  have_parted: others have taken fewer.
    begins_anew: this rank was settled, and another was not.
    """

    steps: int
    leader: int
    have_parted: bool
    begins_anew: bool


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
        self.joins = (
            -1
        )  # of the engine, when one has begun last; others by now: it is time for the next
        self.is_open = False  # one has begun and not ended
        self._is_settled = False
        self._names: list[str] = []
        self._handle: Handle | None = None

    @property
    def is_over(self) -> bool:
        """True if one is open and `end` would not block."""
        return self._handle is not None and self._handle.done()

    def meet(self) -> None:
        """`begin` and `end`, where nothing goes by steps and all ranks come in one order.  Blocks."""
        self.begin()
        if self.is_open:
            self.end()

    def begin(
        self,
        steps: int = 0,
        is_settled: bool = True,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> bool:
        """Tells the others how many steps this rank has taken, and whether it is settled, before its first
        gradients and before those after a join; else does nothing.  Does not block.

        shapes: of the tensors by name, where the engine does not compare those that it adds up itself.
        Returns whether it must have ended before gradients leave, because they depend on the others.  Before any
        join they do not, and ranks that use other parameters come to several optimizers in another order.
        """
        if self.joins == self._engine.joins:
            return False
        self.joins, self._is_settled = self._engine.joins, is_settled
        shapes = shapes or {}
        self._names = list(shapes)
        checksum = hashlib.sha256(json.dumps(self._names).encode()).hexdigest()
        mine = _Said(
            self._engine.rank,
            self._method,
            self._shown,
            steps,
            is_settled,
            checksum,
            list(shapes.values()),
        )
        line = np.frombuffer(json.dumps(mine).encode() + b"\n", np.uint8)
        self._handle = allgather_async(line, self._name, self._process_set, engine=self._engine)
        self.is_open = True
        return self.joins > 0

    def end(self) -> Standing:
        """Blocks until every rank has begun.  Raises Mismatch on all ranks if their methods or shapes differ."""
        assert self._handle is not None, "begun before it ends"
        handle, self._handle, self.is_open = self._handle, None, False
        found = [_Said(*json.loads(line)) for line in handle.result().tobytes().splitlines()]
        for each in found:
            if each.method != found[0].method:
                self.joins = -1  # The ranks that continue report again.
                raise Mismatch(
                    f"optimizers train by different methods: rank {found[0].rank} by {found[0].shown}, rank "
                    f"{each.rank} by {each.shown} (seen by rank {self._engine.rank}). Give DistributedOptimizer, or "
                    "RABIT_STRATEGY, the same strategy with the same arguments on every rank.",
                    each.rank,
                )
            self._compare_shapes(found[0], each)
        steps = max(answer.steps for answer in found)
        return Standing(
            steps,
            leader=next(answer.rank for answer in found if answer.steps == steps),
            have_parted=any(answer.steps != steps for answer in found),
            begins_anew=self._is_settled and not all(answer.is_settled for answer in found),
        )

    def _compare_shapes(self, one: _Said, other: _Said) -> None:
        if (
            one.names != other.names
        ):  # Other parameters are compared where parameters are broadcast.
            return
        for place, (expected, shape) in enumerate(zip(one.shapes, other.shapes, strict=True)):
            if shape != expected:
                self.joins = -1
                # Of another rank's names the place is all that is known here.
                name = self._names[place] if place < len(self._names) else f"parameter {place}"
                raise Mismatch(
                    f"'{name}' has shape {tuple(expected)} on rank {one.rank} and {tuple(shape)} on rank "
                    f"{other.rank} (seen by rank {self._engine.rank}). Build the model the same way on every "
                    "rank (errors.md#mismatch).",
                    other.rank,
                )
