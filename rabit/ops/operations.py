"""The operations, written once over the Adapter of a framework.

Each method makes a call of one public function and has its signature; rabit/ops/call.py has what calls have in common.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Generic, TypeVar

from rabit.compression import Compression, CompressionCodec
from rabit.engine.current import engine_for_work
from rabit.engine.engine import Engine
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.engine.request import Request
from rabit.ops.adapter import Adapter
from rabit.ops.call import Arguments, Form, Made
from rabit.ops.draft import Draft
from rabit.types import Kind, ReduceOp

__all__ = ["Operations", "message_name"]

Tensor = TypeVar("Tensor")
Calls = TypeVar("Calls", bound="Reductions[Any]")


class _Allreduce(Form):
    kind = Kind.ALLREDUCE

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        average, op, prescale, postscale, compression, _, _ = arguments
        adapter = self.adapter
        if self.is_in_place:
            target, finish = adapter.target(tensor, draft, is_read=True, any_order=True)
            request = draft.request(target, target, finish)
        else:
            source = adapter.source(tensor, draft)
            result, target = adapter.empty(tensor, source, source.shape)
            request = draft.request(source, target, lambda _: result)
        draft.scale(request, op, average, prescale, postscale, lambda op: adapter.op(op, draft))
        request.codec = draft.engine.codec_id(compression)
        if operands is not None:
            residual, request.seed = operands
            if not isinstance(request.seed, Integral) or not 0 <= request.seed < 1 << 64:
                raise draft.refusal(
                    f"the seed is {request.seed!r}. Pass a whole number from 0 to 2**64 - 1."
                )
            if residual is not None:
                request.residual = draft.view_residual(residual, compression.residuals, request)
        return request


class _Broadcast(Form):
    kind = Kind.BROADCAST

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        root_rank, _, _ = arguments
        if self.is_in_place:
            target, finish = self.adapter.target(tensor, draft, is_read=True)
            request = draft.request(target, target, finish)
        else:
            source = self.adapter.source(tensor, draft)
            result, target = self.adapter.empty(tensor, source, source.shape)
            request = draft.request(source, target, lambda _: result)
        request.root = draft.check_rank(root_rank, "root_rank")
        return request


class _InPlace(Form):
    is_in_place = True


class _New(Form):
    is_new = True


class _NewAllreduce(_New, _Allreduce):
    pass


class _AllreduceInPlace(_InPlace, _Allreduce):
    pass


class _NewBroadcast(_New, _Broadcast):
    pass


class _BroadcastInPlace(_InPlace, _Broadcast):
    pass


class _Reduce(Form):
    kind = Kind.REDUCE
    comes_again = False

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        root_rank, op, prescale, postscale, _, _ = arguments
        source = self.adapter.source(tensor, draft)
        result, target = self.adapter.empty(tensor, source, source.shape)
        is_root = draft.engine.rank == root_rank
        request = draft.request(source, target, lambda _: result if is_root else None)
        request.root = draft.check_rank(root_rank, "root_rank")
        draft.scale(request, op, None, prescale, postscale, lambda op: self.adapter.op(op, draft))
        return request


class _Reducescatter(Form):
    kind = Kind.REDUCESCATTER

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        op, prescale, postscale, _, _ = arguments
        source = self.adapter.source(tensor, draft)
        if not source.shape:
            raise draft.refusal("a tensor without dimensions has no rows to divide. Pass one that has rows.")
        request = draft.request(source, None, self.adapter.result(tensor))
        draft.scale(request, op, None, prescale, postscale, lambda op: self.adapter.op(op, draft))
        return request


class _Allgather(Form):
    kind = Kind.ALLGATHER

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        source = draft.with_rows(self.adapter.source(tensor, draft))
        return draft.request(source, None, self.adapter.result(tensor))


class _Alltoall(Form):
    kind = Kind.ALLTOALL

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        """operands: None, or splits, and whether the result has those received."""
        adapter = self.adapter
        splits, has_received = operands or (None, False)
        source = draft.with_rows(adapter.source(tensor, draft))
        made = adapter.result(tensor)
        finish = made
        if has_received:

            def finish(handle: Any) -> Any:
                return made(handle), adapter.received(handle.received_splits)

        request = draft.request(source, None, finish)
        request.splits = draft.check_splits(adapter.splits(splits, draft), source)
        return request


class _Gather(Form):
    kind = Kind.GATHER
    comes_again = False

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        root_rank, _, _ = arguments
        source = draft.with_rows(self.adapter.source(tensor, draft))
        is_root = draft.engine.rank == root_rank
        finish = self.adapter.result(tensor) if is_root else lambda _: None
        request = draft.request(source, None, finish)
        request.root = draft.check_rank(root_rank, "root_rank")
        return request


class _Scatter(Form):
    kind = Kind.SCATTER
    comes_again = False

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        """operands: splits."""
        root_rank, _, _ = arguments
        source = draft.with_rows(self.adapter.source(tensor, draft))
        request = draft.request(source, None, self.adapter.result(tensor))
        request.root = draft.check_rank(root_rank, "root_rank")
        splits = self.adapter.splits(operands, draft)
        if draft.engine.rank == root_rank:
            request.splits = draft.check_splits(splits, source)
        return request


class _Message(Form):
    """A message between two ranks: both give it one name, whatever their framework."""

    argument: str
    comes_again = False

    def name(self, name: str) -> str:
        return name

    def draft(self, engine: Engine, name: str, group: int, arguments: Arguments) -> Draft:
        draft = super().draft(engine, name, group, arguments)
        draft.root = arguments[0]
        return draft

    def checked(self, draft: Draft, partner: int) -> int:
        if draft.check_rank(partner, self.argument) == draft.engine.rank:
            raise draft.refusal(f"{self.argument} is this rank itself. Copy the tensor.")
        return partner


class _Send(_Message):
    kind = Kind.SEND
    argument = "dst"

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        root = self.checked(draft, arguments[0])
        request = draft.request(self.adapter.source(tensor, draft), None, lambda _: None)
        request.root = root
        return request


class _Recv(_Message):
    kind = Kind.RECV
    argument = "src"

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        root = self.checked(draft, arguments[0])
        target, finish = self.adapter.target(tensor, draft, is_read=False)
        request = draft.request(target, target, finish)
        request.root = root
        return request


class _Barrier(Form):
    kind = Kind.BARRIER
    is_in_place = True  # The result is the tensor: None.

    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        return draft.request(None, None, lambda _: None)


def message_name(engine: Engine, sender: int, receiver: int) -> str:
    """The number of a message that has no name, of those between the two."""
    return engine.auto_name(f"message.{sender}.{receiver}")


class Reductions(Generic[Tensor]):
    """The calls that combine values; part of Operations."""

    def __init__(self, adapter: Adapter[Tensor]) -> None:
        self._one: Callable[..., Made[Any]] = Form.start
        self._several: Callable[..., Made[Any]] = Form.start_group
        self.new = _NewAllreduce(adapter)
        self.in_place = _AllreduceInPlace(adapter)
        self.reducescattered = _Reducescatter(adapter)
        self._reduce = _Reduce(adapter)

    def waiting(self: Calls) -> Calls:
        """The same operations, whose calls wait for their results."""
        other = copy.copy(self)
        other._one, other._several = Form.run, Form.run_group
        return other

    def allreduce(
        self,
        tensor: Tensor,
        average: bool | None = None,
        name: str | None = None,
        op: ReduceOp | int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionCodec = Compression.none,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
        residual: Any = None,
        seed: int = 0,
    ) -> Made[Tensor]:
        fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
        operands = None if residual is None and seed == 0 else (residual, seed)
        return self._one(self.new, tensor, name, process_set, engine, fields, operands)

    def allreduce_(
        self,
        tensor: Tensor,
        average: bool | None = None,
        name: str | None = None,
        op: ReduceOp | int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionCodec = Compression.none,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
        residual: Any = None,
        seed: int = 0,
    ) -> Made[Tensor]:
        fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
        operands = None if residual is None and seed == 0 else (residual, seed)
        return self._one(self.in_place, tensor, name, process_set, engine, fields, operands)

    def grouped_allreduce(
        self,
        tensors: Sequence[Tensor],
        average: bool | None = None,
        name: str | None = None,
        op: ReduceOp | int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionCodec = Compression.none,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[list[Tensor]]:
        fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
        return self._several(self.new, tensors, name, process_set, engine, fields)

    def grouped_allreduce_(
        self,
        tensors: Sequence[Tensor],
        average: bool | None = None,
        name: str | None = None,
        op: ReduceOp | int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionCodec = Compression.none,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[list[Tensor]]:
        fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
        return self._several(self.in_place, tensors, name, process_set, engine, fields)

    def reduce(
        self,
        tensor: Tensor,
        root_rank: int,
        name: str | None = None,
        op: ReduceOp | int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[Tensor | None]:
        fields = (root_rank, op, prescale_factor, postscale_factor, priority, backend)
        return self._one(self._reduce, tensor, name, process_set, engine, fields)

    def reducescatter(
        self,
        tensor: Tensor,
        name: str | None = None,
        op: ReduceOp | int | None = ReduceOp.AVERAGE,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[Tensor]:
        fields = (op, prescale_factor, postscale_factor, priority, backend)
        return self._one(self.reducescattered, tensor, name, process_set, engine, fields)

    def grouped_reducescatter(
        self,
        tensors: Sequence[Tensor],
        name: str | None = None,
        op: ReduceOp | int | None = ReduceOp.AVERAGE,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[list[Tensor]]:
        fields = (op, prescale_factor, postscale_factor, priority, backend)
        return self._several(self.reducescattered, tensors, name, process_set, engine, fields)


class Operations(Reductions[Tensor]):
    """The calls on tensors of one framework.  The public functions say what they do."""

    def __init__(self, adapter: Adapter[Tensor]) -> None:
        super().__init__(adapter)
        self.new_broadcast = _NewBroadcast(adapter)
        self.broadcast_in_place = _BroadcastInPlace(adapter)
        self.gathered = _Allgather(adapter)
        self.all_to_all = _Alltoall(adapter)
        self._gather = _Gather(adapter)
        self._scatter = _Scatter(adapter)
        self._send = _Send(adapter)
        self._recv = _Recv(adapter)
        self._barrier = _Barrier(adapter)

    def broadcast(
        self,
        tensor: Tensor,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        *,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[Tensor]:
        fields = (root_rank, priority, backend)
        return self._one(self.new_broadcast, tensor, name, process_set, engine, fields)

    def broadcast_(
        self,
        tensor: Tensor,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        *,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[Tensor]:
        fields = (root_rank, priority, backend)
        return self._one(self.broadcast_in_place, tensor, name, process_set, engine, fields)

    def allgather(
        self,
        tensor: Tensor,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        priority: int = 0,
        *,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[Tensor]:
        return self._one(self.gathered, tensor, name, process_set, engine, (priority, backend))

    def grouped_allgather(
        self,
        tensors: Sequence[Tensor],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        *,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[list[Tensor]]:
        return self._several(self.gathered, tensors, name, process_set, engine, (priority, backend))

    def alltoall(
        self,
        tensor: Tensor,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        *,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[Any]:
        fields = (priority, backend)
        # The rows that a call names are mostly not those of the next one.
        operands = None if splits is None else (splits, True)
        return self._one(self.all_to_all, tensor, name, process_set, engine, fields, operands)

    def gather(
        self,
        tensor: Tensor,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        *,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[Tensor | None]:
        fields = (root_rank, priority, backend)
        return self._one(self._gather, tensor, name, process_set, engine, fields)

    def scatter(
        self,
        tensor: Tensor,
        root_rank: int,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        *,
        priority: int = 0,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[Tensor]:
        fields = (root_rank, priority, backend)
        return self._one(self._scatter, tensor, name, process_set, engine, fields, splits)

    def send(
        self,
        tensor: Tensor,
        dst: int,
        name: str | None = None,
        *,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[None]:
        engine = engine_for_work() if engine is None else engine
        name = name or message_name(engine, engine.rank, dst)
        fields = (dst, 0, backend)
        return self._one(self._send, tensor, name, global_process_set, engine, fields)

    def recv(
        self,
        tensor: Tensor,
        src: int,
        name: str | None = None,
        *,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[Tensor]:
        engine = engine_for_work() if engine is None else engine
        name = name or message_name(engine, src, engine.rank)
        fields = (src, 0, backend)
        return self._one(self._recv, tensor, name, global_process_set, engine, fields)

    def barrier(
        self,
        process_set: ProcessSet = global_process_set,
        name: str | None = None,
        *,
        engine: Engine | None = None,
        backend: str = "",
    ) -> Made[None]:
        return self._one(self._barrier, None, name, process_set, engine, (0, backend))
