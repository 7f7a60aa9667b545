"""Which engine the module-level functions use: the one of init(), or the one of this thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rabit.errors import NotInitialized

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = [
    "current_engine",
    "default_engine",
    "engine_for_work",
    "engine_of_thread",
    "follow_default_engine",
    "known_engine",
    "set_default_engine",
    "tell_followers",
    "watch_default_engine",
]


class _Current(threading.local):
    engine: Engine | None = None


_of_thread = _Current()
_blocks: list[Engine] = []  # of engine_of_thread that are open, in any thread
_default: list[Engine] = []  # One engine or none.
_watchers: list[Callable[[Engine | None], None]] = []
_followers: list[weakref.WeakMethod[Callable[[], None]]] = []


def current_engine() -> Engine:
    """The engine that module-level functions use.  Raises NotInitialized if there is none."""
    engine = known_engine()
    engine.check_process()
    return engine


def known_engine() -> Engine:
    """The same, for what it knows of its ranks: also in a process that was forked from its own, where it works no more.

    There its place may be asked for, as workers of a DataLoader do for their seeds.
    """
    engine = _of_thread.engine or (_default[0] if _default else None)
    if engine is None or engine.is_closed:
        raise NotInitialized(
            "rabit has not been initialized in this process, or has been shut down. Call "
            "rabit.init() first."
        )
    return engine


def engine_for_work() -> Engine:
    """Like `current_engine`, for callers whose next step asks the engine for its open pointer.

    Leaves to that step what it checks as well: that the engine is open and of this process.
    """
    # What belongs to a thread takes longer to look up than all else here.
    of_thread = _of_thread.engine if _blocks else None
    return of_thread or (_default[0] if _default else current_engine())


def default_engine() -> Engine:
    """The engine that init() has started; for packages that bind a framework."""
    return current_engine()


def follow_default_engine(callback: Callable[[], None]) -> None:
    """Calls a method when the default engine of an elastic job has given way to the next.

    callback: a bound method; its object may die before.  Callbacks run in the order in which they
    came, which is the same on all ranks.
    """
    _followers[:] = [follower for follower in _followers if follower() is not None]  # A program may make many in turn.
    _followers.append(weakref.WeakMethod(callback))


def tell_followers() -> None:
    """The default engine is another one, with other ranks."""
    _followers[:] = [follower for follower in _followers if follower() is not None]
    for each in list(_followers):
        callback = each()
        if callback is not None:
            callback()


def watch_default_engine(callback: Callable[[Engine | None], None]) -> None:
    """Calls a function with each engine that becomes the default one from now on, and with None before one ends."""
    _watchers.append(callback)


def set_default_engine(engine: Engine | None) -> None:
    _default[:] = [] if engine is None else [engine]
    for watcher in _watchers:
        watcher(engine)


@contextmanager
def engine_of_thread(engine: Engine) -> Iterator[Engine]:
    """Module-level functions that this thread calls inside the block use `engine`."""
    before, _of_thread.engine = _of_thread.engine, engine
    _blocks.append(engine)
    try:
        yield engine
    finally:
        _blocks.remove(engine)
        _of_thread.engine = before
