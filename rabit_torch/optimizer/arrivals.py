"""GradientArrivals: takes every gradient when autograd has finished it, and sends what is complete."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

import rabit
from rabit import InvalidArgument
from rabit_torch.optimizer.deliveries import Deliveries
from rabit_torch.optimizer.hooks import GradientHooks, make_hook
from rabit_torch.optimizer.layout import GradientLayout
from rabit_torch.optimizer.meetings import Meetings
from rabit_torch.optimizer.missing import MissingGradients, no_gradient
from rabit_torch.optimizer.mode import OverlapMode
from rabit_torch.optimizer.sender import GradientSender
from rabit_torch.overlap.compile import LateGradients
from rabit_torch.parameter_state import ParameterState
from rabit_torch.tensors import check, current_stream
from rabit_torch.untraced import untraced

__all__ = ["GradientArrivals"]

_current_graph_task_id = torch._C._current_graph_task_id

# A submit wakes the engine thread; small gradients wait for each other up to this many bytes.
_FLUSH_BYTES = 512 * 1024


class GradientArrivals:
    """The part of a backward pass.  Called by threads of autograd, and by the trainer between passes.

    Autograd has a thread for each device, and computes what is on the CPU in the caller's: hooks of parameters on
    several devices come at once, and `_lock` lets one after the other through.
    """

    def __init__(
        self,
        layout: GradientLayout,
        sender: GradientSender,
        deliveries: Deliveries,
        mode: OverlapMode,
        meetings: Meetings,
        *,
        sparse_as_dense: bool,
        waits_after_backward: bool,
    ) -> None:
        """waits_after_backward: gradients are reduced when backward() returns."""
        self._layout = layout
        self._sender = sender
        self._deliveries = deliveries
        self._mode = mode
        self._meetings = meetings
        self._sparse_as_dense = sparse_as_dense
        self._waits = waits_after_backward
        self._missing = MissingGradients()
        self._hooks = GradientHooks(self)
        self._late = LateGradients([state.parameter for state in layout.states])
        self._graph_task = -1
        self.backward_passes = 1  # that add up before a gradient is sent
        self._is_paused = False
        self._lock = threading.RLock()

    def listen(self, states: Iterable[ParameterState]) -> None:
        """Lets autograd report the gradients of `states`; those of frozen parameters once they are thawed."""
        for state in states:
            if state.parameter.requires_grad:
                check(state.parameter, state.name)
            self._hooks.add(state.parameter, make_hook(weakref.ref(self), state.index))

    def stop_listening(self) -> None:
        """Removes the hooks: another reducer takes the gradients from now on."""
        self._hooks.remove()

    def set_backward_passes(self, passes: int) -> None:
        """Before next_step: how many passes add up before a gradient is sent."""
        if not isinstance(passes, int) or passes < 1:
            raise InvalidArgument(
                f"backward_passes_per_step is {passes!r}; it must be an integer of at least 1"
            )
        self.backward_passes = passes

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, backward passes send nothing and do not count."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def next_step(self) -> None:
        """Makes every parameter wait for a new gradient."""
        self._graph_task = -1
        self._missing.next_step()
        for state in self._layout.states:
            state.passes_left = self.backward_passes
            state.in_pack = False
            if not state.is_committed:
                state.grad = None
            if state.early is not None:
                state.early.next_step()
                state.early.listen()
        for pack in self._layout.packs:
            pack.arrived = 0

    def may_leave_early(self, state: ParameterState) -> bool | None:
        """Whether a part of a gradient leaves at once; None: this is not the pass that sends."""
        if self._is_paused or state.passes_left != 1 or state.is_sent:
            return None
        return self._mode.sends_in_backward

    def arrived(self, index: int) -> None:
        """Autograd has finished adding to the gradient of a parameter.  Runs for every gradient."""
        if self._is_paused:
            return
        with self._lock:
            self._arrived(self._layout.states[index])

    def _arrived(self, state: ParameterState) -> None:
        crossing = self._mode.crossing
        if state.is_guarded and crossing is not None:
            crossing.gradient_arrives(state)
        if state.grad is not None:
            self._refuse_second_gradient(state)
        state.passes_left -= 1
        if state.passes_left > 0:
            return
        task = _current_graph_task_id()
        if task != self._graph_task and task != -1:
            self._call_back_after_backward(task)
        self.take(state)
        if self._sender.pending_bytes >= _FLUSH_BYTES and self._mode.sends_in_backward:
            self.flush()

    def take(self, state: ParameterState) -> None:
        """Queues the gradient of a state, with its whole group if it has one."""
        grad = state.parameter.grad
        if grad is None:
            raise InvalidArgument(
                f"gradient '{state.name}' on rank {rabit.rank()} is gone before it was sent: a hook that was "
                "registered earlier has set .grad of the parameter to None. Let that hook keep .grad, or leave "
                "the parameter out of the optimizer that DistributedOptimizer wraps"
            )
        if grad.dtype is not state.dtype or grad.numel() != state.count:
            self._sender.note_kind(state, grad)
        if grad.is_sparse and (self._sparse_as_dense or state.pack is not None or state.slot):
            if self._sparse_as_dense:
                state.sparse_dim = grad.sparse_dim()
            grad = state.parameter.grad = grad.to_dense()
        state.grad = grad
        state.arrived_in = self._missing.passes
        state.stream = current_stream(grad)
        if state.early is not None:
            state.early.stop()
        if self._mode.crossing is not None:
            self._mode.crossing.hide(state)
        pack = state.pack
        if pack is not None:
            state.in_pack = True
            pack.arrived += 1
            if pack.arrived == len(pack.states) and self._mode.sends_in_backward:
                self._sender.send_pack(pack, self._mode.is_halved)
        elif state.group is None:
            self._sender.queue(state)
        else:
            self._send_group(self._layout.join_group(state))

    def flush(self) -> None:
        """Submits what is queued."""
        self._sender.flush(self._mode.is_halved)

    def missing(self) -> list[ParameterState]:
        """Those that no backward pass of this step has sent."""
        return [s for s in self._layout.states if not s.is_sent and s.parameter.requires_grad]

    def note_absent(self, missing: Iterable[ParameterState]) -> None:
        """The step has no gradient of these."""
        for state in missing:
            state.was_absent = True

    def send_missing(self, missing: Iterable[ParameterState]) -> None:
        """Submits these, with zeros for those that took no part, and all that has arrived."""
        for state in missing:
            if state.parameter.grad is None:
                state.parameter.grad = no_gradient(state)
                if state.is_dense:
                    self._deliveries.zeros.append(state)
            self.take(state)
        self._flush_incomplete()

    def _flush_incomplete(self) -> None:
        """Submits all that has arrived, though others of its group or pack have not: they are frozen."""
        for state in self._layout.leave_groups():
            self._sender.queue(state)
        for pack in self._layout.packs:
            if pack.arrived:
                self._sender.send_pack(pack, self._mode.is_halved)
        self.flush()

    def _send_unfilled(self) -> None:
        """A backward pass has ended: submits what has arrived of packs and groups that still wait for a gradient.

        What lacks is frozen, or this rank has not used it: then zeros travel for it, since the pack of
        another rank may be full.  Members of a pack arrive in one pass, so that none of it is still to come.
        """
        absent = self._layout.absent_from_packs()
        if absent:
            if self._mode.crossing is not None:
                self._mode.crossing.flush()  # An update of the last step may still need its gradient.
            self._missing.note_left(absent)
            self.note_absent(absent)
        self.send_missing(absent)

    def _send_group(self, members: list[ParameterState]) -> None:
        if not members:
            return
        self.flush()
        for member in members:
            self._sender.queue(member)
        self.flush()

    def _refuse_second_gradient(self, state: ParameterState) -> None:
        if self._missing.has_left(state):
            raise InvalidArgument(
                f"gradient '{state.name}' on rank {rabit.rank()} arrived in a second backward pass of a "
                "step whose first had not computed it while other ranks had: zeros were sent for it. "
                "Add the losses and call backward() once, or pass find_unused_parameters=True"
            )
        if state.is_guarded or state.parameter.grad is state.grad:
            raise InvalidArgument(
                f"gradient '{state.name}' on rank {rabit.rank()} arrived a second time before step() "
                f"(backward_passes_per_step is {self.backward_passes}). Call optimizer.zero_grad() or "
                "optimizer.step() in between, raise backward_passes_per_step, or use "
                "optimizer.no_sync(). GradScaler leaves step() out after an overflow, and "
                "model.zero_grad(set_to_none=False) does not end it: call zero_grad() of the "
                "DistributedOptimizer. A layer in two checkpoints of one pass needs their use_reentrant=False"
            )
        # The caller has dropped the old gradient; what travels for it is of no more use.
        self._deliveries.settle([state])
        state.grad = None
        state.passes_left = self.backward_passes

    def _call_back_after_backward(self, task: int) -> None:
        self._graph_task = task
        self._meetings.before_gradients()
        self._late.look()
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._backward_done)

    @untraced
    def _backward_done(self) -> None:
        with self._lock:
            self._graph_task = -1
            if not self._mode.sends_in_backward:
                for pack in self._layout.packs:
                    if pack.arrived == len(pack.states):
                        self._sender.send_pack(pack, self._mode.is_halved)
            self.flush()
        # No hook is left, and waits need no lock. Hidden gradients are waited for when somebody asks.
        if self._waits:
            self._meetings.before_waits()
            self._send_unfilled()
            waited_for = [s for s in self._layout.states if not s.is_guarded]
            missing = self.missing()
            if self._missing.leave_now(lambda: self._deliveries.awaited(waited_for), missing):
                self.note_absent(missing)
                self.send_missing(missing)
            self._deliveries.settle(waited_for)
        self._missing.pass_ended()
