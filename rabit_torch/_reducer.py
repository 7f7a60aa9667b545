"""GradientReducer: sends each gradient when it is complete and waits where the trainer needs it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, Kind, ProcessSet, ReduceOp, Request

from ._adapter import check, dtype_of, memory_order, view
from ._compression import IDENTITY, split
from ._pack import Pack, make_packs
from ._sparse import allreduce_sparse

_current_graph_task_id = torch._C._current_graph_task_id

# A submit wakes the engine thread; small gradients wait for each other up to this many bytes.
_FLUSH_BYTES = 512 * 1024


class Slot:
    """One parameter: its gradient on the way, and how many backward passes it still waits for."""

    __slots__ = (
        "context",
        "grad",
        "group",
        "handle",
        "hook",
        "in_pack",
        "index",
        "is_dense",
        "name",
        "pack",
        "parameter",
        "passes_left",
        "wire",
    )

    def __init__(self, parameter: torch.Tensor, name: str, index: int, group: int | None) -> None:
        self.parameter = parameter
        self.name = name
        self.index = index
        self.group = group
        self.passes_left = 1
        self.hook: Any = None
        self.grad: torch.Tensor | None = None  # the gradient that was sent in this step
        self.wire: torch.Tensor | None = None  # what travels for it; often the same memory
        self.context: Any = None  # of a compression in Python
        self.handle: Any = None
        self.is_dense = True  # no gradient has been sparse so far
        self.pack: Pack | None = None
        self.in_pack = False  # its gradient waits for the others of its pack

    @property
    def is_sent(self) -> bool:
        return self.grad is not None


class GradientReducer:
    """Called by the autograd thread (hooks) and by the trainer; never by both at once."""

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        *,
        group_of: dict[torch.Tensor, int],
        compression: Any,
        backward_passes: int,
        op: ReduceOp,
        predivide_factor: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._engine = rabit.default_engine()
        self._codec, self._compressor = split(compression)
        self._op = op
        self._prescale = 1.0 / predivide_factor
        self._postscale = predivide_factor
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        # Optimizers are made in the same order on every rank, so two of them on one model (a GAN)
        # never use one name for two things.
        number = self._engine.next_number("optimizer")
        self._prefix = "gradient" if number == 1 else f"gradient.{number}"
        self._is_alone = process_set.size() == 1
        self._is_paused = False
        self._graph_task = -1
        self._pending: list[Slot] = []
        self._pending_bytes = 0
        self._slots: dict[torch.Tensor, Slot] = {}
        self._order: list[Slot] = []
        self._waiting_groups: dict[int, list[Slot]] = {}
        self._group_sizes: dict[int, int] = {}
        self._batch: rabit.Batch | None = None
        # The first step sends every gradient by its name, so that ranks whose models differ are told
        # where.  Then small ones travel in packs.
        self._packs: list[Pack] = []
        self._may_pack = True
        self.backward_passes = 1
        for parameter, name in names.items():
            self._add(parameter, name, group_of.get(parameter))
        self.set_backward_passes(backward_passes)

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """The name of every parameter, without the prefix of this optimizer."""
        return {p: slot.name[len(self._prefix) + 1 :] for p, slot in self._slots.items()}

    @property
    def in_flight(self) -> dict[torch.Tensor, Any]:
        """The handle of every gradient on its way."""
        found = {
            p: slot.handle or (slot.pack and slot.pack.handle) for p, slot in self._slots.items()
        }
        return {p: handle for p, handle in found.items() if handle is not None}

    @property
    def passes_left(self) -> dict[torch.Tensor, int]:
        """How many backward passes each gradient still waits for."""
        return {p: slot.passes_left for p, slot in self._slots.items()}

    # --- set-up -----------------------------------------------------------------------------------

    def _add(self, parameter: torch.Tensor, name: str, group: int | None) -> None:
        slot = Slot(parameter, f"{self._prefix}.{name}", len(self._order), group)
        self._slots[parameter] = slot
        self._order.append(slot)
        self._batch = None
        self._may_pack = True
        if group is not None:
            self._group_sizes[group] = self._group_sizes.get(group, 0) + 1
        if parameter.requires_grad:
            self._register(slot)

    def _register(self, slot: Slot) -> None:
        if self._is_alone:
            return
        check(slot.parameter, slot.name)
        register: Any = slot.parameter.register_post_accumulate_grad_hook
        slot.hook = register(self._make_hook(slot))

    def _make_hook(self, slot: Slot) -> Callable[[torch.Tensor], None]:
        reducer = weakref.ref(self)

        def arrived(parameter: torch.Tensor) -> None:
            alive = reducer()
            if alive is not None:
                alive._arrived(slot)

        arrived._torchdynamo_disable = True  # type: ignore[attr-defined]  # stays a plain call
        return arrived

    def add_parameters(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes parameters that were added to the optimizer later on."""
        for parameter in parameters:
            if parameter not in self._slots:
                self._add(parameter, f"parameter.{len(self._order)}", None)
                self._order[-1].passes_left = self.backward_passes

    def set_backward_passes(self, passes: int) -> None:
        """Sets how many passes add up before a gradient is sent."""
        if not isinstance(passes, int) or passes < 1:
            raise InvalidArgument(
                f"backward_passes_per_step is {passes!r}; it must be an integer of at least 1"
            )
        self.backward_passes = passes
        self.next_step()

    def _prepare(self) -> rabit.Batch:
        """The C requests of all parameters, made once; a step only fills in pointers."""
        if self._batch is None:
            self._batch = self._engine.prepare([self._request(slot) for slot in self._order])
        return self._batch

    def _request(self, slot: Slot) -> Request:
        parameter = slot.parameter.detach()
        laid_out = memory_order(parameter)
        if laid_out is None:
            laid_out = torch.empty(parameter.shape, dtype=parameter.dtype)
        memory = view(laid_out, slot.name)
        return Request(
            kind=Kind.ALLREDUCE,
            name=slot.name,
            input=memory,
            output=memory,
            op=self._op,
            # The first parameters are needed first by the next forward pass.
            priority=len(self._order) - slot.index,
            group=self._process_set.group_on(self._engine),
            codec=self._engine.codec_id(self._codec),
            prescale=self._prescale,
            postscale=self._postscale,
        )

    def _make_packs(self) -> None:
        """Called between steps, on all ranks after the same step."""
        self._may_pack = False
        if self._is_alone or self._compressor is not IDENTITY:
            return
        for slot in self._order:
            slot.pack = None
        alone = [slot for slot in self._order if slot.group is None and slot.is_dense]
        self._packs = make_packs(alone, self._prefix)
        for pack in self._packs:
            memory = view(pack.buffer, pack.name)
            request = self._request(pack.slots[-1])
            request.name, request.input, request.output = pack.name, memory, memory
            pack.batch = self._engine.prepare([request])
            for slot in pack.slots:
                slot.pack = pack

    # --- backward ---------------------------------------------------------------------------------

    def _arrived(self, slot: Slot) -> None:
        """Autograd has finished adding to the gradient of `slot`.  Runs for every gradient."""
        if self._is_paused:
            return
        if slot.grad is not None:
            self._refuse_second_gradient(slot)
        slot.passes_left -= 1
        if slot.passes_left > 0:
            return
        task = _current_graph_task_id()
        if task != self._graph_task and task != -1:
            self._call_back_after_backward(task)
        self._take(slot)
        if self._pending_bytes >= _FLUSH_BYTES:
            self._flush()

    def _refuse_second_gradient(self, slot: Slot) -> None:
        if slot.parameter.grad is slot.grad:
            raise InvalidArgument(
                f"gradient '{slot.name}' on rank {rabit.rank()} arrived a second time before step() "
                f"(backward_passes_per_step is {self.backward_passes}). Call optimizer.zero_grad() or "
                "optimizer.step() in between, raise backward_passes_per_step, or use "
                "optimizer.no_sync()"
            )
        # The caller has dropped the old gradient; what travels for it is of no more use.
        self._finish(slot)
        if slot.pack is not None and slot.pack.handle is not None:
            slot.pack.finish()
        slot.grad = None
        slot.passes_left = self.backward_passes

    def _call_back_after_backward(self, task: int) -> None:
        self._graph_task = task
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._backward_done)

    def _backward_done(self) -> None:
        self._graph_task = -1
        self._flush()
        self._wait()

    def _take(self, slot: Slot) -> None:
        """Queues the gradient of a slot, with its whole group if it has one."""
        slot.grad = slot.parameter.grad
        pack = slot.pack
        if pack is not None:
            slot.in_pack = True
            pack.arrived += 1
            if pack.arrived == len(pack.slots):
                self._send_pack(pack)
            return
        if slot.group is None:
            self._queue(slot)
            return
        waiting = self._waiting_groups.setdefault(slot.group, [])
        waiting.append(slot)
        if len(waiting) == self._group_sizes[slot.group]:
            del self._waiting_groups[slot.group]
            self._flush()
            for member in waiting:
                self._queue(member)
            self._flush()

    def _queue(self, slot: Slot) -> None:
        self._pending.append(slot)
        self._pending_bytes += slot.parameter.numel() * slot.parameter.element_size()

    # --- sending ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Submits everything that is queued with one call."""
        if not self._pending:
            return
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        batch = self._prepare()
        plain: list[Slot] = []
        for slot in pending:
            if slot.grad is None or self._compressor is not IDENTITY or slot.grad.is_sparse:
                self._send_alone(slot)
            else:
                pointer = self._wire(slot)
                batch.set_pointers(slot.index, pointer, pointer)
                plain.append(slot)
        if plain:
            handles = batch.submit([slot.index for slot in plain], [slot.wire for slot in plain])
            for slot, handle in zip(plain, handles, strict=True):
                slot.handle = handle

    def _send_pack(self, pack: Pack) -> None:
        pack.fill()
        (pack.handle,) = pack.batch.submit([0], [pack.buffer])

    def _wire(self, slot: Slot) -> int:
        """The address of the memory that travels for a dense gradient."""
        grad, parameter = slot.grad, slot.parameter
        assert grad is not None
        if grad.stride() == parameter.stride() and memory_order(grad) is not None:
            slot.wire = grad
        elif memory_order(parameter) is not None:
            slot.wire = torch.empty_like(parameter.detach()).copy_(grad)
        else:
            slot.wire = grad.contiguous()
        return slot.wire.data_ptr()

    def _send_alone(self, slot: Slot) -> None:
        """Gradients that are sparse, or compressed by Python code."""
        grad = slot.grad
        assert grad is not None
        if grad.is_sparse and not self._sparse_as_dense:
            slot.is_dense = False
            slot.handle = allreduce_sparse(grad, slot.name, self._op, self._process_set)
            return
        if grad.is_sparse:
            grad = slot.grad = slot.parameter.grad = grad.to_dense()
        slot.wire, slot.context = self._compressor.compress(grad.contiguous())
        memory = view(slot.wire.contiguous(), slot.name)
        request = self._request(slot)
        request.input = request.output = memory
        dtype_of(slot.wire, slot.name)
        (slot.handle,) = self._engine.submit([request])

    # --- waiting ----------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Waits for everything that was sent; raises the first error after all have finished."""
        first_error: rabit.RabitError | None = None
        for pack in self._packs:
            if pack.handle is not None:
                try:
                    pack.finish()
                except rabit.RabitError as error:
                    first_error = first_error or error
        for slot in self._order:
            if slot.handle is None:
                continue
            try:
                self._finish(slot)
            except rabit.RabitError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _finish(self, slot: Slot) -> None:
        handle, slot.handle = slot.handle, None
        if handle is None:
            return
        result = handle.wait()
        if slot.grad is None:
            return
        if slot.grad.is_sparse:
            slot.parameter.grad = slot.grad = result
        elif self._compressor is not IDENTITY:
            assert slot.wire is not None
            slot.grad.copy_(self._compressor.decompress(slot.wire, slot.context))
        elif slot.wire is not slot.grad and slot.wire is not None:
            slot.grad.copy_(slot.wire)
        slot.wire = slot.context = None

    def synchronize(self) -> None:
        """Sends what no backward pass has sent, then waits for all."""
        if self._is_alone:
            return
        for slot in self._order:
            if slot.is_sent or not slot.parameter.requires_grad:
                continue
            if slot.hook is None:
                self._register(slot)
            if slot.parameter.grad is None:
                slot.parameter.grad = torch.zeros_like(slot.parameter.detach())
            self._take(slot)
        for waiting in list(self._waiting_groups.values()):  # groups with frozen members
            for slot in waiting:
                self._queue(slot)
        self._waiting_groups.clear()
        for pack in self._packs:  # packs with frozen members
            if pack.arrived:
                self._send_pack(pack)
        self._flush()
        self._wait()

    def discard(self) -> None:
        """Waits for what is in flight, so that the gradients may be cleared, and forgets it."""
        if self._is_alone:
            return
        self._flush()
        self._wait()
        self._waiting_groups.clear()
        self.next_step()

    def step_done(self) -> None:
        """The optimizer has taken its step: counts it, and starts the next."""
        self._engine.steps += 1
        self.next_step()
        if self._may_pack:
            self._make_packs()

    def next_step(self) -> None:
        """Makes every parameter wait for a new gradient."""
        self._graph_task = -1
        for slot in self._order:
            slot.passes_left = self.backward_passes
            slot.grad = None
            slot.in_pack = False
        for pack in self._packs:
            pack.arrived = 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, backward passes send nothing and do not count."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before
