"""run_ranks: a whole job in one process, with a thread for each rank."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rabit.config.config import Config
from rabit.engine.current import engine_of_thread
from rabit.engine.engine import Engine
from rabit.errors import RabitError, TimedOut
from rabit.rendezvous.discovery import StoreServer

__all__ = ["run_ranks"]

T = TypeVar("T")


def run_ranks(
    size: int,
    fn: Callable[[Engine], T],
    transport: str = "auto",
    *,
    timeout: float = 60.0,
    **settings: Any,
) -> list[T]:
    """Runs fn(engine) on `size` ranks, each a thread with an engine of its own.

    Module-level functions such as rabit.rank() and rabit.allreduce() use the engine of the thread
    that calls them.  transport: as Config.transport.  settings: other fields of Config.
    A rank that has returned keeps its engine until all have: what the others wait for still reaches them.
    Returns the results in rank order.  If a rank raises, raises the error that came first, with
    the rank in a note; TimedOut if a rank has not finished after `timeout` seconds.
    """
    secret = secrets.token_bytes(32)
    store = StoreServer("127.0.0.1", 0, secret) if size > 1 else None
    address = f"127.0.0.1:{store.port}" if store is not None else ""
    run = _Run(size, fn)

    def config(rank: int) -> Config:
        values: dict[str, Any] = {
            "rank": rank,
            "size": size,
            "local_rank": rank,
            "local_size": size,
            "host_key": "run_ranks",
            "store_address": address,
            "bind_address": "127.0.0.1",
            "secret": secret if size > 1 else b"",
            "transport": transport,
            "connect_timeout": 30.0,
        }
        return Config(**{**values, **settings})

    threads = [
        threading.Thread(target=run.rank, args=(config(rank),), name=f"rank {rank}", daemon=True)
        for rank in range(size)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
        alive = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
        late = [rank for rank in alive if not run.ended[rank].is_set()] or alive
        errors = list(run.errors)  # without those that follow when ranks no longer wait
    finally:
        for ended in run.ended:
            ended.set()
        if store is not None:
            store.close()
    if errors:
        raise errors[0]
    if late:
        raise TimedOut(
            f"run_ranks: rank {', '.join(map(str, late))} of {size} ranks had not finished after {timeout:g} s. "
            "Look for an operation that not every rank calls, or raise timeout."
        )
    return [run.results[rank] for rank in range(size)]


class _Run:
    """What the threads of one call share."""

    def __init__(self, size: int, fn: Callable[[Engine], Any]) -> None:
        self.results: dict[int, Any] = {}
        self.errors: list[BaseException] = []
        self.ended = [threading.Event() for _ in range(size)]  # the rank's function has returned or raised
        self._fn = fn
        self._lock = threading.Lock()

    def rank(self, config: Config) -> None:
        try:
            with Engine(config) as engine, engine_of_thread(engine):
                try:
                    self.results[config.rank] = self._fn(engine)
                except BaseException as error:
                    self._note(config.rank, error)  # Before the others hear of it, and fail as a consequence.
                    raise
                self.ended[config.rank].set()
                for ended in self.ended:
                    ended.wait()
        except BaseException as error:  # Every error belongs to the caller of run_ranks.
            self._note(config.rank, error)
            self.ended[config.rank].set()

    def _note(self, rank: int, error: BaseException) -> None:
        with self._lock:
            if error in self.errors:
                return
            if not isinstance(error, RabitError) and hasattr(error, "add_note"):
                error.add_note(f"on rank {rank} of run_ranks")
            self.errors.append(error)
