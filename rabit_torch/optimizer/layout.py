"""GradientLayout: the gradients of an optimizer, their order, and which of them travel together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import rabit
from rabit import ProcessSet
from rabit_torch.optimizer.missing import agree_on_any, agree_on_largest
from rabit_torch.optimizer.packs import Pack, Packed, make_packs
from rabit_torch.parameter_state import ParameterState

__all__ = ["GradientLayout", "prefix_of_next"]

_PASSES_MAX = 255  # of one step that are told apart


def prefix_of_next(engine: rabit.Engine) -> str:
    """The prefix of the gradients of one more optimizer.

    Optimizers are made in the same order on every rank, so two of them on one model (a GAN) never use
    one name for two things.
    """
    return engine.next_name("gradient")


class GradientLayout:
    """Equal on all ranks of `process_set`.

    prefix: of all names; it tells the optimizers of one model apart.
    """

    def __init__(self, prefix: str, process_set: ProcessSet) -> None:
        self.prefix = prefix
        self.states: list[ParameterState] = []  # of every parameter, by index
        # The first step sends every gradient by its name, so that ranks whose models differ are told
        # where.  Then small ones travel in packs.
        self.packs: list[Pack] = []
        self.is_stale = True  # parameters or their order have changed since the packs were made
        self._process_set = process_set
        self._state_of: dict[torch.Tensor, ParameterState] = {}
        self._apart: set[int] = set()  # the indices of those that do not pack
        self._group_sizes: Counter[int] = Counter()
        self.waiting: dict[
            int, list[ParameterState]
        ] = {}  # by group, of those that are not complete

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return parameter in self._state_of

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """The name of every parameter, without the prefix."""
        return {p: state.name[len(self.prefix) + 1 :] for p, state in self._state_of.items()}

    @property
    def in_flight(self) -> dict[torch.Tensor, Any]:
        """The handle of every gradient on its way."""
        found = {p: state.route.handle for p, state in self._state_of.items()}
        return {p: handle for p, handle in found.items() if handle is not None}

    @property
    def passes_left(self) -> dict[torch.Tensor, int]:
        """How many backward passes each gradient still waits for."""
        return {p: state.passes_left for p, state in self._state_of.items()}

    def add(self, parameter: torch.Tensor, name: str, group: int | None) -> ParameterState:
        """Takes a parameter; those of one group travel together."""
        state = ParameterState(parameter, f"{self.prefix}.{name}", len(self.states), group)
        self._state_of[parameter] = state
        self.states.append(state)
        self.is_stale = True
        if group is not None:
            self._group_sizes[group] += 1
        return state

    def take_order(self, order: tuple[list[int], list[int]]) -> None:
        """Every rank takes the order of first use on the first rank; packs depend on it.  Blocks.

        order: the indices of all parameters, and those of them that were not seen in use.  These are
        updated inside step(), so a pack must not hold them.
        """
        root = self._process_set.ranks[0] if self._process_set.ranks else 0
        name = f"{self.prefix}.order_of_use"
        agreed, unseen = rabit.broadcast_object(order, root, name, self._process_set)
        for place, index in enumerate(agreed):
            self.states[index].place = place
        self._apart = set(unseen)

    def unpack(self) -> None:
        """Every gradient travels by itself."""
        self.packs = []
        for state in self.states:
            if isinstance(state.route, Packed):
                state.route = state.route.alone

    def pack(
        self, make: Callable[[list[ParameterState]], Pack], span_bytes: int | None = None
    ) -> None:
        """Makes the packs.  Blocks until every rank has called it.  make: makes one; span_bytes: see make_packs."""
        self._agree_on_passes()
        self.packs = make_packs(self.states, self._apart, make, span_bytes)

    def _agree_on_passes(self) -> None:
        """On all ranks alike: which gradients wait for no other, and in which backward pass of a step the others come.

        A pack whose members do not all arrive in one pass would have to leave without some of them.
        """
        absent = [state.was_absent or not state.parameter.requires_grad for state in self.states]
        passes = [min(state.arrived_in, _PASSES_MAX) for state in self.states]
        numbers = [*absent, *passes, *(_PASSES_MAX - number for number in passes)]
        largest = agree_on_largest(numbers, f"{self.prefix}.absent", self._process_set)
        count = len(self.states)
        for state in self.states:
            is_absent, last, before_last = largest[state.index :: count]
            is_same = last + before_last == _PASSES_MAX  # on every rank
            state.arrived_in = last
            if is_absent or not is_same:
                self._apart.add(state.index)
        # A group leaves when all that can be expected of it has arrived; a late one leaves when the pass has ended.
        expected = (
            s.group for s, is_absent in zip(self.states, largest, strict=False) if not is_absent
        )
        self._group_sizes = Counter(group for group in expected if group is not None)

    def unused_everywhere(self, missing: list[ParameterState]) -> frozenset[int]:
        """The indices of the parameters that have no gradient on any rank.  Blocks.

        missing: those that no backward pass of this rank has sent.
        """
        used = [True] * len(self.states)
        for state in missing:
            used[state.index] = state.parameter.grad is not None
        name = f"{self.prefix}.used"
        return frozenset(range(len(used))) - agree_on_any(used, name, self._process_set)

    # --- groups -----------------------------------------------------------------------------------

    def join_group(self, state: ParameterState) -> list[ParameterState]:
        """A gradient of a group has arrived: the whole group if it was the last of it, or else none."""
        assert state.group is not None
        waiting = self.waiting.setdefault(state.group, [])
        waiting.append(state)
        if len(waiting) < self._group_sizes[state.group]:
            return []
        return self.waiting.pop(state.group)

    def leave_groups(self) -> list[ParameterState]:
        """Those that wait for others of their group, which wait no longer."""
        waiting = [state for group in self.waiting.values() for state in group]
        self.waiting.clear()
        return waiting
