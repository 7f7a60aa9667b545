"""Tasks: coroutines over collectives, and the Driver that continues with them.

A method is an `async` function, and `await` is the only place where ranks meet.  There is no event
loop and no thread: whoever waits for a task, and every hook of the training, pumps, which means that
each task whose operation has finished runs to its next `await`.

Everything that is open is pumped, never only what is waited for.  Two ranks may wait for their tasks
in opposite orders; if each continued with its own alone, each would wait for a second round that the
other has not begun.
"""

from __future__ import annotations

import threading
import time
import types
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rabit.engine.handle import Handle
from rabit.engine.request import Request
from rabit.errors import Internal, InvalidArgument, RabitError, TimedOut

from .reused_memory import ReusedMemory

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["Driver", "Gate", "Moment", "Operation", "Task", "driver_of", "finished", "suspend"]

_WAIT_S = 1.0  # at a time, between two looks at what else could continue

# A moment of training: steps that have ended, and 1 once this step's gradients are complete.
Moment = tuple[int, int]


@dataclass(frozen=True)
class Operation:
    """What a task waits for most: requests to the engine, or handles of such that are in flight.

    finish: makes of their finished handles what `await` gives.
    """

    requests: Sequence[Request]
    finish: Callable[[Sequence[Handle]], Any]
    handles: Sequence[Handle] = ()


@types.coroutine
def suspend(wish: Operation | Task | Moment | Gate) -> Generator[Any, Any, Any]:
    """Gives the Driver what the task waits for; continues with what came of it."""
    return (yield wish)


async def finished(handles: Sequence[Handle]) -> None:
    """Continues when operations that were started by other means have finished."""
    if handles:
        await suspend(Operation((), lambda _: None, handles))


class Gate:
    """Holds tasks until it is opened."""

    def __init__(self) -> None:
        self.is_open = False

    async def passed(self) -> None:
        """Continues when the gate is open."""
        if not self.is_open:
            await suspend(self)


class Task:
    """A coroutine under way; it can be waited for like a Handle.  Called by the thread that pumps."""

    def __init__(self, driver: Driver, name: str, priority: int) -> None:
        self.name = name
        self.priority = priority
        self.result: Any = None
        self.error: Exception | None = None
        self.is_done = False
        self.waits_for: Operation | Task | Moment | Gate | None = None
        self.handles: Sequence[Handle] = ()  # of the operation, once it has been submitted
        self._driver = driver
        self._children = 0
        self._is_awaited = False
        self._is_child = False

    def __repr__(self) -> str:
        return f"<rabit.Task {self.name!r}, {'done' if self.is_done else 'in flight'}>"

    def __await__(self) -> Generator[Any, Any, Any]:
        self._is_awaited = True
        if not self.is_done:
            yield self
        return self.outcome()

    def outcome(self) -> Any:
        """What a finished task returned; raises what it raised."""
        self._is_awaited = True
        if self.error is not None:
            raise self.error
        return self.result

    def child_name(self) -> str:
        """A name for a task that this one starts; equal on ranks that start the same ones."""
        self._children += 1
        return f"{self.name}/{self._children}"

    @property
    def is_lost(self) -> bool:
        """True if a task started it, it has failed, and nobody has seen the error."""
        return self.error is not None and self._is_child and not self._is_awaited

    def sleeps(self, now: Moment) -> bool:
        """True if it, or a task that it waits for, continues only at a later moment."""
        if isinstance(self.waits_for, Task):
            return self.waits_for.sleeps(now)
        if isinstance(self.waits_for, Gate):
            return not self.waits_for.is_open
        return isinstance(self.waits_for, tuple) and self.waits_for > now

    def done(self) -> bool:
        """True when `wait` would not block.  Continues with whatever can continue."""
        self._driver.pump()
        return self.is_done

    def wait_news(self, seen: int, timeout: float) -> int:
        """Blocks until operations may have finished, as Handle.wait_news; for threads that only look.

        Where it waits for no operation, another thread continues with it: it looks again soon.
        """
        if self.handles:
            return self.handles[0].wait_news(seen, timeout)
        threading.Event().wait(min(timeout, 0.001))
        return seen

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the task has finished; returns its result, or raises what went wrong."""
        self._driver.wait([self], timeout)
        if not self.is_done:
            raise InvalidArgument(
                f"task '{self.name}' on rank {self._driver.engine.rank} sleeps until {self.waits_for} "
                f"(steps, phase) and it is {self._driver.now}: it cannot be waited for before. End "
                "the steps first."
            )
        return self.outcome()


class Driver:
    """Continues with the tasks of one rank.  Thread-safe; tasks run in the thread that pumps."""

    def __init__(self, engine: Engine, name: str) -> None:
        """name: of the optimizer; the names of its tasks begin with it."""
        self.engine = engine
        self.name = name
        self.now: Moment = (0, 0)
        self.memory = ReusedMemory()
        self.open: dict[
            str, tuple[Task, Coroutine[Any, Any, Any]]
        ] = {}  # what has not finished, by name
        self._queued: list[Task] = []
        self._lost: list[Task] = []
        self._is_pumping = False
        self._lock = threading.RLock()

    @property
    def open_tasks(self) -> list[Task]:
        """What has not finished, in the order of the starts."""
        return [task for task, _ in self.open.values()]

    def spawn(
        self,
        body: Callable[[Task], Coroutine[Any, Any, Any]],
        name: str,
        priority: int = 0,
        *,
        is_child: bool = False,
    ) -> Task:
        """Starts a task; it runs to its first `await` at once, and its operation leaves with `flush`.

        name: equal on all ranks; of a task that sleeps still, a number is appended.
        is_child: a task starts it, and may forget it: its error is raised by the next wait then.
        """
        with self._lock:
            name = self._free_name(name)
            task = Task(self, name, priority)
            task._is_child = is_child
            self.open[name] = (task, body(task))
            self._advance(task)
        return task

    def _free_name(self, name: str) -> str:
        """Which tasks sleep is agreed, as moments are; which operations have finished is not."""
        number, found = 1, name
        while found in self.open:
            if not self.open[found][0].sleeps(self.now):
                raise InvalidArgument(
                    f"task '{found}' on rank {self.engine.rank} is started a second time while it is "
                    "in flight. Await it first."
                )
            number += 1
            found = f"{name}.{number}"
        return found

    def reach(self, moment: Moment) -> None:
        """It is `moment` now, on every rank at the same place of its program; sleepers continue."""
        self.now = moment
        self.pump()

    def flush(self) -> None:
        """Submits the operations of all tasks that have one to submit, in one call."""
        queued, self._queued = self._queued, []
        requests = [request for task in queued for request in _operation(task).requests]
        if not requests:
            return
        handles = self.engine.submit(requests)
        start = 0
        for task in queued:
            stop = start + len(_operation(task).requests)
            task.handles, start = handles[start:stop], stop

    def pump(self) -> bool:
        """Continues with every task that can; False if none could."""
        if not self.open:  # Every hook of the training asks.
            return False
        with self._lock:
            if self._is_pumping:  # A task asks whether another is done.
                return False
            self._is_pumping = True
            has_moved = False
            try:
                # The sum goes through all of them, not to the first.
                while sum(self._try(task) for task in self.open_tasks):
                    has_moved = True
                    self.flush()
                self.flush()
            finally:
                self._is_pumping = False
        return has_moved

    def wait(self, tasks: Iterable[Task], timeout: float | None = None) -> None:
        """Until each has finished or sleeps until a later moment; then raises the first error.

        timeout: seconds; None: the engine's own limits on operations end the wait.
        """
        waited = list(tasks)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:  # Else another thread may end what is left before it is looked at.
                self.pump()
                left = [awaited for awaited in waited if not awaited.is_done and not awaited.sleeps(self.now)]
                if not left:
                    break
                handles = [handle for task in self.open_tasks for handle in task.handles]
            if not handles:
                raise self._knot(left)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimedOut(
                    f"task '{left[0].name}' on rank {self.engine.rank} has not finished after "
                    f"{timeout:g} s. Look for the rank whose method takes another way."
                )
            self._wait_any(handles, deadline)
        self._raise_first(waited)

    def _wait_any(self, handles: Sequence[Handle], deadline: float | None) -> None:
        """Blocks until another one of `handles` has finished, or for a while; errors stay in them."""
        left = handles if len(handles) == 1 else [handle for handle in handles if not handle.done()]
        seconds = _WAIT_S
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline - time.monotonic()))
        try:
            if len(left) == 1:  # A caller that waits for one operation may do the engine's work.
                left[0].wait_done(seconds)
            elif left:
                self.engine.wait_any(left, seconds)
        except RabitError as error:
            if not isinstance(error, TimedOut) and not any(task.done() for task in left):
                raise

    def finish(self, timeout: float | None = None) -> None:
        """Waits for everything that does not sleep."""
        self.wait(self.open_tasks, timeout)

    def forget(self) -> None:
        """Ends what is open without an outcome: after an error, or when nothing sleeps for good."""
        for _, coroutine in list(self.open.values()):
            coroutine.close()
        self.open.clear()
        self._queued.clear()

    def _raise_first(self, waited: Sequence[Task]) -> None:
        lost, self._lost = [task for task in self._lost if task.is_lost], []
        for task in [*waited, *lost]:
            if task.is_done:
                task.outcome()

    def _try(self, task: Task) -> bool:
        """Continues with a task if what it waits for has come."""
        wish = task.waits_for
        if task.is_done:
            return False
        if isinstance(wish, Operation):
            return self._try_operation(task, wish)
        if isinstance(wish, Task):
            if wish.is_done:
                self._advance(task)
            return wish.is_done
        if wish is None:  # It is running, and asks whether another one is done.
            return False
        is_due = wish.is_open if isinstance(wish, Gate) else wish <= self.now
        if is_due:
            self._advance(task)
        return is_due

    def _try_operation(self, task: Task, operation: Operation) -> bool:
        handles = task.handles
        if not handles or not all(handle.done() for handle in handles):
            return False
        task.handles = ()
        try:
            for handle in handles:
                handle.wait()
            value = operation.finish(handles)
        except RabitError as error:
            self._advance(task, error=error)
        else:
            self._advance(task, value)
        return True

    def _advance(self, task: Task, value: Any = None, error: Exception | None = None) -> None:
        """Runs a task to its next `await`."""
        coroutine = self.open[task.name][1]
        task.waits_for = None
        try:
            wish = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            self._end(task, stop.value, None)
            return
        except Exception as failure:  # It belongs to whoever waits for the task.
            self._end(task, None, failure)
            return
        task.waits_for = wish
        if isinstance(wish, Operation) and wish.handles:
            task.handles = wish.handles
        elif isinstance(wish, Operation):
            self._queued.append(task)

    def _end(self, task: Task, result: Any, error: Exception | None) -> None:
        task.result, task.error, task.is_done = result, error, True
        del self.open[task.name]
        if task.is_lost:
            self._lost.append(task)

    def _knot(self, left: Sequence[Task]) -> Internal:
        names = ", ".join(f"'{task.name}' for {task.waits_for!r}" for task in left[:5])
        return Internal(
            f"rank {self.engine.rank}: tasks wait, and nothing is in flight that could end it: {names}. "
            "A method awaits a task that sleeps, or itself."
        )


_drivers: weakref.WeakKeyDictionary[Engine, Driver] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def driver_of(engine: Engine) -> Driver:
    """The driver of operations that belong to no optimizer; one for each engine."""
    with _making:
        found = _drivers.get(engine)
        if found is None:  # Which must not keep the engine alive.
            found = _drivers[engine] = Driver(weakref.proxy(engine), "")
        return found


def _operation(task: Task) -> Operation:
    assert isinstance(task.waits_for, Operation)
    return task.waits_for
