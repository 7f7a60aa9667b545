"""Ranks: the ranks that a coroutine communicates with."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rabit.compression import Compression, CompressionCodec
from rabit.engine.handle import Handle
from rabit.engine.process_set import ProcessSet, group_on
from rabit.engine.request import Request
from rabit.engine.tensor import TensorView, view_input, view_output
from rabit.errors import InvalidArgument
from rabit.types import Kind, ReduceOp

from .encoding import pack, pack_all, unpack, unpack_all
from .tasks import Driver, Operation, Task, suspend

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["Members", "Ranks"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Members:
    """A process set on one engine, looked up once: hooks may run in a thread without an engine."""

    ranks: tuple[int, ...]
    group: int
    index: int

    @classmethod
    def of(cls, process_set: ProcessSet, engine: Engine) -> Members:
        """Raises InvalidArgument where this rank is not in the set."""
        group = group_on(process_set, engine)
        ranks = engine.members(group)
        if engine.rank not in ranks:
            raise InvalidArgument(
                f"rank {engine.rank} is not in the process set of ranks {list(ranks)}, and takes no "
                "part in what they exchange. Check process_set.included() first."
            )
        return cls(ranks, group, ranks.index(engine.rank))


class Ranks:
    """The ranks of a process set, as one task sees them.

    rank, size: of this rank in the set.
    step: how many steps have ended where this task stands; `steps` alone changes it, so that it is
    equal on all ranks however long an exchange takes.
    unit: what an element of the array that travels is in the parameter: the learning rate for a
    gradient, 1 for a difference of parameters.  Residuals that are kept are converted by it.
    result: the gradient whose memory the result of its exchange may be written to; None: there is none.
    Arrays are NumPy's.  What a call is given may not change before it returns.
    """

    def __init__(self, driver: Driver, task: Task, members: Members, unit: float = 1.0) -> None:
        self._driver = driver
        self._task = task
        self._members = members
        self._rounds = 0
        self.step = driver.now[0]
        self.rank = members.index
        self.size = len(members.ranks)
        self.unit = unit
        self.result: Array | None = None

    @property
    def name(self) -> str:
        """Of the task, without the optimizer's; equal on all ranks."""
        return self._task.name.removeprefix(f"{self._driver.name}.")

    @property
    def engine(self) -> Engine:
        """The engine that they are ranks of."""
        return self._driver.engine

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """A new array, over memory that earlier arrays of this optimizer have given back."""
        return self._driver.memory.empty(shape, dtype)

    # --- all together -----------------------------------------------------------------------------

    async def mean(
        self,
        x: Array,
        *,
        codec: CompressionCodec = Compression.none,
        residual: Array | None = None,
        seed: int = 0,
    ) -> Array:
        """The mean over the ranks; shape and dtype equal on all.

        codec, residual, seed: as of rabit.allreduce; the residual is written into.
        """
        return await self._reduce(x, ReduceOp.AVERAGE, codec, residual, seed)

    async def sum(self, x: Array, *, codec: CompressionCodec = Compression.none) -> Array:
        """The sum over the ranks."""
        return await self._reduce(x, ReduceOp.SUM, codec)

    async def max(self, x: Array) -> Array:
        """The largest of every element."""
        return await self._reduce(x, ReduceOp.MAX, Compression.none)

    async def any(self, flags: Array) -> Array:
        """Where a flag is set on some rank."""
        found = await self._reduce(np.asarray(flags, np.uint8), ReduceOp.MAX, Compression.none)
        return found.astype(bool)

    async def gather(self, x: Any) -> list[Any]:
        """What every rank gave, in rank order; an array, a number, or a tuple of them of any sizes."""
        data = pack(x)
        request = self._request(Kind.ALLGATHER, view_input(data))

        def finish(handles: Sequence[Handle]) -> list[Any]:
            return unpack_all(handles[0].result())

        found: list[Any] = await suspend(Operation([request], finish))
        return found

    async def scatter(self, parts: Sequence[Any]) -> list[Any]:
        """Sends every rank one of `parts`; returns what each rank sent to this one, in rank order."""
        data, sizes = pack_all(parts)
        request = self._request(Kind.ALLTOALL, view_input(data))
        request.splits = sizes

        def finish(handles: Sequence[Handle]) -> list[Any]:
            return unpack_all(handles[0].result())

        found: list[Any] = await suspend(Operation([request], finish))
        if len(found) != self.size:  # On all ranks that are left alike.
            raise InvalidArgument(
                f"'{self.name}' on rank {self._driver.engine.rank}: a rank has called join, and the part of the "
                "tensor that it would have added up is missing. Give all ranks as many steps, or take a method "
                "that adds up in the engine, as qsgd of float32."
            )
        return found

    async def reduce_scatter(self, x: Array) -> Array:
        """This rank's part of the mean of flat arrays; parts differ by one element at most."""
        flat = np.ascontiguousarray(x).reshape(-1)
        request = self._request(Kind.REDUCESCATTER, view_input(flat))
        request.op = ReduceOp.AVERAGE

        def finish(handles: Sequence[Handle]) -> Array:
            found: Array = np.array(handles[0].result())
            return found

        part: Array = await suspend(Operation([request], finish))
        return part

    # --- some ---------------------------------------------------------------------------------------

    async def swap(self, x: Any, peers: Sequence[int]) -> list[Any]:
        """Sends x to each of `peers`, of ranks of the set; returns what each of them sent.

        A peer names this rank in turn, in its round of the same number.  Arrays are of one shape and
        type, encodings of one size.
        """
        is_array = isinstance(x, np.ndarray)
        data = np.ascontiguousarray(x).reshape(x.shape) if is_array else pack(x)
        self._rounds += 1
        targets = [self.empty(data.shape, data.dtype) for _ in peers]
        requests = []
        for peer, target in zip(peers, targets, strict=True):
            other, mine = self._members.ranks[peer], self._driver.engine.rank
            for kind, pair, view in (
                (Kind.SEND, f"{mine}.{other}", view_input(data)),
                (Kind.RECV, f"{other}.{mine}", view_output(target)),
            ):
                name = f"{self._task.name}#{self._rounds}:{pair}"
                output = view if kind == Kind.RECV else None
                requests.append(Request(kind, name, view, output, root=other))

        def finish(_: Sequence[Handle]) -> list[Any]:
            return targets if is_array else [unpack(target) for target in targets]

        if not requests:
            return []
        found: list[Any] = await suspend(Operation(requests, finish))
        return found

    def within(self, some: ProcessSet | Members) -> Ranks:
        """Some of these ranks, this one among them; for hierarchies."""
        members = some if isinstance(some, Members) else Members.of(some, self._driver.engine)
        found = Ranks(self._driver, self._task, members, self.unit)
        found.step, found.result = self.step, self.result
        return found

    # --- time -----------------------------------------------------------------------------------------

    async def steps(self, count: int) -> None:
        """Continues when `count` more steps have ended, at the same place on every rank."""
        if count > 0:
            await suspend((self.step + count, 0))
            self.step += count

    async def gradients(self) -> None:
        """Continues when the gradients of this step are complete on this rank: in `step()`."""
        await suspend((self.step, 1))

    def start(
        self,
        body: Callable[[Ranks], Coroutine[Any, Any, Any]],
        *,
        name: str = "",
        unit: float | None = None,
    ) -> Task:
        """Runs `body` concurrently with the caller: `await task` gives its result, `task.is_done` asks.

        name: equal on all ranks, for a task that outlives the hook which starts it; "": by number.
        """

        def run(task: Task) -> Coroutine[Any, Any, Any]:
            given = self.unit if unit is None else unit
            return body(Ranks(self._driver, task, self._members, given))

        name = f"{self._driver.name}.{name}" if name else self._task.child_name()
        return self._driver.spawn(run, name, self._task.priority, is_child=True)

    # --- requests -------------------------------------------------------------------------------------

    async def _reduce(
        self,
        x: Array,
        op: ReduceOp,
        codec: CompressionCodec,
        residual: Array | None = None,
        seed: int = 0,
    ) -> Array:
        source = np.ascontiguousarray(x).reshape(np.shape(x))
        target = self.empty(source.shape, source.dtype)
        request = self._request(Kind.ALLREDUCE, view_input(source))
        request.output, request.op = view_output(target), op
        request.codec, request.seed = self._driver.engine.codec_id(codec), seed
        if residual is not None:
            request.residual = view_output(residual)
        await suspend(Operation([request], _nothing))
        return target

    def _request(self, kind: Kind, view: TensorView) -> Request:
        self._rounds += 1
        group = self._members.group
        where = f"@{group}" if group else ""
        # The first round has the plain name: random numbers follow from it, and are those of front ends
        # that give a gradient to the engine by themselves.
        number = f"#{self._rounds}" if self._rounds > 1 else ""
        name = f"{self._task.name}{where}{number}"
        return Request(kind, name, view, priority=self._task.priority, group=group)


def _nothing(_: Sequence[Handle]) -> None:
    return None
