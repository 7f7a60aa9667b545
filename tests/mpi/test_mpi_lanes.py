"""How many lanes an engine over MPI uses."""

from __future__ import annotations

import os

import pytest
from support.mpi import PURE_MPI

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]

SCRIPT = """
import numpy as np, rabit
rabit.init()
rabit.allreduce(np.ones(3), name="x")
print("lanes", rabit.default_engine().statistics()["tunables"]["lanes"], flush=True)
rabit.shutdown()
"""


@pytest.mark.parametrize(
    ("environ", "with_few", "with_more"),
    [
        ({}, 1, 2),
        (PURE_MPI, 1, 2),
        ({**PURE_MPI, "RABIT_LANES": "2"}, 2, 2),
        ({**PURE_MPI, "RABIT_LANES": "3"}, 3, 3),
    ],
)
def test_a_second_lane_needs_a_core_for_itself(mpi, tmp_path, environ, with_few, with_more):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    has_few = (os.cpu_count() or 1) < 2 * 2

    ended = mpi.run(2, script, environ={"RABIT_BACKEND": "mpi", **environ})

    ended.assert_ended_well()
    expected = with_few if has_few else with_more
    assert ended.output.count(f"lanes {expected}") == 2, ended.output
