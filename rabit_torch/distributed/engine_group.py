"""EngineGroup: what torch.distributed asks about a group, and how its operations start."""

# torch's stubs list overloads with other argument names, which no caller uses.
# mypy: disable-error-code="override,assignment,no-untyped-call"

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import rabit
from rabit import Kind, ReduceOp, TensorView
from rabit_torch.distributed.call_order import CallOrder
from rabit_torch.distributed.coalescing import Coalescing
from rabit_torch.distributed.late_ranks import MonitoredBarrier
from rabit_torch.distributed.messages import Mail
from rabit_torch.distributed.operands import flat
from rabit_torch.distributed.request_slots import Lines
from rabit_torch.distributed.work import KeptWorks, Work, loses_works, seconds_of
from rabit_torch.untraced import stay_untraced

__all__ = ["EngineGroup"]


class EngineGroup(dist.ProcessGroup):
    """One group with all ranks of `engine` in their order; its operations are in the classes above."""

    supports_splitting = False  # torch 2.4 asks when a further group is made

    def __init__(
        self, engine: rabit.Engine, store: Any, timeout: timedelta, name: str, owns_engine: bool
    ) -> None:
        super().__init__(engine.rank, engine.size)  # type: ignore[call-arg]
        self._engine = engine
        self._store = store
        self._timeout = timeout
        self._owns_engine = owns_engine
        self._order = CallOrder(store, engine.rank, engine.size, name)
        # One that is made again on this engine must not meet what the one before has left in flight.
        self._lines = Lines(engine, engine.next_name(f"c10d.{name}"), self._order)
        self._name = name
        self._description = ""
        self._monitored = MonitoredBarrier(store, engine.rank, engine.size)
        self._mail = Mail(store, engine.rank, engine.size)
        self._coalescing = Coalescing(self)
        self._kept = KeptWorks() if loses_works() else None
        if owns_engine:
            atexit.register(self._end_at_exit)
        stay_untraced()

    # --- what torch.distributed asks about a group ------------------------------------------------

    def getBackendName(self) -> str:
        """The name for init_process_group."""
        return "rabit"

    def name(self) -> str:
        """The name for init_process_group."""
        return "rabit"

    def rank(self) -> int:
        """Rank of this process in the group."""
        return self._engine.rank

    def size(self) -> int:
        """Number of ranks of the group."""
        return self._engine.size

    # C++ asks by method, Python by property; torch's own answers need a backend in C++.
    def getGroupName(self) -> str:
        """The name under which torch.distributed knows the group."""
        return self._name

    def setGroupName(self, group_name: str) -> None:
        """Called by torch.distributed."""
        self._name = group_name

    def getGroupDesc(self) -> str:
        """What the group is for."""
        return self._description

    def setGroupDesc(self, group_desc: str) -> None:
        """Called by torch.distributed."""
        self._description = group_desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        """Where tensors may lie; torch's checkpoints and state dictionaries ask.

        Nowhere while torch makes the group: torch 2.15 then leaves its flight recorder out, which asks for a
        backend in C++ and would fail the group.
        """
        if self not in dist.distributed_c10d._world.pg_map:
            return []
        names = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(name) for name in names]

    def _get_backend(self, device: torch.device) -> EngineGroup:
        """The group is its own backend."""
        return self

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Sets the default timeout of `wait`."""
        self._timeout = timedelta(seconds=seconds_of(timeout))

    def shutdown(self) -> None:
        """Ends the group.  An engine that rabit.init() has started stays."""
        if self._owns_engine:
            atexit.unregister(self._end_at_exit)
            self._engine.close()
        self._kept = None

    def abort(self) -> None:
        """Ends the group without waiting for the other ranks."""
        if self._owns_engine:
            atexit.unregister(self._end_at_exit)
            self._engine.close(0.0)
        self._kept = None

    def _end_at_exit(self) -> None:
        # After an unhandled exception the others learn soonest by losing this rank, and what its end
        # then finds is a consequence that would only bury the exception.
        has_failed = getattr(sys, "last_value", None) is not None
        try:
            self._engine.close(0.0 if has_failed else 30.0)
        except rabit.RabitError as error:
            if not has_failed:
                print(f"rabit: at exit: {error}", file=sys.stderr)
        self._kept = None  # handles end while there are modules

    def _start_coalescing(self, device: Any) -> None:
        self._coalescing.start()

    def _end_coalescing(self, device: Any) -> Work:
        works = self._coalescing.end()

        def finish() -> None:
            for work in works:
                work.wait()

        return self._work([handle for work in works for handle in work._open], [], finish)

    def _work(
        self, handles: list[rabit.Handle], outputs: list[Any], finish: Any = None, source: int = -1
    ) -> Work:
        stay_untraced()
        work = Work(self._engine, handles, outputs, finish, self._timeout, self._order, source)
        self._coalescing.add(work)
        if self._kept is not None:
            self._kept.keep(work)
        return work

    def _start(
        self,
        opts: Any,
        count: int,
        key: tuple[Any, ...],
        variant: Any,
        make: Callable[[str], rabit.Request],
        pointers: tuple[int, int, int] | None,
        keepalive: Any,
    ) -> list[rabit.Handle]:
        """Starts one of the `count` operations of a call; what is to be waited for.

        Callers that torch has wait as soon as the call returns have it run in their own thread.
        """
        waits = count == 1 and not self._coalescing.is_on and not getattr(opts, "asyncOp", True)
        if waits:
            return self._lines.finish(key, variant, make, pointers, keepalive)
        return [self._lines.submit(key, variant, make, pointers, keepalive)]

    def _direct(
        self,
        opts: Any,
        count: int,
        kind: Kind,
        source: TensorView,
        memory: torch.Tensor,
        keepalive: torch.Tensor,
        op: ReduceOp = ReduceOp.SUM,
    ) -> list[rabit.Handle]:
        """Starts one of `count` operations whose result the engine writes into `memory`."""
        target = flat(memory)

        def make(name: str) -> rabit.Request:
            return rabit.Request(kind, name, source, target, op)

        # The size of the result is equal on all ranks where that of the input is not.
        size = target.count if kind == Kind.ALLGATHER else source.count
        key = (kind, size, source.dtype)
        variant = (op, source.shape)
        pointers = (source.data, target.data, source.stream)
        return self._start(opts, count, key, variant, make, pointers, (keepalive, memory))

    def _check_parts(self, what: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        size = self._engine.size
        if whole.numel() != part.numel() * size or whole.dtype != part.dtype:
            raise rabit.InvalidArgument(
                f"{what} on rank {self._engine.rank}: {whole.dtype}[{whole.numel()}] is not {size} "
                f"parts of {part.dtype}[{part.numel()}]; make the whole tensor {size} times the part"
            )
