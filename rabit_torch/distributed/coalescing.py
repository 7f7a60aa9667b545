"""Coalescing: the works that start inside torch's coalescing manager."""

from __future__ import annotations

import sys
import weakref
from types import FrameType, GeneratorType
from typing import Any

import torch.distributed as dist

from rabit_torch.distributed.work import Work

__all__ = ["Coalescing"]


class Coalescing:
    """The works of one group that its coalescing manager is to wait for.  One thread at a time.

    An exception inside the manager ends it, and torch then neither tells the group nor forgets that it is inside:
    every later all_reduce would do nothing.  So the end of the manager's generator is watched.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self._works: list[Work] | None = None
        self._manager: weakref.ref[GeneratorType[Any, Any, Any]] | None = None

    def start(self) -> None:
        """The manager begins; its generator has called the method that calls this one."""
        self._works = []
        generator = _generator_of(sys._getframe(2))
        self._manager = generator and weakref.ref(generator, lambda _: self._leave())

    def end(self) -> list[Work]:
        """The manager ends; what has started inside."""
        works, self._works, self._manager = self._works, None, None
        return works or []

    @property
    def is_on(self) -> bool:
        """True inside the manager."""
        if self._works is not None and self._manager is not None:
            generator = self._manager()
            if generator is None or generator.gi_frame is None:  # a traceback may keep one that is over
                self._leave()
        return self._works is not None

    def add(self, work: Work) -> None:
        """A work has started; kept if that was inside the manager."""
        if self.is_on and self._works is not None:
            self._works.append(work)

    def _leave(self) -> None:
        self.end()
        group = self._group()
        if group is not None:
            dist.distributed_c10d._world.pg_coalesce_state.pop(group, None)


def _generator_of(frame: FrameType) -> GeneratorType[Any, Any, Any] | None:
    """That of a context manager, which runs in `frame`; None: `frame` is another function's."""
    entering = frame.f_back
    owner = None if entering is None else entering.f_locals.get("self")
    generator = getattr(owner, "gen", None)
    return generator if isinstance(generator, GeneratorType) and generator.gi_frame is frame else None
