"""GradientReducer: sends each gradient when it is complete and waits where the trainer needs it."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch

import rabit
from rabit import InvalidArgument, ProcessSet, ReduceOp
from rabit.framework import Strategy, driver_of
from rabit_torch.compression import IDENTITY
from rabit_torch.optimizer.agreements import agree_on_any, no_gradient
from rabit_torch.optimizer.hooks import make_hook
from rabit_torch.optimizer.method import Method
from rabit_torch.optimizer.packs import make_packs
from rabit_torch.optimizer.row_sparse import choose_row_sparse
from rabit_torch.optimizer.sender import GradientSender
from rabit_torch.overlap.compile import LateGradients, watch_compilations
from rabit_torch.overlap.crossing_report import report_crossing
from rabit_torch.overlap.deferred import Crossing
from rabit_torch.overlap.tied import EarlyPart
from rabit_torch.parameter_state import Pack, ParameterState
from rabit_torch.tensors import check

Overlap = Literal["none", "backward", "next-forward", "reduce-scatter"]
# The modes whose step() returns before the gradients are there.
CROSSING: tuple[Overlap, ...] = ("next-forward", "reduce-scatter")

_current_graph_task_id = torch._C._current_graph_task_id

# A submit wakes the engine thread; small gradients wait for each other up to this many bytes.
_FLUSH_BYTES = 512 * 1024


class GradientReducer:
    """Called by the autograd thread (hooks) and by the trainer; never by both at once."""

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        *,
        optimizer: torch.optim.Optimizer,
        overlap: Overlap,
        priorities: dict[str, int],
        group_of: dict[torch.Tensor, int],
        compression: Any,
        backward_passes: int,
        op: ReduceOp,
        predivide_factor: float,
        sparse_as_dense: bool,
        row_sparse: bool | Iterable[str],
        find_unused: bool,
        process_set: ProcessSet,
        strategy: Strategy | None = None,
    ) -> None:
        self._engine = rabit.default_engine()
        self._sparse_as_dense = sparse_as_dense
        self._find_unused = find_unused
        self._unused: frozenset[int] | None = None  # on all ranks, once they have agreed in a step
        self._process_set = process_set
        # Optimizers are made in the same order on every rank, so two of them on one model (a GAN)
        # never use one name for two things.
        number = self._engine.next_number("optimizer")
        self._prefix = "gradient" if number == 1 else f"gradient.{number}"
        if not process_set.included():
            strategy = None
        # A rank outside of the set trains by itself, as in one process.
        self._is_alone = not process_set.included() or (
            process_set.size() == 1 and strategy is None
        )
        self._is_paused = False
        self._graph_task = -1
        self._state_of: dict[torch.Tensor, ParameterState] = {}
        self._order: list[ParameterState] = []
        self._tasks = driver_of(self._engine)
        self._waiting_groups: dict[int, list[ParameterState]] = {}
        self._group_sizes: dict[int, int] = {}
        self._sender = GradientSender(
            self._order,
            self._engine,
            compression=compression,
            op=op,
            predivide_factor=predivide_factor,
            process_set=process_set,
        )
        # The first step sends every gradient by its name, so that ranks whose models differ are told
        # where.  Then small ones travel in packs.
        self._packs: list[Pack] = []
        self._may_pack = True
        self._optimizer = optimizer
        self._crossing: Crossing | None = None
        self.overlap: Overlap = "backward"
        self.backward_passes = 1
        for parameter, name in names.items():
            self._add(parameter, name, group_of.get(parameter))
            self._order[-1].priority = priorities.get(name)
        choose_row_sparse(
            self._order, row_sparse, self._prefix, op, process_set, self._is_compressed
        )
        if strategy is not None:
            self._sender.method = Method(
                strategy, self._order, self._prefix, optimizer=optimizer, process_set=process_set
            )
        self._look_at_uses()
        self._late = LateGradients(list(names))
        self.set_backward_passes(backward_passes)
        self.set_overlap(overlap)

    @property
    def engine(self) -> rabit.Engine:
        return self._engine

    @property
    def method(self) -> Method | None:
        """The gradient method, if there is one."""
        return self._sender.method

    @property
    def can_scatter(self) -> bool:
        """True if overlap="reduce-scatter" is possible: it takes no compression."""
        return not self._sender.codec.spec and not self._is_compressed

    @property
    def _is_compressed(self) -> bool:
        """True if Python code compresses the gradients."""
        return self._sender.compressor is not IDENTITY

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """The name of every parameter, without the prefix of this optimizer."""
        return {p: state.name[len(self._prefix) + 1 :] for p, state in self._state_of.items()}

    @property
    def in_flight(self) -> dict[torch.Tensor, Any]:
        """The handle of every gradient on its way."""
        found = {
            p: state.handle or (state.pack and state.pack.handle)
            for p, state in self._state_of.items()
        }
        return {p: handle for p, handle in found.items() if handle is not None}

    @property
    def passes_left(self) -> dict[torch.Tensor, int]:
        """How many backward passes each gradient still waits for."""
        return {p: state.passes_left for p, state in self._state_of.items()}

    @property
    def states(self) -> list[ParameterState]:
        """The state of every parameter, by index."""
        return self._order

    @property
    def crossing(self) -> Crossing | None:
        """Where updates wait; None: updates do not leave step()."""
        return self._crossing

    # --- set-up -----------------------------------------------------------------------------------

    def _add(self, parameter: torch.Tensor, name: str, group: int | None) -> None:
        state = ParameterState(parameter, f"{self._prefix}.{name}", len(self._order), group)
        self._state_of[parameter] = state
        self._order.append(state)
        self._sender.forget_requests()
        self._may_pack = True
        if group is not None:
            self._group_sizes[group] = self._group_sizes.get(group, 0) + 1
        if parameter.requires_grad:
            self._register(state)

    def _register(self, state: ParameterState) -> None:
        if self._is_alone:
            return
        check(state.parameter, state.name)
        register: Any = state.parameter.register_post_accumulate_grad_hook
        state.hook = register(make_hook(weakref.ref(self), state))

    def _look_at_uses(self) -> None:
        """Tables whose rows travel may be tied; a dense part of their gradient can leave early."""
        if self._is_alone:
            return
        reducer = weakref.ref(self)

        def make(state: ParameterState) -> EarlyPart:
            def may_send() -> bool | None:
                alive = reducer()
                return None if alive is None else alive._may_leave_early(state)

            return EarlyPart(
                state.parameter, functools.partial(self._sender.send_early, state), may_send
            )

        for state in self._order:
            if state.rows is not None:
                state.early = make(state)
                watch_compilations()

    def _may_leave_early(self, state: ParameterState) -> bool | None:
        """Whether a part of a gradient leaves at once; None: this is not the pass that sends."""
        if self._is_paused or state.passes_left != 1 or state.is_sent:
            return None
        return self.overlap != "none"

    def _agree_on_early_parts(self) -> None:
        """After the first step, on all ranks: which tables are looked up and multiplied by."""
        parts = [state.early for state in self._order if state.early is not None]
        waiting = [part for part in parts if not part.is_decided]
        if not waiting:
            return
        flags = [part.is_looked_up and part.is_multiplied for part in waiting]
        agreed = agree_on_any(flags, f"{self._prefix}.tied", self._process_set)
        for number, part in enumerate(waiting):
            part.is_decided = True
            part.is_agreed = number in agreed
        for state in self._order:
            if state.early is not None and not state.early.is_agreed:
                state.early.stop()
                state.early = None

    def add_parameters(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes parameters that were added to the optimizer later on."""
        before = len(self._order)
        for parameter in parameters:
            if parameter not in self._state_of:
                self._add(parameter, f"parameter.{len(self._order)}", None)
                self._order[-1].passes_left = self.backward_passes
        if self.method is not None:
            self.method.add(self._order[before:])
        if self._crossing is not None:
            self._crossing.start_recording()

    def set_overlap(self, overlap: Overlap) -> None:
        """Between steps, on all ranks after the same one: what communication overlaps with."""
        if overlap == self.overlap:
            return
        if overlap == "reduce-scatter" and not self.can_scatter:
            raise InvalidArgument(
                "overlap='reduce-scatter' sends sums of parts, which compression does not cover; use "
                "overlap='next-forward' with compression, or Compression.none"
            )
        if self._crossing is not None:
            self._crossing.stop()
            self._crossing = None
        self.overlap = overlap
        if overlap in CROSSING and not self._is_alone:
            watch_compilations()
            self._crossing = Crossing(self, self._optimizer)
            self._crossing.start_recording()
            self._may_pack = True

    def set_backward_passes(self, passes: int) -> None:
        """Sets how many passes add up before a gradient is sent."""
        if not isinstance(passes, int) or passes < 1:
            raise InvalidArgument(
                f"backward_passes_per_step is {passes!r}; it must be an integer of at least 1"
            )
        self.backward_passes = passes
        self.next_step()

    def _plan(self) -> None:
        """Orders and packs the gradients.  Called between steps, on all ranks after the same one."""
        self._may_pack = False
        if self._is_alone:
            return
        self._agree_on_early_parts()
        if self._crossing is not None and self._crossing.is_recording:
            self._agree_on_order(self._crossing.stop_recording())
            report_crossing(self._order, self._prefix, self._engine, self.overlap)
        for state in self._order:
            state.pack = None
        self._packs = []
        if self._is_compressed:
            return
        span = None if self._crossing is None else self._engine.config.partition_bytes
        # A pack whose members are not all used leaves at step() only, so the others would not be
        # reduced when backward() returns.
        absent = [state.was_absent for state in self._order]
        for index in agree_on_any(absent, f"{self._prefix}.absent", self._process_set):
            self._order[index].may_pack = False
        self._packs = make_packs(self._order, self._prefix, span)
        for pack in self._packs:
            self._sender.prepare_pack(pack)
            for state in pack.states:
                state.pack = pack

    @property
    def _is_halved(self) -> bool:
        """True when gradients travel in two halves.  The step that records sends them whole."""
        crossing = self._crossing
        return (
            self.overlap == "reduce-scatter" and crossing is not None and not crossing.is_recording
        )

    def start_second_halves(self) -> None:
        """Waits for the sums of what is on its way in two halves, and starts to collect them.

        Of everything, whoever asks for whatever: ranks may ask in different orders.
        """
        halves, self._sender.halves = self._sender.halves, []
        for _, half in halves:
            half.open()
        for _, half in sorted(halves, key=lambda each: each[0]):
            half.wait_for_sum()
            self._tasks.pump()

    def _agree_on_order(self, order: tuple[list[int], list[int]]) -> None:
        """Every rank takes the order of first use on the first rank; packs depend on it.

        What was not seen in use is updated inside step(), so a pack must not hold it.
        """
        root = self._process_set.ranks[0] if self._process_set.ranks else 0
        name = f"{self._prefix}.order_of_use"
        agreed, unseen = rabit.broadcast_object(order, root, name, self._process_set)
        for place, index in enumerate(agreed):
            self._order[index].place = place
            self._order[index].may_pack = index not in unseen
            self._order[index].two_halves = None
        self._sender.forget_requests()  # They hold the priorities.

    # --- backward ---------------------------------------------------------------------------------

    def arrived(self, state: ParameterState) -> None:
        """Autograd has finished adding to the gradient of `state`.  Runs for every gradient."""
        if self._is_paused:
            return
        if state.is_guarded and self._crossing is not None:
            self._crossing.gradient_arrives(state)
        if state.grad is not None:
            self._refuse_second_gradient(state)
        state.passes_left -= 1
        if state.passes_left > 0:
            return
        task = _current_graph_task_id()
        if task != self._graph_task and task != -1:
            self._call_back_after_backward(task)
        self._take(state)
        if self._sender.pending_bytes >= _FLUSH_BYTES and self.overlap != "none":
            self._sender.flush(self._is_halved)

    def _refuse_second_gradient(self, state: ParameterState) -> None:
        if state.is_guarded or state.parameter.grad is state.grad:
            raise InvalidArgument(
                f"gradient '{state.name}' on rank {rabit.rank()} arrived a second time before step() "
                f"(backward_passes_per_step is {self.backward_passes}). Call optimizer.zero_grad() or "
                "optimizer.step() in between, raise backward_passes_per_step, or use "
                "optimizer.no_sync()"
            )
        # The caller has dropped the old gradient; what travels for it is of no more use.
        self._settle([state])
        state.grad = None
        state.passes_left = self.backward_passes

    def _call_back_after_backward(self, task: int) -> None:
        self._graph_task = task
        self._late.look()
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._backward_done)

    def _backward_done(self) -> None:
        self._graph_task = -1
        for pack in self._packs if self.overlap == "none" else ():
            if pack.arrived == len(pack.states):
                self._sender.send_pack(pack, self._is_halved)
        self._sender.flush(self._is_halved)
        # Hidden gradients are waited for when somebody asks.  Where ranks agree on what is unused, a
        # rank that waited here would keep the others from agreeing.
        if not self._find_unused:
            self._settle([state for state in self._order if not state.is_guarded])

    def _take(self, state: ParameterState) -> None:
        """Queues the gradient of a state, with its whole group if it has one."""
        grad = state.parameter.grad
        assert grad is not None
        if grad.is_sparse and (self._sparse_as_dense or state.pack is not None or state.slot):
            if self._sparse_as_dense:
                state.sparse_dim = grad.sparse_dim()
            grad = state.parameter.grad = grad.to_dense()
        state.grad = grad
        if state.early is not None:
            state.early.stop()
        if self._crossing is not None:
            self._crossing.hide(state)
        pack = state.pack
        if pack is not None:
            state.in_pack = True
            pack.arrived += 1
            if pack.arrived == len(pack.states) and self.overlap != "none":
                self._sender.send_pack(pack, self._is_halved)
            return
        if state.group is None:
            self._sender.queue(state)
            return
        waiting = self._waiting_groups.setdefault(state.group, [])
        waiting.append(state)
        if len(waiting) == self._group_sizes[state.group]:
            del self._waiting_groups[state.group]
            self._sender.flush(self._is_halved)
            for member in waiting:
                self._sender.queue(member)
            self._sender.flush(self._is_halved)

    # --- waiting ----------------------------------------------------------------------------------

    def is_on_its_way(self, state: ParameterState) -> bool:
        """False when a sent gradient still waits for `send_all`, here or on other ranks."""
        if state.in_pack or (self._find_unused and self._unused is None):
            return False
        return state.group is None or state not in self._waiting_groups.get(state.group, ())

    def is_there(self, state: ParameterState) -> bool:
        """True when `deliver` would not block."""
        handle = state.handle
        if handle is None and state.pack is not None:
            handle = state.pack.handle
        return handle is None or handle.done()

    def deliver(self, states: Iterable[ParameterState]) -> None:
        """Waits until the gradients of `states` are reduced, in `state.grad`.

        After an error, which is raised at once, the gradient counts as not delivered.
        """
        self._tasks.pump()
        self.start_second_halves()
        for state in states:
            if state.pack is not None and state.pack.handle is not None:
                state.pack.finish()
                for member in state.pack.states:
                    self._make_sparse_again(member)
            if state.handle is not None:
                self._finish(state)
                self._make_sparse_again(state)

    def _make_sparse_again(self, state: ParameterState) -> None:
        """What was sent dense for the caller's sake reaches an optimizer that wants it sparse."""
        if state.sparse_dim is None or state.grad is None or state.grad.is_sparse:
            return
        state.grad = state.grad.to_sparse(state.sparse_dim)
        if not state.is_guarded:
            state.parameter.grad = state.grad

    def _settle(self, states: Iterable[ParameterState]) -> None:
        """Waits for everything of `states`; raises the first error after all have finished."""
        first_error: rabit.RabitError | None = None
        try:
            self.deliver(())
        except rabit.RabitError as error:
            first_error = error
        for state in states:
            if state.handle is None and (state.pack is None or state.pack.handle is None):
                continue
            try:
                self.deliver([state])
            except rabit.RabitError as error:
                first_error = first_error or error
                self.drop(state)
        if first_error is not None:
            raise first_error

    def drop(self, state: ParameterState) -> None:
        """Forgets what has failed on the way."""
        state.handle = None
        if state.pack is not None and state.pack.handle is not None and state.pack.handle.done():
            state.pack.handle = None

    def _finish(self, state: ParameterState) -> None:
        result = state.handle.wait()
        state.handle = None
        if state.grad is None:
            return
        if state.slot is not None:
            state.slot.write_back()
        elif state.grad.is_sparse:
            state.grad = result
            if not state.is_guarded:
                state.parameter.grad = result
        elif self._is_compressed:
            assert state.wire is not None
            state.grad.copy_(self._sender.compressor.decompress(state.wire, state.context))
        elif state.wire is not state.grad and state.wire is not None:
            state.grad.copy_(state.wire)
        state.wire = state.context = None

    def send_all(self) -> None:
        """Sends what no backward pass has sent: zeros for parameters that took no part."""
        if self._is_alone:
            return
        if self._crossing is not None:
            self._crossing.flush()  # of what this step did not read
        missing = [s for s in self._order if not s.is_sent and s.parameter.requires_grad]
        if self._find_unused and self._unused is None:
            self._unused = self._unused_everywhere(missing)
        unused = self._unused or ()
        for state in missing:
            state.was_absent = True
            if state.hook is None:
                self._register(state)
            if state.index in unused:
                continue
            if state.parameter.grad is None:
                state.parameter.grad = no_gradient(state)
            self._take(state)
        for waiting in list(self._waiting_groups.values()):  # groups with frozen members
            for state in waiting:
                self._sender.queue(state)
        self._waiting_groups.clear()
        for pack in self._packs:  # packs with frozen members
            if pack.arrived:
                self._sender.send_pack(pack, self._is_halved)
        self._sender.flush(self._is_halved)
        for state in self._order:
            if state.rows is not None:
                state.rows.wait_for_indices()
        self._tasks.pump()  # The rows leave here, at the same place on all ranks.

    def _unused_everywhere(self, missing: list[ParameterState]) -> frozenset[int]:
        """The indices of the parameters that have no gradient on any rank.  Blocks."""
        used = [True] * len(self._order)
        for state in missing:
            used[state.index] = state.parameter.grad is not None
        return frozenset(range(len(used))) - agree_on_any(
            used, f"{self._prefix}.used", self._process_set
        )

    def synchronize(self) -> None:
        """Sends what no backward pass has sent, then waits for all; gradients are in `.grad`."""
        self.send_all()
        if self._crossing is not None:
            self._crossing.reveal([state for state in self._order if state.is_sent])
        self._settle(self._order)

    def discard(self) -> None:
        """Waits for what is sent and not committed, so that the gradients may be cleared."""
        if self._is_alone:
            return
        self._sender.flush(self._is_halved)
        sent = [state for state in self._order if state.is_sent and not state.is_committed]
        if self._crossing is not None:
            self._crossing.reveal(sent)
        self._settle(sent)
        self._waiting_groups.clear()
        if self.method is not None:
            self.method.undo()
        self.next_step()

    def before_step(self) -> None:
        """The gradients are reduced, and the optimizer is about to step."""
        if self.method is not None:
            self.method.before_step()

    def step_done(self) -> None:
        """The optimizer has taken its step: counts it, and starts the next."""
        if self.method is not None:
            self.method.after_step()
        self._engine.end_step()
        self.next_step()
        if self._may_pack or (self._crossing is not None and self._crossing.is_recording):
            self._plan()

    def next_step(self) -> None:
        """Makes every parameter wait for a new gradient."""
        self._graph_task = -1
        self._unused = None
        for state in self._order:
            state.passes_left = self.backward_passes
            state.in_pack = False
            if not state.is_committed:
                state.grad = None
            if state.early is not None:
                state.early.next_step()
                state.early.listen()
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
