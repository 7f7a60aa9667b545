"""Bits that flip in shared memory: with checksums a job ends by an error and never sums them."""

from __future__ import annotations

import pytest
from support.processes import run_processes

# Rank 1 flips bits of the rings in both directions, from a thread, until the job ends; the heads of the lanes are
# left alone.
FLIPS = """
import ctypes, random, re, threading, time
from pathlib import Path
import numpy as np
import rabit

RING = 256 << 10

def rings():
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:rabit-inbox" not in line:
            continue
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        heads = (end - begin) % RING
        if end - begin - heads > 0:
            yield (ctypes.c_uint8 * (end - begin - heads)).from_address(begin + heads)

def flip(seconds):
    chosen, random_bits = list(rings()), random.Random(7)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for memory in chosen:
            for _ in range(64):
                memory[random_bits.randrange(len(memory))] ^= 1 << random_bits.randrange(8)

rabit.init()
values = np.arange(200_000, dtype=np.int32)
expected = values * rabit.size()
rabit.allreduce(values, name="first", op=rabit.Sum)
if rabit.rank() == 1:
    threading.Thread(target=flip, args=(20,), daemon=True).start()
end = time.monotonic() + 20
said = "UNCHANGED"
try:
    while time.monotonic() < end:
        if not np.array_equal(rabit.allreduce(values, name="x", op=rabit.Sum), expected):
            said = "WRONG"
            break
except rabit.RabitError as error:
    said = f"{type(error).__name__} {error.rank} {error}"
print(said, flush=True)
"""
STAGED = {"RABIT_SHM_RING_BYTES": "256K", "RABIT_SHM_SINGLE_COPY": "0", "RABIT_LANES": "1"}


@pytest.mark.slow
def test_flipped_bits_end_the_job_and_are_never_summed(tmp_path):
    ended = run_processes(2, FLIPS, tmp_path, environ={**STAGED, "RABIT_SHM_CHECKSUM": "1"})

    told = [each.output for each in ended]
    assert not any("WRONG" in each or "UNCHANGED" in each for each in told), told
    assert any("have changed in shared memory" in each for each in told), told


@pytest.mark.slow
def test_without_checksums_they_are_summed(tmp_path):
    """What the other test looks for is there to be found."""
    ended = run_processes(2, FLIPS, tmp_path, environ=STAGED)

    assert any("WRONG" in each.output for each in ended), [each.output for each in ended]
