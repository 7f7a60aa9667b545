"""Updates that run while the next step computes: parameters have them one step late.

Source: Ren et al., ZeRO-Offload (2021), delayed parameter update.
"""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

import rabit
from rabit import InvalidArgument
from rabit_torch.sharding.copied import CopiedPart
from rabit_torch.sharding.states import LATE, Place, States

__all__ = ["DelayedStates", "check_delay"]


def check_delay(after: int | None, stage: str, offload: str | None) -> None:
    """Raises InvalidArgument for what cannot be delayed; warns of what a delay does."""
    if after is None:
        return
    if isinstance(after, bool) or not isinstance(after, int) or after < 0:
        raise InvalidArgument(f"delay_after is {after!r}; expected the number of steps that are updated at once")
    if offload is None or stage == "parameters":
        raise InvalidArgument(
            f"delay_after={after} has an update run on the host while the next step computes, and this one has "
            f"shard={stage!r} and offload={offload!r}. Use shard='gradients' with offload='cpu' or 'disk:PATH', or "
            "leave it out"
        )
    if rabit.rank() == 0:
        warnings.warn(
            f"delay_after={after}: after {after} steps, an update is that of the gradients of the step before. A "
            "learning rate that is stable without may diverge: begin with half of it",
            stacklevel=6,  # of DistributedOptimizer's caller
        )


class DelayedStates:
    """The state of `optimizer`, updated by a thread from the step after the first `after` on.

    states: makes what has it, of an optimizer and its places. It keeps a copy of this rank's part of the parameters and
    of the gradients. One thread at a time. An update that fails leaves half of it, and is refused until every place has
    been set.
    """

    is_late = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        places: Sequence[Place],
        states: Callable[[torch.optim.Optimizer, Sequence[Place]], States],
        after: int,
    ) -> None:
        self._optimizer = optimizer
        self._after = after
        self._steps = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rabit delayed update")
        self._update: Future[None] | None = None  # that runs, or has ended unseen
        self._failure: BaseException | None = None  # of the last update
        self._halves: set[Place] = set()  # whose state may have half of an update
        self._has_late = False  # values that are not those of the parameters yet
        # The thread has an optimizer of its own: a scheduler changes the options of the next step meanwhile.
        own: Any = object.__new__(type(optimizer))
        own.__dict__.update(optimizer.__dict__)
        own.__dict__.pop("step", None)  # Of a scheduler, which counts the steps of the program's.
        own.state = defaultdict(dict)
        self._own = own
        self._late = {values: CopiedPart(values) for values in dict.fromkeys(place.values for place in places)}
        self._twins = {place: self._twin(place) for place in places}
        own.param_groups = [
            {**group, "params": [twin.slice for twin in self._twins.values() if twin.group == number]}
            for number, group in enumerate(optimizer.param_groups)
        ]
        self._states = states(own, list(self._twins.values()))
        for place, twin in self._twins.items():
            if place.has_master:
                place.slice.data = twin.slice.data

    def step(self) -> None:
        """Publishes the update of the step before, which `refusal` has found whole, and starts that of this one."""
        if self._has_late:
            self.publish()
        else:  # Updates are not late yet, or no more: what broadcast_parameters has written, say, is taken.
            for late in self._late.values():
                late.refresh()
        for place, twin in self._twins.items():
            gradient = place.slice.grad  # Its memory is that of the next step's, too.
            twin.slice.grad = None if gradient is None else gradient.detach().clone()
        for group, given in zip(self._own.param_groups, self._optimizer.param_groups, strict=True):
            options = {key: value for key, value in given.items() if key != "params"}
            group.update(copy.deepcopy(options))  # A learning rate may be a tensor.
        self._steps += 1
        self._has_late = True
        self._update = self._thread.submit(self._run)
        # The others wait for this rank's part: of an update that has failed they learn in the next step, with it.
        if self._steps <= self._after and self._update.exception() is None:
            self.publish()

    def publish(self) -> None:
        if self._has_late:
            for late in self._late.values():
                late.publish()
        self._has_late = False

    def refusal(self) -> InvalidArgument | None:
        if (half := self._half()) is not None:
            return half
        written = [name for late in self._late.values() if self._has_late and (name := late.written())]
        return None if not written else InvalidArgument(
            f"{written[0]!r} on rank {rabit.rank()} was written after step {self._steps}, whose update was under way "
            f"(delay_after={self._after}) and would undo that. Call optimizer.apply_late() on every rank before "
            "writing into parameters"
        )

    def get(self, place: Place) -> dict[str, Any]:
        """The state after the update that runs, with the values that it gives. Waits for it."""
        if (half := self._half()) is not None:
            raise half
        twin = self._twins[place]
        state = self._states.get(twin)
        return {**state, LATE: twin.values.elements(twin.place).clone()} if self._has_late else state

    def set(self, place: Place, state: dict[str, Any]) -> None:
        """Replaces it; without values that are late, those of the parameter are taken."""
        self._wait()
        twin, own = self._twins[place], dict(state)
        twin.values.refresh()
        late = own.pop(LATE, None)
        self._has_late = late is not None
        if late is not None:
            self._steps = max(self._steps, self._after)
        twin.values.elements(twin.place).copy_(place.values.elements(place.place) if late is None else late)
        self._states.set(twin, own)
        self._halves.discard(place)

    def close(self) -> None:
        """Removes the files, and ends the thread. Raises the error of the last update if nothing has raised it."""
        self._thread.shutdown()
        self._states.close()
        update, self._update = self._update, None
        if update is not None:
            update.result()

    def _run(self) -> None:
        with torch.no_grad():
            self._states.step()

    def _wait(self) -> None:
        """Blocks until no update runs."""
        if self._update is not None:
            self._failure = self._update.exception()
            self._update = None
            if self._failure is not None:
                self._halves.update(self._twins)

    def _half(self) -> InvalidArgument | None:
        """Why the state cannot be used: it has half of an update. Blocks until no update runs."""
        self._wait()
        if not self._halves:
            return None
        half = InvalidArgument(
            f"delay_after={self._after}: the update of step {self._steps} on rank {rabit.rank()} has failed "
            f"({type(self._failure).__name__}: {self._failure}), and the optimizer's state has half of it. Load "
            "the last checkpoint on every rank, into the model and the optimizer, or start again from it"
        )
        half.__cause__ = self._failure
        return half

    def _twin(self, place: Place) -> Place:
        late = self._late[place.values]
        return Place(place.parameter, place.name, place.group, place.storage, place.place, late)
