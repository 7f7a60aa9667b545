"""Where the parts of a record lie in its file; native/engine/record.cc has the same numbers.

The file is a header (two slots, of which one counts), 64-bit counters, the texts that operations name, a ring
of operations, and rings of marks and of samples of the process and its host.
All numbers are little-endian.  A writer sets the first field of an entry to 0 before it changes the others and to its
number afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

__all__ = [
    "COUNTERS",
    "COUNTERS_AT",
    "COUNTER_PLACES",
    "DTYPES",
    "ENTRIES",
    "ENTRIES_AT",
    "ENTRY",
    "FILE_BYTES",
    "FIXED",
    "FORMAT",
    "KINDS",
    "MAGIC",
    "MARK",
    "MARKS",
    "MARKS_AT",
    "SAMPLE",
    "SAMPLES",
    "SAMPLES_AT",
    "SAMPLE_FIELDS",
    "SLOTS",
    "SLOT_BYTES",
    "TEXTS_AT",
    "TEXT_BYTES",
    "counters_of",
]

MAGIC = b"rabitrec"
FORMAT = 3
# Magic, format, bytes of the file, and which slot of the header counts (0: none yet).
FIXED = struct.Struct("<8sIII")
# A slot: four bytes of length, then JSON.
SLOTS = (64, 4096)
SLOT_BYTES = 4096 - 64
COUNTERS_AT = 8192
TEXTS_AT = 12288
TEXT_BYTES = 64 << 10
ENTRIES_AT = TEXTS_AT + TEXT_BYTES
ENTRIES = 4096
# handle, round, submitted, agreed, started, finished, elements, number, name, algorithm, backend, group, kind, dtype,
# state, lane, epoch, root, priority; times are nanoseconds of the monotonic clock.
ENTRY = struct.Struct("<QQqqqqqqIIIiBBBBIii")
MARKS_AT = ENTRIES_AT + ENTRIES * ENTRY.size
MARKS = 1024
# Number, end in nanoseconds, duration in nanoseconds, step, text.
MARK = struct.Struct("<QqqI36s")
SAMPLES_AT = MARKS_AT + MARKS * MARK.size
SAMPLES = 600
SAMPLE = struct.Struct("<32q")
FILE_BYTES = SAMPLES_AT + SAMPLES * SAMPLE.size

# As native/base/dtype.cc has them.
KINDS = (
    "allreduce", "allgather", "broadcast", "reduce", "reducescatter", "alltoall", "gather", "scatter", "barrier",
    "send", "recv", "join", "vote",
)  # fmt: skip
DTYPES = (
    "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool", "bfloat16",
    "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "complex64", "complex128",
)  # fmt: skip

# The engine's counters come first, then the package's; "finished" and "bytes" are sums of others.
COUNTER_PLACES: dict[str, int] = {
    "submitted": 0,
    "finished": 1,
    "failed": 2,
    "bytes": 3,
    "negotiation_ns": 4,
    "communicating_ns": 5,
    "waiting_ns": 6,
    "both_ns": 7,
    "stall_reports": 8,
    "last_progress_ns": 9,
    "is_running": 11,
    **{f"operations_{kind}": 16 + place for place, kind in enumerate(KINDS)},
    **{f"bytes_{kind}": 32 + place for place, kind in enumerate(KINDS)},
    "steps": 48,
    "last_step_ns": 49,
    "step_ns": 50,
    "gc_ns": 51,
    "loader_ns": 52,
    "nonfinite": 53,
    "epoch": 54,
    "size": 55,
    "marks": 56,
    "samples": 57,
}
COUNTERS = struct.Struct("<64q")


def counters_of(values: Sequence[int]) -> dict[str, int]:
    """By name what the 64 numbers say."""
    found = {name: values[place] for name, place in COUNTER_PLACES.items()}
    found["finished"] = sum(found[f"operations_{kind}"] for kind in KINDS) - found["failed"]
    found["bytes"] = sum(found[f"bytes_{kind}"] for kind in KINDS)
    return found


# Of the process, then of its host; the first is the number of the sample.
SAMPLE_FIELDS = (
    "number", "time_ns", "user_ms", "system_ms", "run_delay_ms", "voluntary", "involuntary", "major_faults",
    "rss_bytes", "swap_bytes", "block_io_ms", "read_bytes", "written_bytes", "threads", "state", "load_100",
    "steal_ms", "cpu_pressure_100", "memory_pressure_100", "io_pressure_100", "available_bytes", "throttled",
    "throttled_ms", "cgroup_bytes", "cgroup_limit_bytes", "oom_kills", "shm_free_bytes", "disk_free_bytes",
    "busy_ms", "idle_ms", "memory_bytes",
)  # fmt: skip
