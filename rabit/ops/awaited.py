"""Awaited: a collective whose request this rank makes, while others may wait for it already."""

from __future__ import annotations

from types import TracebackType

from rabit.engine.engine import Engine
from rabit.engine.request import Request
from rabit.types import Kind

__all__ = ["Awaited"]


class Awaited:
    """A context manager around what makes the request of a call.

    What is raised inside ends the call on this rank, so the others are told: they raise InvalidArgument
    with the reason in place of waiting.  The submission stays outside, for the engine tells by itself
    what it refuses, and who is told twice misses the next call of the name as well.
    """

    __slots__ = ("count", "engine", "group", "kind", "name", "root")

    def __init__(
        self,
        engine: Engine,
        kind: Kind,
        name: str | None,
        group: int,
        count: int | None = None,
        root: int = -1,
    ) -> None:
        """name: None has the number of the call, which is taken if others are told.
        count: tensors of a grouped call, "w.0" and so on; root: the partner of a message."""
        self.engine = engine
        self.kind = kind
        self.name = name
        self.group = group
        self.count = count
        self.root = root

    def __enter__(self) -> Awaited:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception):  # Ctrl-C says nothing of the call.
            return
        name = self.engine.number_of(self.kind, self.group) if self.name is None else self.name
        names = [name] if self.count is None else [f"{name}.{each}" for each in range(self.count)]
        self.engine.tell_error(
            [Request(self.kind, each, group=self.group, root=self.root) for each in names], error
        )
