"""Islands: ranks that are near to each other, and those at the same place of other islands."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

from rabit.engine.request import Request
from rabit.engine.tensor import view_input
from rabit.errors import InvalidArgument
from rabit.types import Kind

from .ranks import Members

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["Islands", "islands_of"]


class Islands:
    """The groups of one rank.

    inside: the ranks of its island.  across: one rank of every island, at the same place as this one.
    """

    def __init__(self, engine: Engine, size: int) -> None:
        """size: of every island, of successive ranks; 0: a host is one.  Collective; blocks."""
        mine = engine.rank // size if size else engine.cross_rank
        data = np.array([mine], np.int64)
        request = Request(Kind.ALLGATHER, engine.number_of(Kind.ALLGATHER, 0), view_input(data))
        handle = engine.run(request)
        handle.wait()
        islands: dict[int, list[int]] = {}
        for rank, island in enumerate(handle.result().tolist()):
            islands.setdefault(island, []).append(rank)
        rows = list(islands.values())
        sizes = [len(row) for row in rows]
        if len(set(sizes)) > 1:
            raise InvalidArgument(
                f"islands of {sizes} ranks: those of a hierarchy must have the same size. Start as many ranks on "
                f"every host, or give a size that divides the {engine.size} ranks."
            )
        # Every rank registers all groups in one order, as adding one is an operation of all.
        numbers = [
            (row, engine.add_group(row)) for row in [*rows, *map(list, zip(*rows, strict=True))]
        ]
        self.inside, self.across = (
            Members(tuple(row), number, row.index(engine.rank))
            for row, number in numbers
            if engine.rank in row
        )


_known: weakref.WeakKeyDictionary[Engine, dict[int, Islands]] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def islands_of(engine: Engine, size: int) -> Islands:
    """Those of `size` ranks, made once for each engine: on all ranks alike, outside of tasks."""
    with _making:
        known = _known.setdefault(engine, {})
    if size not in known:
        known[size] = Islands(engine, size)
    return known[size]
