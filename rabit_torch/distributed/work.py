"""Work: what a collective of the process group returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import rabit
from rabit_torch.distributed.call_order import CallOrder
from rabit_torch.distributed.futures import future_of

__all__ = ["Work"]


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

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until the results are there; True.  Raises what went wrong.

        timeout: None or zero is the timeout of the group.
        """
        limit = (timeout or self._timeout).total_seconds()
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
        if not all(handle.done() for handle in self._open):
            return False
        if self.exception() is None:
            self._complete()
        return True

    def exception(self) -> BaseException | None:
        """What went wrong, once it is completed."""
        if self._error is None and all(handle.done() for handle in self._open):
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
