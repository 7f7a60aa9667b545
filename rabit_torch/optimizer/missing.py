"""Gradients that are missing on some ranks: what is sent for them, and when, and who misses which."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import rabit
from rabit import Kind, ProcessSet, ReduceOp, Request
from rabit.framework import printable
from rabit_torch.parameter_state import ParameterState
from rabit_torch.tensors import view

__all__ = ["MissingGradients", "agree_on_any", "agree_on_largest", "no_gradient"]

_LIMIT_S = 10.0  # where stalls are not reported
_POLL_S = 0.0005
_NAMES_MAX = 5


def no_gradient(state: ParameterState) -> torch.Tensor:
    """A gradient of zeros for a parameter that took no part; sparse where earlier ones were."""
    parameter, dtype = state.parameter.detach(), state.gradient_dtype
    if not state.route.is_sparse:
        return torch.zeros_like(parameter, dtype=dtype)
    return torch.sparse_coo_tensor(
        parameter.new_zeros(1, 0, dtype=torch.int64),
        parameter.new_zeros(0, *parameter.shape[1:], dtype=dtype),
        parameter.shape,
        check_invariants=False,
    )


def agree_on_any(flags: list[bool], name: str, process_set: ProcessSet) -> frozenset[int]:
    """The positions of the flags that some rank of the set has set.  Blocks."""
    largest = agree_on_largest(flags, name, process_set)
    return frozenset(index for index, value in enumerate(largest) if value)


def agree_on_largest(values: Sequence[int], name: str, process_set: ProcessSet) -> list[int]:
    """The largest value of any rank of the set, place by place; values: 0 to 255.  Blocks."""
    engine = rabit.default_engine()
    found = torch.tensor(values, dtype=torch.uint8)
    memory = view(found, name)
    request = Request(
        kind=Kind.ALLREDUCE,
        name=name,
        input=memory,
        output=memory,
        op=ReduceOp.MAX,
        priority=(1 << 31) - 1,
        group=process_set.group_on(engine),
    )
    engine.submit([request])[0].wait()
    return [int(value) for value in found.tolist()]


class MissingGradients:
    """Decides whether zeros leave before step(): on one rank, after each pass that has sent something.

    A backward pass returns when what it has sent is reduced, and zeros leave at step(), since a later pass
    could compute what this one has not.  Where two ranks use different parameters, each waits for
    a gradient that the other one would send at step().  A rank that has waited so for as long as a stall takes
    sends its zeros at once, in later steps without the wait.
    """

    def __init__(self) -> None:
        self.has_several = (
            False  # some step had more than one backward pass that has sent something
        )
        self._ranks_differ = False
        self.left: set[ParameterState] = set()  # zeros are sent for these before step(), in this step

    def note_left(self, absent: list[ParameterState]) -> None:
        """Zeros are sent for these before step()."""
        self.left.update(absent)

    def has_left(self, state: ParameterState) -> bool:
        """True where zeros have been sent for it in this step, before step()."""
        return state in self.left

    def leave_now(self, sent: Callable[[], list[Any]], absent: list[ParameterState]) -> bool:
        """Whether the zeros for `absent` leave at the end of this backward pass, the first of its step.

        May block until what `sent` gives has finished, for as long as a stall takes.
        """
        if self.has_several:
            return False
        if not self._ranks_differ:
            limit = rabit.default_engine().config.stall_warning or _LIMIT_S
            if _finish(sent(), limit):
                return False
            self._ranks_differ = True
            warnings.warn(_text(limit, [state.name for state in absent]), stacklevel=2)
        self.note_left(absent)
        return True


def _finish(handles: list[Any], limit: float) -> bool:
    """Waits until all have finished, well or not; False after `limit` seconds."""
    deadline = time.monotonic() + limit
    for handle in handles:
        if isinstance(handle, rabit.Handle):
            with contextlib.suppress(rabit.RabitError):  # who waits for the gradient raises it
                handle.wait_done(max(0.0, deadline - time.monotonic()))
        while not handle.done():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
    return True


def _text(waited: float, absent: list[str]) -> str:
    names = ", ".join(f"'{printable(name)}'" for name in absent[:_NAMES_MAX])
    if len(absent) > _NAMES_MAX:
        names += f" and {len(absent) - _NAMES_MAX} more"
    return (
        f"backward() on rank {rabit.rank()} has waited {waited:g} s for other ranks, and has not "
        f"computed {names} itself: ranks seem to use different parameters. Gradients of zero are "
        "sent for what a rank has not used, from now on when backward() ends. With "
        "find_unused_parameters=True nobody waits, and what no rank has used is not updated."
    )
