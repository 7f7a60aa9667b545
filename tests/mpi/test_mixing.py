"""Several backends in one job, on any tensor, in any order on any rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.mpi import PURE_MPI

JOB = Path(__file__).parent / "mixing_job.py"

# The full form: MIXING_OPERATIONS=10000 MIXING_SEEDS=5 pytest tests/mpi/test_mixing.py
OPERATIONS = int(os.environ.get("MIXING_OPERATIONS", "1000"))
SEEDS = int(os.environ.get("MIXING_SEEDS", "1"))

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(240 + OPERATIONS // 10)]


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    ("size", "default", "more"),
    [
        pytest.param(3, "builtin,mpi", PURE_MPI, id="builtin,mpi"),
        pytest.param(3, "mpi", PURE_MPI, id="mpi"),
        pytest.param(3, "builtin,mpi", {}, id="shared memory"),
        pytest.param(3, "builtin,mpi", {"MIXING_RANKS_PER_HOST": "2"}, id="two hosts"),
        pytest.param(4, "builtin,mpi,ps", PURE_MPI, id="builtin,mpi,ps on 4 ranks"),
        pytest.param(8, "builtin,mpi,ps", PURE_MPI, id="builtin,mpi,ps on 8 ranks"),
    ],
)
def test_operations_in_another_order_on_every_rank(mpi, seed, size, default, more):
    if default == "mpi" and seed > 0:
        pytest.skip("the default backend matters once")

    backends = "builtin,mpi" if default == "mpi" else default
    environ = {"RABIT_BACKEND": default, **more}
    ended = mpi.run(
        size, JOB, seed, OPERATIONS, backends, environ=environ, timeout=50 + OPERATIONS / 5
    )

    ended.assert_ended_well()
    assert ended.output.count(f"wrong 0 of {OPERATIONS}") == size, ended.output


def test_ranks_that_name_different_backends_are_told(mpi, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, rabit\n"
        "rabit.init()\n"
        "backend = ('builtin', 'mpi')[rabit.rank() % 2]\n"
        "try:\n"
        "    rabit.allreduce(np.ones(3), name='x', backend=backend)\n"
        "except rabit.Mismatch as error:\n"
        "    print('told', error, flush=True)\n"
        "print(rabit.allreduce(np.ones(3), name='y', op=rabit.Sum)[0], flush=True)\n"
        "rabit.shutdown()\n"
    )

    ended = mpi.run(2, script, environ={"RABIT_BACKEND": "builtin,mpi"})

    ended.assert_ended_well()
    assert ended.output.count("told") == 2
    assert ended.output.count("backend") >= 2
    assert ended.output.count("2.0") == 2
