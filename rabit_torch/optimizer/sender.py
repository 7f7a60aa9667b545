"""GradientSender: makes requests of gradients and hands them to the engine."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, Kind, ProcessSet, ReduceOp, Request
from rabit_torch.compression import IDENTITY, split
from rabit_torch.ops.sparse import allreduce_sparse, refuse_sparse
from rabit_torch.optimizer.method import Method
from rabit_torch.optimizer.missing import no_gradient
from rabit_torch.optimizer.two_halves import ScatterGather
from rabit_torch.parameter_state import Pack, ParameterState
from rabit_torch.tensors import (
    axis_order,
    can_travel,
    dtype_of,
    empty_in_order,
    row_major,
    stream_of,
    view,
    wait_for_stream,
)

__all__ = ["GOES_SPARSE", "GradientSender"]

# Why a rank refuses the dense exchange of a gradient; the others find it in their error.
GOES_SPARSE = (
    "its gradient is sparse. Let it be sparse or dense on every rank, or pass sparse_as_dense=True"
)
_IS_DENSE = GOES_SPARSE.replace("is sparse", "is dense")

_ABSENT_CHARACTERS = 200


class GradientSender:
    """Sends; never waits.  One thread at a time: those of autograd, which GradientArrivals lets in, and the trainer."""

    def __init__(
        self,
        states: list[ParameterState],
        engine: rabit.Engine,
        *,
        compression: Any,
        op: ReduceOp,
        predivide_factor: float,
        process_set: ProcessSet,
    ) -> None:
        """states: of all parameters, by index; the list grows with the optimizer."""
        self._states = states
        self._engine = engine
        self.codec, self.compressor = split(compression)
        self._op = op
        self._prescale = 1.0 / predivide_factor
        self._postscale = predivide_factor
        self._process_set = process_set
        self._pending: list[ParameterState] = []
        self.pending_bytes = 0
        self._batch: rabit.Batch | None = None
        self._made_for: list[tuple[torch.dtype, int]] = []  # type and elements of each of its requests
        self.method: Method | None = None
        self._has_urgent = False
        self.halves: list[
            tuple[int, ScatterGather]
        ] = []  # whose second half has not been let start

    @property
    def is_compressed(self) -> bool:
        """True if Python code compresses the gradients."""
        return self.compressor is not IDENTITY

    @property
    def can_scatter(self) -> bool:
        """True if gradients can travel in two halves: these take no compression."""
        return not self.codec.spec and not self.is_compressed

    def set_urgency(self, has_urgent: bool) -> None:
        """False: step() needs all gradients, so that none of them is urgent."""
        self._has_urgent = has_urgent
        self.forget_requests()  # They hold the priorities.

    def forget_requests(self) -> None:
        """Parameters have been added, or their order has changed."""
        self._batch = None

    def note_kind(self, state: ParameterState, grad: torch.Tensor) -> None:
        """The first gradient of a parameter says what those after it are like: requests are made once."""
        if state.dtype is not None:
            raise _changed(state, grad)
        state.dtype, state.count = grad.dtype, grad.numel()
        if self._batch is not None and self._made_for[state.index] != (state.dtype, state.count):
            self.forget_requests()

    def queue(self, state: ParameterState) -> None:
        """The gradient of `state` leaves with the next flush."""
        self._pending.append(state)
        self.pending_bytes += state.bytes

    def flush(self, is_halved: bool) -> None:
        """Submits everything that is queued with one call.

        is_halved: as reduce-scatter now and all-gather later.
        """
        if not self._pending:
            return
        pending, self._pending, self.pending_bytes = self._pending, [], 0
        _follow(pending)
        batch = self._prepare()
        plain: list[tuple[ParameterState, Any]] = []
        for state in pending:
            if state.grad is None or self.is_compressed or state.grad.is_sparse:
                self._send_alone(state)
            elif state.slot is not None and self.method is not None:
                state.handle = self.method.start(state)
            elif state.rows is not None:
                state.handle = state.rows.start(
                    self.codec, self._priority(state), functools.partial(self._send, state)
                )
            else:
                wire = self._wire(state)
                pointer = wire.data_ptr()
                if is_halved and not self._codec(state).spec:
                    if state.two_halves is None:
                        state.two_halves = self._halve(self._request(state))
                    state.handle = state.two_halves.start(pointer, wire)
                    self.halves.append((state.place, state.two_halves))
                    continue
                batch.set_pointers(state.index, pointer, pointer, stream_of(wire))
                plain.append((state, self._keepalive(batch, state)))
        if self.method is not None:
            self.method.progress()
        if plain:
            handles = batch.submit([state.index for state, _ in plain], [keep for _, keep in plain])
            for (state, _), handle in zip(plain, handles, strict=True):
                state.handle = handle

    def prepare_pack(self, pack: Pack) -> None:
        """Makes the request of a new pack."""
        pack.batch = self._engine.prepare([self._pack_request(pack)])

    def send_pack(self, pack: Pack, is_halved: bool) -> None:
        _follow(pack.states)
        absent = pack.fill()
        if absent:
            # Of its own name: a rank that has not frozen these too would take zeros for gradients.
            request = self._pack_request(pack)
            request.name = _without(pack.name, absent)
            (pack.handle,) = self._engine.submit([request])
            return
        if is_halved and not self._codec(pack.states[0]).spec:
            if pack.two_halves is None:
                pack.two_halves = self._halve(self._pack_request(pack))
            pack.handle = pack.two_halves.start(pack.buffer.data_ptr(), pack.buffer)
            self.halves.append((min(s.place for s in pack.states), pack.two_halves))
            return
        pointer = pack.buffer.data_ptr()
        pack.batch.set_pointers(0, pointer, pointer, stream_of(pack.buffer))
        (pack.handle,) = pack.batch.submit([0], [pack.buffer])

    def send_early(self, state: ParameterState, part: torch.Tensor) -> rabit.Handle:
        """Starts the exchange of `part`, in place, by a name of its own.

        part: contiguous, of the shape of the parameter.
        """
        request = self._request(state)
        request.name = f"{state.name}.early"
        request.input = request.output = view(part, request.name)
        (handle,) = self._engine.submit([request])
        return handle

    def _prepare(self) -> rabit.Batch:
        """The C requests of all parameters, made once; a step only fills in pointers."""
        if self._batch is None:
            self._batch = self._engine.prepare([self._request(state) for state in self._states])
            self._made_for = [(s.gradient_dtype, s.parameter.numel()) for s in self._states]
        return self._batch

    def _keepalive(self, batch: rabit.Batch, state: ParameterState) -> Any:
        """What owns the memory of a request, whose codec gets its operands of this step."""
        if not state.has_operands or self.method is None:
            return state.wire
        residual, seed = self.method.operands(state)
        batch.set_operands(state.index, 0 if residual is None else residual.ctypes.data, seed)
        return state.wire, residual

    def _codec(self, state: ParameterState) -> rabit.CompressionCodec:
        return self.codec if state.codec is None else state.codec

    def _priority(self, state: ParameterState) -> int:
        """What the next forward pass needs first runs first.

        NCCL exchanges on one stream: without priorities gradients are put there as they are sent, and
        the host need not see that they are computed.
        """
        if state.priority is not None:
            return state.priority
        if not self._has_urgent and state.parameter.is_cuda and self._engine.has_backend("nccl"):
            return 0
        return len(self._states) - state.place

    def _request(self, state: ParameterState) -> Request:
        laid_out, order = state.parameter.detach(), _order(state)
        if not (state.parameter.requires_grad or can_travel(state.gradient_dtype)):
            # Nothing travels for a frozen one.
            laid_out, order = laid_out.new_empty(0, dtype=torch.float32), 0
        elif axis_order(laid_out) != order or laid_out.dtype is not state.gradient_dtype:
            laid_out = empty_in_order(laid_out, order, state.gradient_dtype)
        memory = view(laid_out, state.name, order)
        return Request(
            kind=Kind.ALLREDUCE,
            name=state.name,
            input=memory,
            output=memory,
            op=self._op,
            priority=self._priority(state),
            group=self._process_set.group_on(self._engine),
            codec=self._engine.codec_id(self._codec(state)),
            prescale=self._prescale,
            postscale=self._postscale,
        )

    def _pack_request(self, pack: Pack) -> Request:
        memory = view(pack.buffer, pack.name)
        request = self._request(min(pack.states, key=lambda state: state.place))
        request.name, request.input, request.output = pack.name, memory, memory
        return request

    def _halve(self, request: Request) -> ScatterGather:
        return ScatterGather(
            self._engine, request, self._process_set.rank(), self._process_set.size()
        )

    def _wire(self, state: ParameterState) -> torch.Tensor:
        """The memory that travels for a dense gradient."""
        grad, order = state.grad, _order(state)
        assert grad is not None
        wire = grad
        if axis_order(grad) != order:
            wire = empty_in_order(grad, order, grad.dtype).copy_(grad.detach())
        state.wire = wire
        return wire

    def _send(self, state: ParameterState) -> rabit.Handle:
        """Starts the exchange of one dense gradient."""
        wire, batch = self._wire(state), self._prepare()
        pointer = wire.data_ptr()
        batch.set_pointers(state.index, pointer, pointer, stream_of(wire))
        (handle,) = batch.submit([state.index], [wire])
        return handle

    def refuse_rows(self, state: ParameterState) -> None:
        """Tells those who wait for rows that this rank has none to send: its gradient is dense."""
        refuse_sparse(state.name, _IS_DENSE, self._process_set)

    def send_no_rows(self, state: ParameterState) -> None:
        """In place of dense zeros that another rank has refused, because its gradient is sparse."""
        state.is_dense = False
        state.wire = state.context = None
        state.grad = no_gradient(state)
        if not state.is_guarded:
            state.parameter.grad = state.grad
        self._send_alone(state)

    def _send_alone(self, state: ParameterState) -> None:
        """Gradients that are sparse, or compressed by Python code."""
        grad = state.grad
        assert grad is not None
        if grad.is_sparse:
            if state.is_dense:
                # A rank without this gradient does not know yet that it is sparse, and sends dense zeros.
                # They must not wait for this rank: see `send_no_rows`.
                self._engine.refuse(self._request(state), GOES_SPARSE)
                state.is_dense = False
            state.handle = allreduce_sparse(grad, state.name, self._op, self._process_set)
            return
        state.wire, state.context = self.compressor.compress(row_major(grad))
        memory = view(state.wire.contiguous(), state.name)
        request = self._request(state)
        request.input = request.output = memory
        dtype_of(state.wire, state.name)
        (state.handle,) = self._engine.submit([request])


def _order(state: ParameterState) -> int:
    """How the gradients of `state` lie in memory when they travel: as its parameter did when that was first needed.

    What is prepared for them is made for this order, and the ranks compare it.
    """
    if state.axis_order is None:
        state.axis_order = axis_order(state.parameter.detach()) or 0
    return state.axis_order


def _changed(state: ParameterState, grad: torch.Tensor) -> InvalidArgument:
    return InvalidArgument(
        f"gradient '{state.name}' on rank {rabit.rank()} has {grad.numel()} elements of type {grad.dtype}; "
        f"those before had {state.count} of type {state.dtype}, and what sends them was made for that. "
        "Convert or resize a model before its first step, or wrap a new optimizer after it, on every rank"
    )


def _without(name: str, absent: list[str]) -> str:
    """The name of a pack that leaves without some of its gradients; which, as far as a name has room."""
    listed = ", ".join(absent)
    if len(listed) > _ABSENT_CHARACTERS:
        digest = zlib.crc32(listed.encode())
        listed = f"{listed[:_ABSENT_CHARACTERS]}... ({len(absent)} parameters, {digest:08x})"
    return f"{name} without {listed}"


def _follow(states: list[ParameterState]) -> None:
    """Lets the current streams go on after those on which the gradients of `states` were computed.

    Autograd computes a gradient on the stream of its forward pass, and what sends it runs on that of the last one.
    """
    for state in states:
        if state.stream is not None:
            wait_for_stream(state.stream)
            state.stream = None
