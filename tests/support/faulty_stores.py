"""Stores in memory that lose questions and answers, die and come back empty, by a seed."""

from __future__ import annotations

import random
import threading

from rabit.errors import PeerLost, TimedOut
from rabit.rendezvous.replica import MARK
from rabit.rendezvous.store_client import Versioned


class FaultyStore:
    """One store.  loss: how likely a question is lost, and how likely its answer."""

    def __init__(self, seed: int, loss: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._loss = loss
        self._changed = threading.Condition()
        self._held = {MARK: Versioned(1, b"")}
        self._is_dead = False
        self.deaths = 0

    def connect(self) -> _Connection:
        self._fail_if(self._is_dead)
        return _Connection(self)

    def die(self) -> None:
        with self._changed:
            self._is_dead = True
            self.deaths += 1
            self._changed.notify_all()

    def come_back_empty(self) -> None:
        with self._changed:
            self._is_dead = False
            self._held = {}

    def come_back(self) -> None:
        """As after a cut that has healed."""
        self._is_dead = False

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._lose()
            self._put(key, value)
            self._lose()

    def compare_and_set(self, key: str, version: int, value: bytes) -> tuple[bool, Versioned]:
        with self._changed:
            self._lose()
            held = self._held.get(key, Versioned(0, b""))
            is_mine = held.version == version
            if is_mine:
                held = self._put(key, value)
            self._lose()
            return is_mine, held

    def watch(self, key: str, seen: int, timeout: float) -> Versioned:
        def version() -> int:
            return self._held.get(key, Versioned(0, b"")).version

        with self._changed:
            if not self._changed.wait_for(lambda: self._is_dead or version() > seen, timeout):
                raise TimedOut("nothing has changed")
            self._fail_if(self._is_dead)
            return self._held[key]

    def close(self) -> None:
        pass

    def _put(self, key: str, value: bytes) -> Versioned:
        held = Versioned(self._held.get(key, Versioned(0, b"")).version + 1, value)
        self._held[key] = held
        self._changed.notify_all()
        return held

    def _lose(self) -> None:
        self._fail_if(self._is_dead or self._random.random() < self._loss)

    def _fail_if(self, is_lost: bool) -> None:
        if is_lost:
            raise PeerLost("the store is gone")


class _Connection:
    """Lost for good when its store dies, whenever that is noticed."""

    def __init__(self, store: FaultyStore) -> None:
        self._store = store
        self._deaths = store.deaths

    def set(self, key: str, value: bytes) -> None:
        self._living().set(key, value)

    def compare_and_set(self, key: str, version: int, value: bytes) -> tuple[bool, Versioned]:
        return self._living().compare_and_set(key, version, value)

    def watch(self, key: str, seen: int, timeout: float) -> Versioned:
        return self._living().watch(key, seen, timeout)

    def close(self) -> None:
        pass

    def _living(self) -> FaultyStore:
        if self._store.deaths != self._deaths:
            raise PeerLost("the store has died, and the connection with it")
        return self._store
