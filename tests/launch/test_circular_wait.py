"""Ranks that wait for each other: the job ends long before RABIT_STALL_ABORT, and says who waits for whom."""

from __future__ import annotations

import sys

SCRIPT = """
import numpy as np, rabit
rabit.init()
first, second = ("a", "b") if rabit.rank() == 0 else ("b", "a")
try:
    rabit.allreduce(np.ones(4, np.float32), name=first)
    rabit.allreduce(np.ones(4, np.float32), name=second)
except rabit.Mismatch as error:
    print("MISMATCH", rabit.rank(), error, flush=True)
"""


def test_a_circular_wait_ends_as_a_mismatch_that_names_both_sides(rabitrun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    job = rabitrun("-np", 2, "--stall-warning", 1, sys.executable, script)

    said = [line for line in job.out.splitlines() if "MISMATCH" in line]
    assert len(said) == 2, job.out + job.err
    for line in said:
        assert "rank 0 waits for allreduce 'a', which rank 1 has not submitted" in line
        assert "rank 1 waits for allreduce 'b', which rank 0 has not submitted" in line
