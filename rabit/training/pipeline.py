"""Pipeline: runs a Strategy on the parameters of one rank."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rabit.engine.process_set import ProcessSet
from rabit.errors import InvalidArgument, Mismatch
from rabit.ops.objects import broadcast_object

from .meeting import Meeting, Standing
from .method_state import MethodState
from .ranks import Members, Ranks
from .state import Change, Undo
from .strategy import Slot, Strategy, takes_nothing
from .tasks import Driver, Task
from .wire import Operands, Wire

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["Pipeline"]


class Pipeline:
    """What stands between the hooks of a framework and a Strategy.

    A step is: `ready` for every slot, `before_step`, the optimizer's own step, `after_step`; or, if the
    step does not happen, `undo` in place of the last two.  Called by the thread that runs the backward
    pass or by the trainer, never by both at once.
    """

    def __init__(
        self,
        strategy: Strategy,
        slots: Sequence[Slot],
        *,
        engine: Engine,
        process_set: ProcessSet,
        name: str,
    ) -> None:
        """name: of the optimizer; equal on all ranks, and no other optimizer's."""
        if strategy.owner is not None:
            raise InvalidArgument(
                f"this {type(strategy).__name__} is the strategy of '{strategy.owner}' already, whose "
                f"state it holds. Make another for '{name}'."
            )
        strategy.owner = name
        if strategy.refuses_join:
            engine.refuses_join = f"'{name}' trains by {type(strategy).__name__}: {strategy.refuses_join}"
        self.strategy = strategy
        self.slots = list(slots)
        self._state = MethodState(strategy, self.slots)
        self._name = name
        self._process_set = process_set
        self._members = Members.of(process_set, engine)
        self._driver = Driver(engine, name)
        self._undo = Undo()
        self._gradients: dict[str, Task] = {}
        self._has_failed = False  # the last step; its caller knows
        self._fresh: list[Slot] = []  # whose state was made of values that may still be replaced
        self._plan(self.slots)
        if self._members.index == 0 and takes_nothing(strategy, self.slots):
            _warn_of_small(name, len(self.slots))

    @property
    def step(self) -> int:
        """How many steps have ended."""
        return self._driver.now[0]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters by name: methods combine what other ranks send by places, whatever it was there."""
        return {slot.name: slot.shape for slot in self.slots}

    def add(self, slots: Sequence[Slot]) -> None:
        """Takes further parameters, between steps, on all ranks alike."""
        self.slots += slots
        self._plan(slots)

    def wire(self, slot: Slot) -> Wire | None:
        """Not None: the gradient of `slot` is for the engine alone, and never `ready` here."""
        wire = self.strategy.wire(slot)
        if wire is not None:
            self._driver.engine.codec_id(wire.codec)  # Which refuses what it does not know.
        return wire

    def operands(self, slot: Slot) -> Operands:
        """What goes to the engine with the gradient of a slot whose `wire` has operands."""
        self._begin()
        self._undo.keep(slot)
        wire = self.strategy.wire(slot)
        assert wire is not None
        return wire.operands(slot, self.step)

    def ready(self, slot: Slot) -> Task:
        """The gradient of `slot` is complete: its exchange starts, and leaves with `flush`.

        When the task has finished, `slot.grad` is what the optimizer is to use.
        """
        self._begin()
        self._undo.keep(slot)
        task = self._spawn(
            lambda ranks: self.strategy.gradient(slot, ranks), slot.name, slot.priority, slot.lr
        )
        self._gradients[slot.name] = task
        report = self._driver.engine.reports.setdefault("methods", {"gradient_bytes": 0})
        report["gradient_bytes"] += math.prod(slot.shape) * slot.dtype.itemsize
        return task

    def flush(self) -> None:
        """Submits what has become ready, and continues with what can continue."""
        self._driver.pump()

    def gradients_complete(self) -> None:
        """Every gradient of this step has been `ready`."""
        self._begin()
        self._driver.reach((self.step, 1))

    def wait(self, slots: Iterable[Slot] | None = None) -> None:
        """Blocks until the gradients of `slots`, None: of all, are there."""
        if slots is None:
            tasks = list(self._gradients.values())
        else:
            tasks = [self._gradients[s.name] for s in slots if s.name in self._gradients]
        self._wait_for(tasks)

    def before_step(self) -> None:
        """Waits for the gradients and for what the strategy does before the update."""
        self.gradients_complete()
        self.wait()
        self._wait_for([self._spawn(self.strategy.before_step, "before.step")])

    def after_step(self) -> None:
        """The optimizer has stepped: what the strategy does then, up to where it sleeps."""
        self._undo.commit()
        self._gradients.clear()
        self._reach(self.step + 1)
        self._wait_for([self._spawn(self.strategy.after_step, "after.step")])
        self._has_failed = False

    def meet_if_due(self, meeting: Meeting) -> None:
        """Before gradients leave, where all ranks do so in one order: `begin_meeting` and `end_meeting`."""
        self.begin_meeting(meeting)
        if meeting.is_open:
            self.end_meeting(meeting)

    def begin_meeting(self, meeting: Meeting) -> None:
        """Before gradients leave: compares the strategy with that of the other ranks, if it is time to.

        Blocks after a join, when what they send depends on the others.
        """
        if meeting.begin(self.step, shapes=self.shapes):
            self.end_meeting(meeting)

    def end_meeting(self, meeting: Meeting) -> Standing:
        """Before this rank waits for what has left: continues as the rank that has taken most steps, while others had
        joined, from its step, and from the part of its state that is equal on all ranks.

        Raises Mismatch on all ranks if their strategies or shapes differ.  Blocks.
        """
        try:
            standing = meeting.end()
        except Mismatch:  # What is under way has no end: who closes would wait for it.
            self._has_failed = True
            self._driver.forget()
            self._gradients.clear()
            raise
        if standing.steps > self.step:
            self._reach(standing.steps)
        if standing.have_parted:
            self._follow(standing.leader)
        return standing

    def _follow(self, leader: int) -> None:
        engine, mine = self._driver.engine, self._state.by_scope()
        name = f"{self._name}.replicated"
        theirs = broadcast_object(
            mine["replicated"], leader, name, self._process_set, engine=engine
        )
        if engine.rank != leader:
            self._state.put({**mine["local"], **theirs})
            self._fresh = []

    def _reach(self, step: int) -> None:
        now = (step, 0)
        sleepers = [task for task in self._driver.open_tasks if task.sleeps(self._driver.now)]
        woken = [task for task in sleepers if not task.sleeps(now)]
        self._driver.reach(now)
        # What is due now ends now on every rank: parameters that it changes must not meet the next
        # forward pass on one rank and the one after it on another.
        self._wait_for(woken)

    def undo(self) -> None:
        """The step does not happen: waits for what is under way, and takes its traces back."""
        self.gradients_complete()
        try:
            self.wait()
        finally:
            self._undo.undo()
            self._gradients.clear()
            self._driver.now = (self.step, 0)

    @property
    def ends_together(self) -> bool:
        """True if `finish` takes the other ranks."""
        return type(self.strategy).finish is not Strategy.finish

    def finish(self) -> None:
        """Brings in what is under way: before saving and resizing; on all ranks."""
        self._driver.wait([self._spawn(self.strategy.finish, "finish")])
        self._driver.finish()

    def close(self) -> None:
        """Finishes before the engine closes, unless the last step has failed: what it left would raise again."""
        if not self._has_failed:
            self.finish()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes: the numbers of steps and of ranks, and values by path.

        "replicated" is equal on all ranks; "local" is this rank's own, and saved by each.  On all
        ranks at the same step.
        """
        self.finish()
        return {"step": self.step, "ranks": len(self._members.ranks), **self._state.by_scope()}

    def load_state_dict(self, saved: Mapping[str, Any], change: Change | None = None) -> None:
        """Continues from what `state_dict` gave: the values are the same to the last bit.

        change: how the ranks differ from those that saved it, whose parts are divided again then; None: not
        at all, and other numbers of ranks are refused where they have parts of their own.
        """
        self._state.load(saved, len(self._members.ranks), change)
        self._fresh = []
        self._driver.now = (int(saved["step"]), 0)

    def _wait_for(self, tasks: Sequence[Task]) -> None:
        try:
            self._driver.wait(tasks)
        except Exception:
            self._has_failed = True
            raise

    def _plan(self, slots: Sequence[Slot]) -> None:
        self._fresh += [slot for slot in slots if slot.state is None]
        self.strategy.plan(self.slots)

    def _begin(self) -> None:
        """The first gradient of a step is there: the parameters have their values.

        Between the making of an optimizer and its first step, programs broadcast parameters or load
        them.  What a method remembers of them has to be of these, or ranks continue from different ones.
        """
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        for slot in fresh:
            slot.state = None
        self.strategy.plan(self.slots)

    def _spawn(
        self,
        body: Callable[[Ranks], Coroutine[Any, Any, Any]],
        name: str,
        priority: int = 0,
        unit: float = 1.0,
    ) -> Task:
        def run(task: Task) -> Coroutine[Any, Any, Any]:
            return body(Ranks(self._driver, task, self._members, unit))

        return self._driver.spawn(run, f"{self._name}.{name}", priority)


def _warn_of_small(name: str, count: int) -> None:
    warnings.warn(
        f"the strategy compresses nothing: each of the {count} parameters of '{name}' is a vector or small, and goes "
        "as a plain mean. Set small=0 in its text, as in 'topk:ratio=0.01,small=0', or pass "
        "Bypass(exchange, below_bytes=0).",
        stacklevel=5,
    )
