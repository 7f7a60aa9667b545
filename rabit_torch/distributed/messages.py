"""Mail: how many messages a rank has sent to whom, so that others can receive from any rank."""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import timedelta
from typing import Any

import rabit

__all__ = ["Mail"]

_PAUSE_MAX_S = 0.005


class Mail:
    """Counts of messages, kept in torch's store: one number for each sender, receiver and tag.

    A message is matched by its sender, which who receives from any rank does not know.  Telling the
    store costs the sender one message to it, without an answer.  One thread at a time.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._sent: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._received: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._last = rank  # the sender found last: the search continues after it, so that all come

    def sent(self, receiver: int, tag: int) -> None:
        """This rank sends a message."""
        self._sent[receiver, tag] += 1
        key = f"mail.{self._rank}.{receiver}.{tag}"
        self._store.set(key, str(self._sent[receiver, tag]))

    def received(self, sender: int, tag: int) -> None:
        """This rank has begun to receive a message."""
        self._received[sender, tag] += 1

    def next_sender(self, tag: int, timeout: timedelta) -> int:
        """A rank that has sent a message that this rank has not begun to receive.  Blocks.

        Raises TimedOut if there is none within `timeout`.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        pause = 0.0
        while True:
            for step in range(1, self._size + 1):
                sender = (self._last + step) % self._size
                key = f"mail.{sender}.{self._rank}.{tag}"
                if sender == self._rank or not self._store.check([key]):
                    continue
                if int(self._store.get(key)) > self._received[sender, tag]:
                    self._last = sender
                    return sender
            if time.monotonic() >= deadline:
                raise rabit.TimedOut(
                    f"recv from any rank (tag {tag}) on rank {self._rank}: no rank has sent within "
                    f"{timeout.total_seconds():g} s. Look at what the senders are doing."
                )
            time.sleep(pause)
            pause = min(_PAUSE_MAX_S, pause * 2 + 0.0001)
