"""RecordFile: the package's part of a rank's record, that is all but what the engine writes."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
import zlib
from typing import IO, Any

from rabit.errors import InvalidArgument
from rabit.record import layout
from rabit.record.places import host_facts, start_ticks
from rabit.version import __version__

__all__ = ["STACK_SIGNAL", "RecordFile"]

# Real-time signals are nobody's by convention; this one is far from both ends, which libraries take.
STACK_SIGNAL = signal.SIGRTMIN + 17
_VERSIONED = ("torch", "numpy", "mxnet", "mpi4py", "jax")
_LONGEST_TEXT = 36
_LONGEST_SCRIPT = 1 << 20
# Places in words of 64 bits.  "steps", "last_step_ns" and "step_ns" stand next to each other.
_COUNTERS = layout.COUNTERS_AT // 8
_STEPS = layout.COUNTER_PLACES["steps"]
_STEPS_AT = _COUNTERS + _STEPS
_MARKS, _MARK_WORDS = layout.MARKS_AT // 8, layout.MARK.size // 8
# The second half of a mark: its step and its text.
_TEXT, _REST, _MARK = struct.Struct("<I36s"), struct.Struct("<5q"), struct.Struct("<7q")
_STEP_TEXT = int.from_bytes(b"step", "little") << 32


class RecordFile:
    """Thread-safe.  Marks cost about a microsecond.  A forked child writes nothing."""

    def __init__(self, path: str, facts: dict[str, Any]) -> None:
        """Makes the file.  facts: of the rank.  Raises InvalidArgument if the folder takes none.

        A file that is there is replaced; if a process that runs writes it, the new one is `rank-N.PID.rabit`.
        """
        self._pid = os.getpid()
        self._is_parents = False
        self._lock = threading.RLock()
        self._facts = facts
        self._marks = 0
        self._counters = [0] * 64
        self._stacks: IO[bytes] | None = None
        self.is_used = True  # by an engine
        try:
            self.path, self._file, self._map = _made(path, self._pid)
        except OSError as error:
            raise InvalidArgument(
                f"the record {path} of rank {facts.get('rank')} cannot be written: {error.strerror}. Name a folder "
                "that is writable (RABIT_RECORD, --record), or set RABIT_RECORD=0."
            ) from error
        os.register_at_fork(after_in_child=self._leave)
        self._map[: layout.FIXED.size] = layout.FIXED.pack(
            layout.MAGIC, layout.FORMAT, layout.FILE_BYTES, 0
        )
        self._words = memoryview(self._map).cast("q")
        self._slot = 0
        self._answer_for_stacks()
        self.describe()

    def describe(self, **facts: Any) -> None:
        """Writes the header again, with these facts on top."""
        self._facts.update(facts)
        text = json.dumps({**_process_facts(self._pid), **self._facts}).encode()[
            : layout.SLOT_BYTES - 4
        ]
        slot = self._slot % 2
        at = layout.SLOTS[slot]
        with self._lock:
            self._map[at : at + 4 + len(text)] = len(text).to_bytes(4, "little") + text
            self._slot += 1
            # One aligned store makes the new slot count: a reader finds the old one or this one.
            self._map[16:20] = (slot + 1).to_bytes(4, "little")

    def count(self, name: str, by: int) -> int:
        """Adds to one of the package's counters; the sum."""
        place = layout.COUNTER_PLACES[name]
        self._counters[place] += by
        self._store(place, self._counters[place])
        return self._counters[place]

    def set(self, name: str, value: int) -> None:
        """Sets one of the package's counters."""
        place = layout.COUNTER_PLACES[name]
        self._counters[place] = value
        self._store(place, value)

    @property
    def own_path(self) -> str:
        """Opens this very file in this process, whatever has become of its name."""
        found = f"/proc/self/fd/{self._file}"
        return found if os.path.exists(found) else self.path  # noqa: PTH110

    def _leave(self) -> None:
        """In a forked child: the file is the parent's."""
        self._is_parents = True

    def end_step(self) -> None:
        """Counts a training step, and marks how long it took since the one before: about a microsecond."""
        if self._is_parents:
            return
        now_ns = time.monotonic_ns()
        counters, words = self._counters, self._words
        steps = counters[_STEPS] = counters[_STEPS] + 1
        before_ns = counters[_STEPS + 1]
        words[_STEPS_AT] = steps
        words[_STEPS_AT + 1] = counters[_STEPS + 1] = now_ns
        if not before_ns:
            return
        took_ns = now_ns - before_ns
        words[_STEPS_AT + 2] = counters[_STEPS + 2] = counters[_STEPS + 2] + took_ns
        self._write_mark(now_ns, took_ns, steps & 0xFFFFFFFF | _STEP_TEXT, 0, 0, 0, 0)

    def _store(self, place: int, value: int) -> None:
        self._words[_COUNTERS + place] = value

    def _write_mark(self, end_ns: int, duration_ns: int, *rest: int) -> None:
        """rest: the step and the text, as five words."""
        words = self._words
        # Of this thread again and again: the collector may run in here, and marks its pause.
        with self._lock:
            number = self._marks = self._marks + 1
            at = _MARKS + number % layout.MARKS * _MARK_WORDS
            words[at] = 0
            _MARK.pack_into(self._map, 8 * at + 8, end_ns, duration_ns, *rest)
            words[at] = number
            words[_COUNTERS + layout.COUNTER_PLACES["marks"]] = number

    def counters(self) -> dict[str, int]:
        """All counters, the engine's too."""
        return layout.counters_of(layout.COUNTERS.unpack_from(self._map, layout.COUNTERS_AT))

    def mark(self, text: str, duration_ns: int = 0, end_ns: int = 0) -> None:
        """Writes a mark that ends now or at `end_ns`, of the monotonic clock."""
        if self._is_parents:
            return
        short = text.encode(errors="replace")[:_LONGEST_TEXT]
        rest = _REST.unpack(_TEXT.pack(self._counters[_STEPS], short))
        self._write_mark(end_ns or time.monotonic_ns(), duration_ns, *rest)

    def _answer_for_stacks(self) -> None:
        """From now on a signal has the interpreter write the stacks of all threads, whoever holds the GIL."""
        if signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
            return  # The program has a use of its own for it.
        path = self.path.removesuffix(".rabit") + ".stacks"
        try:
            self._stacks = open(path, "ab")  # noqa: PTH123, SIM115
            os.fchmod(self._stacks.fileno(), 0o600)
            faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=True, chain=False)
        except (OSError, RuntimeError, ValueError):
            return  # The record says that this rank shows no stacks.
        self._facts["stacks"] = path
        self._facts["stack_signal"] = int(STACK_SIGNAL)


def _made(path: str, pid: int) -> tuple[str, int, mmap.mmap]:
    """A new file at `path`, or next to that of a process that runs; it stays open and locked as long as this one."""
    own = f"{path.removesuffix('.rabit')}.{pid}.rabit"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(own)  # noqa: PTH108
    file = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(file, 0o600)
        # A disk that is full says so here, and not by a signal at the first write to a page of the map.
        os.posix_fallocate(file, 0, layout.FILE_BYTES)
        memory = mmap.mmap(file, layout.FILE_BYTES)
        if not _is_written(path):
            os.replace(own, path)  # noqa: PTH105
            own = path
    except BaseException:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(own)  # noqa: PTH108
        raise
    return own, file, memory


def _is_written(path: str) -> bool:
    """Whether a process that runs has this record, this one included."""
    try:
        found = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(found, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)  # else a file system without locks
    finally:
        os.close(found)
    return False


def _process_facts(pid: int) -> dict[str, Any]:
    script = str(getattr(sys.modules.get("__main__"), "__file__", "") or "")
    loaded = {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in _VERSIONED}
    return {
        "pid": pid,
        "start_ticks": start_ticks(pid),
        "main_thread": threading.main_thread().ident,
        "main_native": threading.main_thread().native_id,
        "script": script,
        "script_hash": _content(script),
        "folder": os.getcwd(),  # noqa: PTH109
        "realtime_ns": time.time_ns(),
        "monotonic_ns": time.monotonic_ns(),
        "versions": {
            "rabit": __version__,
            "python": sys.version.split()[0],
            **{name: text for name, text in loaded.items() if text},
        },
        **host_facts(),
    }


def _content(path: str) -> str:
    """Of a file, so that copies of one program are told apart; "": there is none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return f"{zlib.crc32(file.read(_LONGEST_SCRIPT)):08x}"
    except OSError:
        return ""
