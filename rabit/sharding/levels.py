"""Which ranks have the parts of a model, and which have copies of the same part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rabit.checkpoint import Part
from rabit.engine.current import current_engine
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.errors import InvalidArgument
from rabit.training.islands import islands_of

__all__ = ["Levels", "levels_of"]


@dataclass(frozen=True)
class Levels:
    """State is divided among `shards`, and equal on the ranks of `copies`; `everyone` is all of them.

    Gradients are averaged over `shards` in the order of the ranks, then over `copies`, in the order of the groups.
    """

    everyone: ProcessSet
    shards: ProcessSet
    copies: ProcessSet | None = None

    def part(self, values: Any, start: int, length: int) -> Part:
        """Elements from `start` on of a tensor of `length`, for a checkpoint; the first group alone saves them."""
        saves = self.copies is None or self.copies.rank() == 0
        return Part(values, start, length) if saves else Part(values[:0], 0, length)


def levels_of(process_set: ProcessSet, within: Any) -> Levels:
    """within: "host", or the number of successive ranks that divide the state; None: all of `process_set`.

    Blocks until every rank calls it. Raises InvalidArgument for another value, for groups of different sizes, and
    for a process set of some ranks.
    """
    if within is None:
        return Levels(process_set, process_set)
    size = 0 if within == "host" else within
    if isinstance(size, bool) or not isinstance(size, int) or (within != "host" and size < 1):
        raise InvalidArgument(
            f"shard_within is {within!r}; expected 'host', or the number of successive ranks that divide the state"
        )
    if process_set is not global_process_set:
        raise InvalidArgument(
            f"shard_within={within!r} makes groups of all ranks of the job, and process_set is {process_set}. Leave "
            "one of them out"
        )
    engine = current_engine()
    islands = islands_of(engine, size)
    shards, copies = (
        ProcessSet.of_group(engine, members.ranks, members.group)
        for members in (islands.inside, islands.across)
    )
    return Levels(process_set, shards, copies if copies.size() > 1 else None)
