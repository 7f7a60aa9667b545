"""Memory that the ranks of a host share, and when they may write and read it."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rabit.engine.current import current_engine
from rabit.engine.process_set import ProcessSet
from rabit.errors import ResourceExhausted, Unsupported
from rabit.ops.collectives import barrier, barrier_async
from rabit.ops.objects import allgather_object
from rabit.sharding.room import check_room

__all__ = ["HostMemory"]

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64


class HostMemory:
    """`count` bytes for the ranks of each host together, in an anonymous file: it ends with the last process.

    The ranks of a host write different bytes of it between `begin_write` and `end_write`, and read all of it after
    `finish`. process_set: the ranks that make it and change it together. name: of its exchanges.
    Blocks until every rank makes one. Raises ResourceExhausted on every rank if a host has not so much memory,
    Unsupported if the ranks of a host cannot share memory, as in containers of their own. One thread at a time.
    """

    def __init__(self, count: int, process_set: ProcessSet, name: str) -> None:
        self._engine = current_engine()
        self._set = process_set
        self._name = name
        self._taken = 0
        self._handle: Any = None
        self._arriving: list[Callable[[], None]] = []
        keys = self._gathered("hosts", self._engine.config.host_key)
        ranks: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            ranks.setdefault(key, []).append(place)
        self.hosts = list(ranks.values())  # of each host, the positions of its ranks in the process set
        self.rank = process_set.rank()
        self.host = next(place for place, host in enumerate(self.hosts) if self.rank in host)
        self.is_first = self.hosts[self.host][0] == self.rank  # of its host
        check_room(
            "host_shared: parameters of a host",
            count if self.is_first else 0,
            "Use more hosts, or shard='parameters', or keep the optimizer's state on disk (offload)",
            process_set,
            f"{name}.room",
        )
        self._memory = self._shared(max(count, 1))

    def take(self, count: int) -> Array:
        """The next `count` bytes, uint8: the same for the ranks of a host, which take in the same order."""
        begin = self._taken
        self._taken = begin + self.padded(count)
        return self._memory[begin : begin + count]

    @staticmethod
    def padded(count: int) -> int:
        """Bytes that `take` uses for `count`."""
        return -(-count // _ALIGNMENT) * _ALIGNMENT

    def begin_write(self) -> None:
        """Blocks until every rank calls it: none of them reads what was before."""
        self.finish()
        barrier(self._set, f"{self._name}.begin", engine=self._engine)

    def when_written(self, finish: Callable[[], None]) -> None:
        """`end_write` calls `finish`, which waits for bytes of other hosts and writes them."""
        self._arriving.append(finish)

    def end_write(self) -> None:
        """This rank has written. Blocks for bytes of other hosts; `finish` waits for the other ranks."""
        arriving, self._arriving = self._arriving, []
        for finish in arriving:
            finish()
        self._handle = barrier_async(self._set, f"{self._name}.end", engine=self._engine)

    def finish(self) -> None:
        """Blocks until every rank has written."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            handle.wait()

    def _gathered(self, what: str, own: Any) -> list[Any]:
        return allgather_object(own, f"{self._name}.{what}", self._set, engine=self._engine)

    def _shared(self, count: int) -> Array:
        """The memory of this host's file, which its first rank makes and the others open."""
        with contextlib.ExitStack() as opened:
            file, refusal = _made(count) if self.is_first else (-1, "")
            if file >= 0:
                opened.callback(os.close, file)
            node = os.fstat(file).st_ino if file >= 0 else 0
            made = self._gathered("files", (os.getpid(), file, node, refusal))
            for place, (_, _, _, refusal) in enumerate(made):
                if refusal:
                    raise ResourceExhausted(
                        f"host_shared: rank {place} cannot get {count:,} bytes of memory for the parameters of its "
                        f"host: {refusal}. Nothing is trained. Use a host with more memory, raise the limits of memory "
                        "and of file sizes (ulimit -f), or use shard='parameters'",
                        place,
                    )
            if not self.is_first:
                first = self.hosts[self.host][0]
                try:
                    process, number, node, _ = made[first]
                    file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
                    opened.callback(os.close, file)
                    if os.fstat(file).st_ino != node:  # Another container has a process of that number, too.
                        refusal = f"process {process} is not that of rank {first} where rank {self.rank} runs"
                except OSError as failure:
                    refusal = f"rank {self.rank} cannot open the memory of rank {first}: {failure}"
            refusals = [text for text in self._gathered("opened", refusal) if text]
            if refusals:
                raise Unsupported(
                    f"host_shared: {refusals[0]}. The ranks of a host have to be processes of one user that see each "
                    "other in /proc; where each has a container of its own, leave host_shared out"
                )
            return np.frombuffer(mmap.mmap(file, count), np.uint8)


def _made(count: int) -> tuple[int, str]:
    """An anonymous file of `count` bytes, which has its memory; or why there is none."""
    file = -1
    try:
        file = os.memfd_create("rabit-host-shared", os.MFD_CLOEXEC)
        os.posix_fallocate(file, 0, count)
    except OSError as failure:
        if file >= 0:
            os.close(file)
        return -1, f"{failure.strerror} ({failure.errno})"
    return file, ""
