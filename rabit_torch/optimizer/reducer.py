"""GradientReducer: sends each gradient when it is complete and waits where the trainer needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, ProcessSet, ReduceOp
from rabit.framework import Meeting, Strategy, driver_of
from rabit_torch.optimizer.arrivals import GradientArrivals
from rabit_torch.optimizer.deliveries import Deliveries
from rabit_torch.optimizer.early_parts import agree_on_early_parts, watch_early_parts
from rabit_torch.optimizer.layout import GradientLayout, prefix_of_next
from rabit_torch.optimizer.meetings import Meetings
from rabit_torch.optimizer.method import Method
from rabit_torch.optimizer.mode import CROSSING, Overlap, OverlapMode
from rabit_torch.optimizer.row_sparse import choose_row_sparse
from rabit_torch.optimizer.sender import GradientSender
from rabit_torch.overlap.compile import watch_compilations
from rabit_torch.overlap.crossing_report import report_crossing
from rabit_torch.overlap.deferred import Crossing
from rabit_torch.parameter_state import ParameterState

__all__ = ["GradientReducer"]


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
        self.engine = rabit.default_engine()
        self._optimizer = optimizer
        self._find_unused = find_unused
        self._unused: frozenset[int] | None = None  # on all ranks, once they have agreed in a step
        self._process_set = process_set
        prefix = prefix_of_next(self.engine)
        if not process_set.included():
            strategy = None
        # A rank outside of the set trains by itself, as in one process.
        self._is_alone = not process_set.included() or (
            process_set.size() == 1 and strategy is None
        )
        self._tasks = driver_of(self.engine)
        self._mode = OverlapMode()
        self._layout = GradientLayout(prefix, process_set)
        for parameter, name in names.items():
            state = self._layout.add(parameter, name, group_of.get(parameter))
            state.priority = priorities.get(name)
        self._sender = GradientSender(
            self._layout.states,
            self.engine,
            compression=compression,
            op=op,
            predivide_factor=predivide_factor,
            process_set=process_set,
        )
        self._meetings = Meetings(Meeting(self.engine, process_set, strategy), self._layout, self._mode, self._sender)
        self.deliveries = Deliveries(self._sender, self._tasks)
        # Where ranks agree on what is unused, a rank that waited after backward() would keep the others
        # from agreeing.
        self.arrivals = GradientArrivals(
            self._layout,
            self._sender,
            self.deliveries,
            self._mode,
            self._meetings,
            sparse_as_dense=sparse_as_dense,
            waits_after_backward=not find_unused,
        )
        if not self._is_alone:
            self.arrivals.listen(self.states)
        choose_row_sparse(
            self.states, row_sparse, prefix, op, process_set, self._sender.is_compressed
        )
        if strategy is not None:
            self._sender.method = Method(
                strategy, self.states, prefix, optimizer=optimizer, process_set=process_set
            )
        if not self._is_alone:
            watch_early_parts(self._layout, self._sender, self.arrivals)
        self.set_backward_passes(backward_passes)
        self.set_overlap(overlap)

    @property
    def method(self) -> Method | None:
        """The gradient method, if there is one."""
        return self._sender.method

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
        return self._sender.can_scatter

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
        self._sender.forget_requests()
        added = self.states[before:]
        if not self._is_alone:
            self.arrivals.listen(added)
        if self.method is not None:
            self.method.add(added)
        if self.crossing is not None:
            self.crossing.start_recording()

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
        self._sender.set_urgency(overlap in CROSSING)
        if overlap in CROSSING and not self._is_alone:
            watch_compilations()
            self._mode.crossing = Crossing(self, self._optimizer)
            self._mode.crossing.start_recording()
            self._layout.is_stale = True

    def set_backward_passes(self, passes: int) -> None:
        """Sets how many passes add up before a gradient is sent."""
        self.arrivals.set_backward_passes(passes)
        self.next_step()

    def _plan(self) -> None:
        """Orders and packs the gradients.  Called between steps, on all ranks after the same one."""
        self._layout.is_stale = False
        if self._is_alone:
            return
        agree_on_early_parts(self._layout, self._process_set)
        crossing = self._mode.crossing
        if crossing is not None and crossing.is_recording:
            self._layout.take_order(crossing.stop_recording())
            self._sender.forget_requests()  # They hold the priorities.
            report_crossing(self.states, self._layout.prefix, self.engine, self.overlap)
        self._layout.unpack()
        if self._sender.is_compressed:
            return
        self._layout.pack(None if crossing is None else self.engine.config.partition_bytes)
        for pack in self._layout.packs:
            self._sender.prepare_pack(pack)

    # --- waiting ----------------------------------------------------------------------------------

    def is_on_its_way(self, state: ParameterState) -> bool:
        """False when a sent gradient still waits for `send_all`, here or on other ranks."""
        if state.in_pack or (self._find_unused and self._unused is None):
            return False
        return not self._layout.waits_for_group(state)

    def send_all(self) -> None:
        """Sends what no backward pass has sent: zeros for parameters that took no part."""
        if self._is_alone:
            return
        self._meetings.before_waits()
        if self.crossing is not None:
            self.crossing.flush()  # of what this step did not read
        missing = self.arrivals.missing()
        if self._find_unused and self._unused is None:
            self._unused = self._layout.unused_everywhere(missing)
        unused = self._unused or ()
        self.arrivals.note_absent(missing)
        self.arrivals.send_missing(s for s in missing if s.index not in unused)
        for state in self.states:
            if state.rows is not None:
                state.rows.wait_for_indices()
        self._tasks.pump()  # The rows leave here, at the same place on all ranks.

    def synchronize(self) -> None:
        """Sends what no backward pass has sent, then waits for all; gradients are in `.grad`."""
        self.send_all()
        self.deliveries.replace_refused()  # First: what is revealed is waited for one by one.
        if self.crossing is not None:
            self.crossing.reveal([state for state in self.states if state.is_sent])
        self.deliveries.settle(self.states)

    def discard(self) -> None:
        """Waits for what is sent and not committed, so that the gradients may be cleared."""
        if self._is_alone:
            return
        self.arrivals.flush()
        sent = [state for state in self.states if state.is_sent and not state.is_committed]
        if self.crossing is not None:
            self.crossing.reveal(sent)
            self.crossing.next_clip = self.crossing.next_max_value = None
        self.deliveries.settle(sent)
        self._layout.leave_groups()
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
        self.engine.end_step()
        self.next_step()
        if self._layout.is_stale or self._mode.is_recording:
            self._plan()

    def next_step(self) -> None:
        """Makes every parameter wait for a new gradient."""
        self._unused = None
        self.deliveries.zeros.clear()
        self.arrivals.next_step()

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Inside, backward passes send nothing and do not count."""
        return self.arrivals.paused()
