"""Parts of values that a rank reads from their owners when it needs them, while nobody else takes part.

Each rank serves its parts by a thread of the native library, so an owner answers while its program computes. A part
has a version, and is closed while its owner changes it: whoever reads gets all of one version, or an error.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Any

from rabit._native import check, ffi, load
from rabit.engine.current import current_engine
from rabit.engine.process_set import ProcessSet
from rabit.errors import InvalidArgument, RabitError
from rabit.ops.collectives import barrier
from rabit.ops.objects import allgather_object
from rabit.rendezvous.host_port import format_address
from rabit.threads import Call

__all__ = ["Pull", "ServedParts"]

_NO_ADDRESS = "-"  # of a rank outside of the process set


class Pull:
    """Parts that are on their way. One that nobody waits for keeps its memory until it is over."""

    def __init__(self, parts: ServedParts, what: str, reads: Any, keeps: Any) -> None:
        self._parts = parts
        self._what = what
        self._reads = reads
        self._keeps = keeps
        self._call = Call(self._read, "rabit pull")

    def _read(self) -> None:
        try:
            self._parts.read(self._reads)
        finally:
            self._keeps = None

    def wait(self) -> None:
        """Blocks until all parts are there.

        Raises PeerLost if an owner has died or is silent, TimedOut if it does not come to the version in
        `stall_abort` seconds, Mismatch if it has gone on to a later one.
        """
        try:
            self._call.result()
        except RabitError as error:
            raise type(error)(f"{self._what}: {error}", error.rank) from error


class ServedParts:
    """The parts of this rank, which it serves to those of `process_set`, and theirs.

    parts: number -> contiguous memory of this rank, of which no two have one number. A part is closed until `open`.
    Blocks until every rank makes one; they have the same numbers. Serves until the engine closes, and keeps the memory
    until then, whatever the program keeps: other ranks may still read what it is done with.
    """

    def __init__(self, parts: dict[int, memoryview], process_set: ProcessSet, name: str) -> None:
        engine = current_engine()
        config = engine.config
        self._pid = os.getpid()
        self._name, self._set, self._engine = f"{name}.meet", process_set, engine
        self._library: Any = load(config.library)
        self._timeout_ms = int(config.stall_abort * 1000) or -1
        host = (config.bind_address or "127.0.0.1").partition(",")[0]  # of several interfaces the first
        common = f"secret={config.secret.hex()}\nrank={engine.rank}\n"
        slot, port = ffi.new("rabit_part_server**"), ffi.new("int32_t*")
        options = f"address={host}\n{common}"
        check(self._library, self._library.rabit_part_server_start(options.encode(), slot, port))
        self._server: Any = slot[0]
        stop = self._if_own(self._library.rabit_part_server_stop)
        # The server ends before the memory that it reads; at the end of the process, with it.
        weakref.finalize(self, _stop, stop, self._server, parts).atexit = False
        for number, memory in parts.items():
            data = ffi.from_buffer(memory) if memory.nbytes else ffi.new("char[1]")
            check(
                self._library,
                self._library.rabit_part_server_add(self._server, number, data, memory.nbytes),
            )
        found = allgather_object(
            (engine.rank, format_address(host, port[0])), f"{name}.addresses", process_set
        )
        addresses = [_NO_ADDRESS] * engine.size
        for rank, address in found:
            addresses[rank] = address
        silence_ms = int(config.heartbeat_timeout * 1000)
        options = f"addresses={','.join(addresses)}\nsilence_ms={silence_ms}\n{common}"
        slot = ffi.new("rabit_part_reader**")
        check(self._library, self._library.rabit_part_reader_open(options.encode(), slot))
        self._reader: Any = ffi.gc(slot[0], self._if_own(self._library.rabit_part_reader_close))
        # Who has ended its program still serves those that have not.
        engine.before_close(self.meet, keeps=True)

    def close(self, number: int) -> None:
        """This rank is about to change a part: when this returns, nobody reads it."""
        check(self._library, self._library.rabit_part_server_close(self._server, number))

    def open(self, number: int, version: int) -> None:
        """The part has this version now; who waits for it gets it."""
        check(self._library, self._library.rabit_part_server_open(self._server, number, version))

    def pull(
        self, what: str, version: int, reads: Iterable[tuple[int, int, memoryview]]
    ) -> Pull:
        """Starts to read parts of other ranks, of this version. Does not block.

        what: for errors. reads: global rank, number and writable memory of the size of the part.
        """
        wanted = list(reads)
        array = ffi.new("rabit_part_read[]", max(len(wanted), 1))
        keeps = []
        for place, (rank, number, memory) in enumerate(wanted):
            data = ffi.from_buffer(memory, require_writable=True)
            keeps.append(data)
            read = array[place]
            read.rank, read.part, read.version = rank, number, version
            read.into, read.bytes = data, memory.nbytes
        return Pull(self, what, (array, len(wanted)), keeps)

    def read(self, reads: tuple[Any, int]) -> None:
        """Reads what `pull` has put together. Blocks."""
        array, count = reads
        if os.getpid() != self._pid:
            raise InvalidArgument(
                "parts are read in a process that was forked from that of the rank. Read them in the rank's own"
            )
        function = self._library.rabit_part_reader_read
        check(self._library, function(self._reader, array, count, self._timeout_ms))

    def meet(self) -> None:
        """Blocks until every rank of the process set calls it: none of them reads what was before."""
        barrier(self._set, self._name, engine=self._engine)

    def _if_own(self, end: Any) -> Any:
        pid = self._pid
        # A forked child has none of the threads.
        return lambda pointer: end(pointer) if os.getpid() == pid else None


def _stop(stop: Any, server: Any, parts: object) -> None:
    stop(server)
