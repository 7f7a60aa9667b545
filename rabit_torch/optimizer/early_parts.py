"""EarlyParts: tables whose rows travel may be tied; the dense part of their gradient leaves early."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Protocol

from rabit import ProcessSet
from rabit_torch.optimizer.layout import GradientLayout
from rabit_torch.optimizer.missing import agree_on_any
from rabit_torch.optimizer.sender import GradientSender
from rabit_torch.overlap.compile import watch_compilations
from rabit_torch.overlap.tied import EarlyPart
from rabit_torch.parameter_state import ParameterState

__all__ = ["agree_on_early_parts", "watch_early_parts"]


class Arrivals(Protocol):
    """Who knows how far a backward pass is; see GradientArrivals."""

    def may_leave_early(self, state: ParameterState) -> bool | None:
        """Whether a part of a gradient leaves at once; None: this is not the pass that sends."""


def watch_early_parts(layout: GradientLayout, sender: GradientSender, arrivals: Arrivals) -> None:
    """Gives every table whose rows travel an EarlyPart.  Parameters may outlive `arrivals`."""
    reference = weakref.ref(arrivals)

    def make(state: ParameterState) -> EarlyPart:
        def may_send() -> bool | None:
            alive = reference()
            return None if alive is None else alive.may_leave_early(state)

        part = EarlyPart(state.parameter, functools.partial(sender.send_early, state), may_send)
        weakref.finalize(arrivals, _stop, weakref.ref(part)).atexit = False
        return part

    for state in layout.states:
        if state.rows is not None:
            state.early = make(state)
            watch_compilations()


def _stop(reference: Callable[[], EarlyPart | None]) -> None:
    part = reference()
    if part is not None:
        part.stop()


def agree_on_early_parts(layout: GradientLayout, process_set: ProcessSet) -> None:
    """After the first step, on all ranks: which tables are looked up and multiplied by.  Blocks."""
    parts = [state.early for state in layout.states if state.early is not None]
    waiting = [part for part in parts if not part.is_decided]
    if not waiting:
        return
    flags = [part.is_looked_up and part.is_multiplied for part in waiting]
    agreed = agree_on_any(flags, f"{layout.prefix}.tied", process_set)
    for number, part in enumerate(waiting):
        part.is_decided = True
        part.is_agreed = number in agreed
    for state in layout.states:
        if state.early is not None and not state.early.is_agreed:
            state.early.stop()
            state.early = None
