"""Tensors of more than 2**31 elements, where a 32-bit count would wrap."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes import assert_all_ended_well, run_processes

MEMORY_BYTES = 9 << 30  # two ranks of two buffers each, and the engine's own

SCRIPT = """
import numpy as np
import rabit

rabit.init()
rank = rabit.rank()
count = 2**31 + 11
ends = slice(None, None, 2**28 + 1)
big = np.zeros(count, np.uint8)
big[ends] = np.arange(len(big[ends])) + 3 * rank
big[-1] = 7 - rank
rabit.allreduce_(big, name="big", op=rabit.Max)
assert big[ends].tolist() == [each + 3 for each in range(len(big[ends]))]
assert big[-1] == 7 and big[-2] == 0 and int(big[2**31 - 1 : 2**31 + 1].sum()) == 0

big[-1] = 40 + rank
rabit.broadcast_(big, 1, name="big")
assert big[-1] == 41
part = big[: 2**30 + 5 + rank]
part[-1] = 90 + rank
del big
found = rabit.allgather(part, name="parts")
assert found.shape == (2**31 + 11,) and found[2**30 + 4] == 90 and found[-1] == 91
rabit.shutdown()
"""


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return 0


@pytest.mark.slow
def test_two_ranks_reduce_broadcast_and_gather_them(tmp_path):
    if available_bytes() < MEMORY_BYTES:
        pytest.skip(f"needs {MEMORY_BYTES >> 30} GiB of free memory")
    assert_all_ended_well(run_processes(2, SCRIPT, tmp_path))
