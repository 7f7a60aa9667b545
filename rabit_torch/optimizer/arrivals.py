"""GradientArrivals: takes every gradient when autograd has finished it, and sends what is complete."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.compiler import is_compiling

import rabit
from rabit import InvalidArgument
from rabit_torch.optimizer.hooks import GradientHooks
from rabit_torch.optimizer.layout import GradientLayout
from rabit_torch.optimizer.meetings import Meetings
from rabit_torch.optimizer.missing import MissingGradients, no_gradient
from rabit_torch.optimizer.mode import OverlapMode
from rabit_torch.optimizer.requests import GradientRequests
from rabit_torch.optimizer.route_queue import RouteQueue
from rabit_torch.optimizer.routes import Sparse
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
        requests: GradientRequests,
        queue: RouteQueue,
        mode: OverlapMode,
        meetings: Meetings,
    ) -> None:
        self._layout = layout
        self._requests = requests
        self._queue = queue
        self._mode = mode
        self._meetings = meetings
        # Gradients are reduced when backward() returns; but where ranks agree on what is unused, a rank that waited
        # then would keep the others from agreeing.
        self._waits = not requests.reduction.find_unused
        self._missing = MissingGradients()
        self._hooks = GradientHooks(self)
        self._late: LateGradients | None = LateGradients(
            [state.parameter for state in layout.states]
        )
        self._graph_task = -1
        self._passes = 0  # of this step that have sent something, and have ended
        self.is_complete = False  # every gradient of this step is reduced and in `.grad`
        self.backward_passes = 1  # that add up before a gradient is sent
        self._is_paused = False
        self._lock = threading.RLock()

    def listen(self, states: Iterable[ParameterState]) -> None:
        """Lets autograd report the gradients of `states`; those of frozen parameters once they are thawed."""
        for state in states:
            if state.parameter.requires_grad:
                check(state.parameter, state.name)
            self._hooks.add(state.parameter, _make_hook(weakref.ref(self), state.index))

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
        if self._passes > 1:
            self._missing.has_several = True
        self._passes = 0
        self.is_complete = False
        if self._missing.left:
            self._missing.left.clear()
        self._queue.next_step()
        for state in self._layout.states:
            state.passes_left = self.backward_passes
            if state.update is None or not state.update.is_committed:
                state.grad = None

    def arrived(self, index: int) -> None:
        """Autograd has finished adding to the gradient of a parameter.  Runs for every gradient."""
        if self._is_paused:
            return
        with self._lock:
            self._arrived(self._layout.states[index])

    def _arrived(self, state: ParameterState) -> None:
        crossing = self._mode.crossing
        if crossing is not None:
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
        if self._queue.pending_bytes >= _FLUSH_BYTES and self._mode.sends_in_backward:
            self._queue.flush()

    def take(self, state: ParameterState) -> None:
        """Queues the gradient of a state, with its whole group if it has one."""
        grad = state.parameter.grad
        if grad is None:
            raise InvalidArgument(
                f"gradient '{state.name}' on rank {rabit.rank()} is gone before it was sent: a hook that was "
                "registered earlier has set .grad of the parameter to None. Let that hook keep .grad, or leave "
                "the parameter out of the optimizer that DistributedOptimizer wraps"
            )
        if state.kind != (grad.dtype, grad.numel()):
            self._requests.note_kind(state, grad)
        if grad.is_sparse:
            grad = self._sparse(state, grad)
        state.grad = grad
        state.arrived_in = self._passes
        state.route.stream = current_stream(grad)
        self.is_complete = False
        if self._mode.crossing is not None:
            self._mode.crossing.hide(state)
        if state.group is None:
            self._queue.add(state)
        else:
            self._send_group(self._layout.join_group(state))

    def _sparse(self, state: ParameterState, grad: torch.Tensor) -> torch.Tensor:
        """What travels for a gradient of touched rows only: itself, by another route, or its dense form."""
        route, as_dense = state.route, self._requests.reduction.sparse_as_dense
        if as_dense:
            state.sparse_dim = grad.sparse_dim()
        if as_dense or not route.takes_sparse:
            grad = state.parameter.grad = grad.to_dense()
        elif not route.is_sparse:
            state.route = Sparse(state, route.codec, self._queue, is_announced=False)
        return grad

    def meet(self) -> None:
        """Before this rank waits for gradients: compares with the other ranks, if it is time to."""
        meeting = self._meetings.meeting
        if meeting.joins != self._requests.engine.joins or meeting.is_open:
            self._meetings.before_waits()

    def missing(self) -> list[ParameterState]:
        """Those that no backward pass of this step has sent."""
        return [s for s in self._layout.states if s.grad is None and s.parameter.requires_grad]

    def note_absent(self, missing: Iterable[ParameterState]) -> None:
        """The step has no gradient of these."""
        for state in missing:
            state.was_absent = True

    def send_missing(self, missing: Iterable[ParameterState]) -> None:
        """Submits these, with zeros for those that took no part, and all that has arrived.

        Though others of its group or pack have not: they are frozen.
        """
        for state in missing:
            if state.parameter.grad is None:
                state.parameter.grad = no_gradient(state)
                if not state.route.is_sparse:
                    self._queue.zeros.append(state.route)
            self.take(state)
        if self._layout.waiting:
            for state in self._layout.leave_groups():
                self._queue.add(state)
        self._queue.flush()
        for pack in list(self._queue.packs):
            pack.send()

    def _send_unfilled(self) -> None:
        """A backward pass has ended: submits what has arrived of packs and groups that still wait for a gradient.

        What lacks is frozen, or this rank has not used it: then zeros travel for it, since the pack of
        another rank may be full.  Members of a pack arrive in one pass, so that none of it is still to come.
        """
        absent = [
            s for pack in self._queue.packs for s in pack.absent() if s.parameter.requires_grad
        ]
        if absent:
            self._missing.note_left(absent)
            self.note_absent(absent)
        self.send_missing(absent)

    def _send_group(self, members: list[ParameterState]) -> None:
        if not members:
            return
        self._queue.flush()
        for member in members:
            self._queue.add(member)
        self._queue.flush()

    def _refuse_second_gradient(self, state: ParameterState) -> None:
        if self._missing.has_left(state):
            raise InvalidArgument(
                f"gradient '{state.name}' on rank {rabit.rank()} arrived in a second backward pass of a "
                "step whose first had not computed it while other ranks had: zeros were sent for it. "
                "Add the losses and call backward() once, or pass find_unused_parameters=True"
            )
        if state.is_hidden or state.parameter.grad is state.grad:
            raise InvalidArgument(
                f"gradient '{state.name}' on rank {rabit.rank()} arrived a second time before step() "
                f"(backward_passes_per_step is {self.backward_passes}). Call optimizer.zero_grad() or "
                "optimizer.step() in between, raise backward_passes_per_step, or use "
                "optimizer.no_sync(). GradScaler leaves step() out after an overflow, and "
                "model.zero_grad(set_to_none=False) does not end it: call zero_grad() of the "
                "DistributedOptimizer. A layer in two checkpoints of one pass needs their use_reentrant=False"
            )
        # The caller has dropped the old gradient; what travels for it is of no more use.
        self._queue.settle([state])
        state.grad = None
        state.passes_left = self.backward_passes

    def _call_back_after_backward(self, task: int) -> None:
        self._graph_task = task
        if self._meetings.meeting.joins != self._requests.engine.joins:
            self._meetings.before_gradients()
        if self._late is not None:
            self._late.look()
            self._late = None
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._backward_done)

    @untraced
    def _backward_done(self) -> None:
        with self._lock:
            self._graph_task = -1
            self._queue.flush()
        # No hook is left, and waits need no lock. Hidden gradients are waited for when somebody asks.
        if self._waits:
            self.meet()
            crossing = self._mode.crossing
            if crossing is not None and crossing.pending:
                # What this pass has not read keeps the gradient of the last step, and is missing in this one.
                crossing.flush()
            if self._queue.packs or self._layout.waiting:
                self._send_unfilled()
            waited_for = self._layout.states
            if crossing is not None:
                waited_for = [s for s in waited_for if not s.is_hidden]
            missing = self.missing()
            is_first = bool(missing) and self._passes == 0
            if is_first and self._missing.leave_now(
                lambda: self._queue.awaited(waited_for), missing
            ):
                self.note_absent(missing)
                self.send_missing(missing)
                missing = []
            self._queue.settle(waited_for)
            self.is_complete = not missing and crossing is None
        self._passes += 1


def _make_hook(
    arrivals: Callable[[], GradientArrivals | None], index: int
) -> Callable[[torch.Tensor], None]:
    """The hook of one parameter, for register_post_accumulate_grad_hook.

    arrivals: a weak reference; the parameter may live longer.  index: of the parameter, which its own hook must not
    hold: Python's collector of garbage does not see into autograd, and the model would stay forever.
    """

    def arrived(parameter: torch.Tensor) -> None:
        alive = arrivals()
        if alive is not None:
            alive.arrived(index)

    # Compiled autograd must not trace into the engine, nor into what this calls.  Outside of a
    # trace the opaque form would cost as much as the rest of the hook.
    disable: Any = torch.compiler.disable
    opaque: Callable[[torch.Tensor], None] = disable(arrived)

    def hook(parameter: torch.Tensor) -> None:
        if is_compiling():
            opaque(parameter)
        else:
            arrived(parameter)

    return hook
