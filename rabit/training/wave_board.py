"""What two processes on one device know of each other's memory, and who of them may take more.

The two alternate: while one gives back in its backward pass what it saved for it, the other takes it in
its forward pass.  No more than `room` times what one of them needs is in use at any time.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from rabit.errors import TimedOut

__all__ = ["Phase", "WaveBoard", "make_board_file"]

# One row for each wave: bytes in use, the most that it ever needed, its phase, and when its pass began,
# as the number of passes on this device.
_ROW = struct.Struct("4q")
_REST = 1 / 16  # of a pass, which is as good as nothing
_POLL_S = 0.0005  # No futex is within Python's reach; a forward pass takes many times as long.


class Phase(IntEnum):
    """Where a wave is in its step."""

    IDLE = 0
    FORWARD = 1
    BACKWARD = 2


def make_board_file() -> str:
    """The path of a new file for the two; in memory where there is a file system for that."""
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    descriptor, path = tempfile.mkstemp(prefix="rabit-waves-", dir=folder)
    try:
        os.ftruncate(descriptor, 2 * _ROW.size)
    finally:
        os.close(descriptor)
    return path


class WaveBoard:
    """One wave's view of the board.  Called by the thread that trains.

    Of two waves in their forward pass, the one that began first never waits for the other; a wave in its
    backward pass waits for no one, and gives back.  So one of the two can always continue.
    """

    def __init__(
        self,
        path: str,
        wave: int,
        *,
        room: float = 1.15,
        timeout: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """wave: 0 or 1.  timeout: seconds that this wave waits for memory at most."""
        self._wave, self._room, self._timeout, self._clock = wave, room, timeout, clock
        self._file = os.open(path, os.O_RDWR)
        self._memory = mmap.mmap(self._file, 2 * _ROW.size)
        self._live = self._peak = self._ticket = 0
        self._phase = Phase.IDLE
        self.waits = 0  # how often this wave had to wait

    @property
    def live_bytes(self) -> int:
        """What this wave has saved for its backward pass."""
        return self._live

    @property
    def peak_bytes(self) -> int:
        """The most that this wave ever needed."""
        return self._peak

    def begin_forward(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)  # Or both would have one number.
        try:
            self._ticket = max(self._ticket, self._other()[3]) + 1
            self._phase = Phase.FORWARD
            self._write()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def begin_backward(self) -> None:
        if self._phase == Phase.FORWARD:
            self._phase = Phase.BACKWARD
            self._peak = max(self._peak, self._live)
            self._write()

    def end(self) -> None:
        """The pass has ended, with an error or without."""
        self._phase = Phase.IDLE
        self._write()

    def take(self, count: int) -> None:
        """Before this many bytes are saved; blocks while they have no room and the other wave continues.

        Raises TimedOut.
        """
        if not self._has_room(count):
            self.waits += 1
            self._wait(count)
        self._live += count
        self._write()

    def give_back(self, count: int) -> None:
        self._live -= count
        self._write()

    def close(self) -> None:
        self._memory.close()
        os.close(self._file)

    def _wait(self, count: int) -> None:
        end, pause = self._clock() + self._timeout, threading.Event()
        while not self._has_room(count):
            if self._clock() >= end:
                live, _, phase, _ = self._other()
                raise TimedOut(
                    f"wave {self._wave} waits for {count} bytes in addition to its {self._live} since "
                    f"{self._timeout:g} s, and the other wave, in phase {Phase(phase).name}, keeps "
                    f"{live}. Look for what holds that process up, or raise the timeout."
                )
            pause.wait(_POLL_S)

    def _has_room(self, count: int) -> bool:
        live, peak, phase, ticket = self._other()
        if phase == Phase.IDLE:
            return True
        if phase == Phase.FORWARD:
            if self._ticket < ticket:  # That one waits for this one.
                return True
            if not peak:  # No one knows yet what a pass needs.
                return False
            live = max(live, peak)
        # What is left at the end of a backward pass may wait for this rank's gradients.
        if live <= _REST * peak:
            return True
        return self._live + count + live <= self._room * max(peak, self._peak)

    def _other(self) -> tuple[int, int, int, int]:
        found: tuple[int, int, int, int] = _ROW.unpack_from(
            self._memory, (1 - self._wave) * _ROW.size
        )
        return found

    def _write(self) -> None:
        row = (self._live, self._peak, self._phase, self._ticket)
        _ROW.pack_into(self._memory, self._wave * _ROW.size, *row)
