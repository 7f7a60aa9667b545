"""Peers: what ranks tell each other about a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rabit.engine.process_set import ProcessSet, check_process_set, global_process_set
from rabit.ops.collectives import allgather

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["Alone", "EnginePeers", "Peers"]


class Peers(Protocol):
    """The ranks that save together."""

    rank: int
    size: int

    def gather(self, name: str, said: Any) -> list[Any]:
        """What every rank said, in rank order: values that JSON has a form for.

        Blocks until every rank has called it with this name.  Raises RabitError.
        """


class Alone:
    """One process without an engine, such as a tool that writes a generation."""

    rank = 0
    size = 1

    def gather(self, name: str, said: Any) -> list[Any]:
        return [said]


class EnginePeers:
    """Over an engine.  Thread-safe: names keep calls of different threads apart."""

    def __init__(self, engine: Engine, process_set: ProcessSet = global_process_set) -> None:
        check_process_set(process_set)
        ranks = process_set.ranks or list(range(engine.size))
        self.rank = list(ranks).index(engine.rank)
        self.size = len(ranks)
        self._engine = engine
        self._process_set = process_set

    def gather(self, name: str, said: Any) -> list[Any]:
        if self.size == 1:
            return [said]
        data = np.frombuffer(json.dumps(said).encode(), np.uint8)
        sizes = allgather([data.size], f"{name}.size", self._process_set, engine=self._engine)
        texts = allgather(data, f"{name}.text", self._process_set, engine=self._engine)
        ends = np.cumsum(sizes).tolist()
        return [
            json.loads(texts[end - size : end].tobytes())
            for size, end in zip(sizes.tolist(), ends, strict=True)
        ]
