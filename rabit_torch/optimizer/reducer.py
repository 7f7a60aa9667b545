"""GradientReducer: sends each gradient when it is complete and waits where the trainer needs it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

import rabit
from rabit import InvalidArgument
from rabit.framework import Meeting, Strategy, driver_of
from rabit_torch.optimizer.arrivals import GradientArrivals
from rabit_torch.optimizer.layout import GradientLayout, prefix_of_next
from rabit_torch.optimizer.meetings import Meetings
from rabit_torch.optimizer.method import Method
from rabit_torch.optimizer.mode import CROSSING, Overlap, OverlapMode
from rabit_torch.optimizer.requests import GradientRequests, Reduction
from rabit_torch.optimizer.route_choice import RouteChoice
from rabit_torch.optimizer.route_queue import RouteQueue
from rabit_torch.overlap.compile import watch_compilations
from rabit_torch.overlap.crossing_report import report_crossing
from rabit_torch.overlap.deferred import Crossing
from rabit_torch.parameter_state import ParameterState

__all__ = ["GradientReducer"]


class GradientReducer:
    """Called by the autograd thread (hooks) and by the trainer; never by both at once."""

    combines_steps = False  # of the ranks, which are equal, in place of gradients

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        *,
        optimizer: torch.optim.Optimizer,
        reduction: Reduction,
        strategy: Strategy | None = None,
    ) -> None:
        """strategy: of the ranks of `reduction.process_set`; a rank outside of it trains by itself."""
        self.engine = rabit.default_engine()
        self._optimizer = optimizer
        self._reduction = reduction
        self._unused: frozenset[int] | None = None  # on all ranks, once they have agreed in a step
        self.process_set = process_set = reduction.process_set
        if not process_set.included():
            strategy = None
        self._is_alone = strategy is None and (
            not process_set.included() or process_set.size() == 1
        )
        self._tasks = driver_of(self.engine)
        self._mode = OverlapMode()
        self._layout = GradientLayout(prefix_of_next(self.engine), process_set)
        for parameter, name in names.items():
            state = self._layout.add(parameter, name, reduction.group_of.get(parameter))
            state.priority = reduction.priorities.get(name)
        self._requests = GradientRequests(self.states, self.engine, reduction)
        meeting = Meeting(self.engine, process_set, strategy)
        self.method: Method | None = None  # of gradients, if there is a strategy
        if strategy is not None:
            self.method = Method(
                strategy,
                self.states,
                self._layout.prefix,
                optimizer=optimizer,
                process_set=process_set,
            )
        self.queue = RouteQueue(
            self._requests, self._tasks, None if self.method is None else self.method.progress
        )
        self._choice = RouteChoice(self._layout, self.queue, self._mode, self.method)
        self._choice.choose(self.states)
        meetings = Meetings(
            meeting, self._layout, self.method, _weak(self, GradientReducer._begin_anew)
        )
        self.arrivals = GradientArrivals(
            self._layout, self._requests, self.queue, self._mode, meetings
        )
        if not self._is_alone:
            self.arrivals.listen(self.states)
        self.set_backward_passes(reduction.backward_passes)
        self.set_overlap(reduction.overlap)

    @property
    def overlap(self) -> Overlap:
        return self._mode.name

    @property
    def backward_passes(self) -> int:
        """How many passes add up before a gradient is sent."""
        return self.arrivals.backward_passes

    @property
    def can_scatter(self) -> bool:
        """True if overlap="reduce-scatter" is possible: it takes no compression."""
        return self._reduction.can_scatter

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """The name of every parameter, without the prefix of this optimizer."""
        return self._layout.names

    @property
    def in_flight(self) -> dict[torch.Tensor, Any]:
        """The handle of every gradient on its way."""
        return self._layout.in_flight

    @property
    def passes_left(self) -> dict[torch.Tensor, int]:
        """How many backward passes each gradient still waits for."""
        return self._layout.passes_left

    @property
    def states(self) -> list[ParameterState]:
        """The state of every parameter, by index."""
        return self._layout.states

    @property
    def crossing(self) -> Crossing | None:
        """Where updates wait; None: updates do not leave step()."""
        return self._mode.crossing

    # --- set-up -----------------------------------------------------------------------------------

    def add_parameters(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes parameters that were added to the optimizer later on."""
        before = len(self.states)
        for parameter in parameters:
            if parameter not in self._layout:
                state = self._layout.add(parameter, f"parameter.{len(self.states)}", None)
                state.passes_left = self.backward_passes
        self._requests.forget()
        added = self.states[before:]
        if self.method is not None:
            self.method.add(added)
        self._choice.choose(added)
        self.arrivals.is_complete = False
        if not self._is_alone:
            self.arrivals.listen(added)
        if self.crossing is not None:
            self.crossing.start_recording()
            self._choice.travel_alone()

    def set_overlap(self, overlap: Overlap) -> None:
        """Between steps, on all ranks after the same one: what communication overlaps with."""
        if overlap == self.overlap:
            return
        if overlap == "reduce-scatter" and not self.can_scatter:
            raise InvalidArgument(
                "overlap='reduce-scatter' sends sums of parts, which compression does not cover; use "
                "overlap='next-forward' with compression, or Compression.none"
            )
        self._mode.enter(overlap)
        self._requests.has_urgent = overlap in CROSSING
        if overlap in CROSSING and not self._is_alone:
            watch_compilations()
            self._mode.crossing = Crossing(self, self._optimizer)
            self._mode.crossing.start_recording()
        self._choice.travel_alone()

    def set_backward_passes(self, passes: int) -> None:
        """Sets how many passes add up before a gradient is sent."""
        self.arrivals.set_backward_passes(passes)
        self.next_step()

    def _begin_anew(self) -> None:
        if self.crossing is not None:
            self.crossing.flush()
            self.crossing.start_recording()
        self._choice.travel_alone()

    def _plan(self) -> None:
        """Between steps, on all ranks after the same one.  Blocks until every rank has called it."""
        self._layout.is_stale = False
        if self._is_alone:
            return
        crossing = self.crossing
        if crossing is not None and crossing.is_recording:
            self._layout.take_order(crossing.stop_recording())
            report_crossing(self.states, self._layout.prefix, self.engine, self.overlap)
        self._choice.pack()

    # --- waiting ----------------------------------------------------------------------------------

    def is_on_its_way(self, state: ParameterState) -> bool:
        """False when a sent gradient still waits for `send_all`, here or on other ranks."""
        if self._reduction.find_unused and self._unused is None:
            return False
        return state.route.handle is not None

    def send_all(self) -> None:
        """Sends what no backward pass has sent: zeros for parameters that took no part."""
        if self._is_alone:
            return
        self.arrivals.meet()
        if self.crossing is not None:
            self.crossing.flush()  # of what this step did not read
        missing = self.arrivals.missing()
        if self._reduction.find_unused and self._unused is None:
            self._unused = self._layout.unused_everywhere(missing)
        unused = self._unused or ()
        self.arrivals.note_absent(missing)
        self.arrivals.send_missing(s for s in missing if s.index not in unused)
        for route in self.queue.two_stage:
            route.wait_for_indices()
        self._tasks.pump()  # The rows leave here, at the same place on all ranks.

    def synchronize(self) -> None:
        """Sends what no backward pass has sent, then waits for all; gradients are in `.grad`."""
        if self._is_alone or self.arrivals.is_complete:
            return
        self.send_all()
        self.queue.replace_refused()  # First: what is revealed is waited for one by one.
        if self.crossing is not None:
            self.crossing.reveal([state for state in self.states if state.is_sent])
        self.queue.settle(self.states)

    def discard(self) -> None:
        """Waits for what is sent and not committed, so that the gradients may be cleared."""
        if self._is_alone:
            return
        self.queue.flush()
        sent, crossing = (
            [state for state in self._layout.states if state.grad is not None],
            self.crossing,
        )
        if crossing is not None:
            sent = [state for state in sent if not state.is_committed]
            crossing.reveal(sent)
            crossing.next_clip = crossing.next_max_value = None
        self.queue.settle(sent)
        self._layout.waiting.clear()
        if self.method is not None:
            self.method.undo()
        self.next_step()

    # --- the step of the optimizer ----------------------------------------------------------------

    def before_step(self) -> None:
        """Waits for the gradients, unless their updates wait for reads."""
        if self.crossing is None or self.crossing.is_recording:
            self.synchronize()
        else:
            self.send_all()

    def step(self, local_step: Callable[[], Any]) -> Any:
        """Takes `local_step`, the optimizer's own; None where updates wait, which are committed."""
        if self.crossing is not None and not self.crossing.is_recording:
            self.crossing.commit()
            self._optimizer._opt_called = True  # type: ignore[attr-defined]  # for schedulers
            return None
        if self.method is not None:
            self.method.before_step()
        return local_step()

    def step_done(self) -> None:
        """The optimizer has taken its step: counts it, and starts the next."""
        if self.method is not None:
            self.method.after_step()
        self.engine.end_step(self.process_set.size() == self.engine.size)
        self.next_step()
        if self._layout.is_stale:
            self._plan()

    def next_step(self) -> None:
        """Makes every parameter wait for a new gradient."""
        self._unused = None
        self.arrivals.next_step()

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Inside, backward passes send nothing and do not count."""
        return self.arrivals.paused()


def _weak(
    reducer: GradientReducer, method: Callable[[GradientReducer], None]
) -> Callable[[], None]:
    """What its parts call: they must not keep the reducer, which ends with its last user."""
    reference = weakref.ref(reducer)

    def call() -> None:
        alive = reference()
        if alive is not None:
            method(alive)

    return call
