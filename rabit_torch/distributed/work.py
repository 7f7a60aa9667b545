"""Work: what a collective of the process group returns."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import rabit
from rabit_torch.distributed.call_order import CallOrder
from rabit_torch.distributed.futures import future_of

__all__ = ["KeptWorks", "Work", "loses_works", "seconds_of"]

# As many collectives may come between the start of one and the wait for it.
_ENDED_KEPT = 1024
# The variable and the argument of getrefcount: nobody else's Python code has it.
_REFERENCES_HERE = 2


class Work(dist.Work):
    """Operations in flight that torch.distributed waits for.  Thread-safe.

    finish: runs once, when all `handles` are done: copies results to where they belong.
    """

    def __init__(
        self,
        engine: rabit.Engine,
        handles: list[rabit.Handle],
        outputs: list[Any],
        finish: Callable[[], None] | None,
        timeout: timedelta,
        order: CallOrder,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._open = handles
        self._outputs = outputs
        self._finish = finish
        self._timeout = timeout
        self._order = order
        self._source = source
        self._lock = threading.Lock()
        self._future: Any = None
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Blocks until the results are there; True.  Raises what went wrong.

        timeout: None or zero is the timeout of the group.
        """
        limit = seconds_of(timeout or self._timeout)
        for handle in self._open:
            self._order.wait(handle, limit)
        self._complete()
        return True

    def _complete(self) -> list[Any]:
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
        return self._outputs

    def is_completed(self) -> bool:
        """True when `wait` does not block; the results are there then."""
        if not self.has_ended():
            return False
        if self.exception() is None:
            self._complete()
        return True

    def has_ended(self) -> bool:
        """True when all operations are over, well or not."""
        return all(handle.done() for handle in self._open)

    def let_go(self) -> None:
        """Copies results to where they belong, and drops the tensors: nobody but C++ code will ask for them."""
        if self.is_success():
            self._outputs = []

    def exception(self) -> BaseException | None:
        """What went wrong, once it is completed."""
        if self._error is None and self.has_ended():
            try:
                for handle in self._open:
                    handle.wait(0.0)
            except rabit.RabitError as error:
                self._error = error
        return self._error

    def is_success(self) -> bool:
        """True when it is completed and nothing went wrong."""
        return self.is_completed() and self._error is None

    def result(self) -> list[Any]:
        """The output tensors.  Blocks."""
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        """The same as `wait`: what is done is done for every stream."""
        self.wait()

    def get_future(self) -> Any:
        """A future that completes with the output tensors.

        In a backward pass, `backward()` raises what went wrong.
        """
        if self._future is None:
            self._future = future_of(
                self._engine, self._open, self._settle, self.wait, self._outputs
            )
        return self._future

    def _settle(self) -> list[Any]:
        for handle in self._open:
            handle.wait(0.0)
        return self._complete()

    def source_rank(self) -> int:
        """The rank of the group that sent what this received; -1 for other operations."""
        return self._source

    def _source_rank(self) -> int:
        return self._source


def seconds_of(timeout: timedelta | float) -> float:
    """`timeout` in seconds: torch's own groups take numbers for that as well."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)


def loses_works(version: str = torch.__version__) -> bool:
    """True where C++ code of torch that holds a Work does not hold its Python half.

    It would then wait in the base class and never return: the constructor of DDP does.  torch before 2.7 is so; 2.7
    was not tried, and counts as one of them.
    """
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) < (2, 8)


class KeptWorks:
    """The Python halves of works that have not ended, and those that ended last without their tensors.

    One thread at a time.
    """

    def __init__(self) -> None:
        self._open: deque[Work] = deque()
        self._ended: deque[Work] = deque(maxlen=_ENDED_KEPT)

    def keep(self, work: Work) -> None:
        """Holds `work` until it has ended and many others have as well."""
        self._open.append(work)
        while self._open[0].has_ended():
            ended = self._open.popleft()
            if sys.getrefcount(ended) <= _REFERENCES_HERE:
                ended.let_go()
            self._ended.append(ended)
            if not self._open:
                return
