"""Several backends in one job, on any tensor, in any order on any rank (MCR-DL-A 3 and 4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import emulated_cuda, emulated_nccl
from support.mpi import PURE_MPI

JOB = Path(__file__).parent / "mixing_job.py"
STRAIGHT = Path(__file__).parent / "straight_job.py"
FOUR = "builtin,mpi,ps,nccl"
INSIDE = {"MIXING_RANKS_PER_HOST": "2", "RABIT_ROUTE": "allreduce:nccl/hierarchical"}

# `make campaign-mixing` is the full form: 10,000 operations of 5 seeds.
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
        pytest.param(4, "nccl,mpi", INSIDE, id="nccl inside two hosts, mpi between"),
        pytest.param(4, FOUR, PURE_MPI, id="four backends on 4 ranks"),
        pytest.param(8, FOUR, PURE_MPI, id="four backends on 8 ranks"),
    ],
)
def test_operations_in_another_order_on_every_rank(mpi, seed, size, default, more):
    if default == "mpi" and seed > 0:
        pytest.skip("the default backend matters once")

    backends = "builtin,mpi" if default == "mpi" else default
    environ = {"RABIT_BACKEND": default, **more}
    if "nccl" in backends:
        if emulated_cuda.MISSING:
            pytest.skip(emulated_cuda.MISSING)
        environ["EMULATED_CUDA"] = str(emulated_cuda.build())
        environ["RABIT_NCCL_LIBRARY"] = str(emulated_nccl.build())
    ended = mpi.run(
        size, JOB, seed, OPERATIONS, backends, environ=environ, timeout=50 + OPERATIONS / 5
    )

    ended.assert_ended_well()
    assert ended.output.count(f"wrong 0 of {OPERATIONS}") == size, ended.output


def run_straight(mpi, folder: Path, seconds: float, **more: str):
    """How the program ends on 2 ranks without the engine, and what each rank was in then."""
    environ = {"RABIT_BACKEND": "builtin,mpi", **more}
    ended = mpi.run(2, STRAIGHT, 0, 200, folder, seconds, environ=environ)
    return ended, [(folder / str(rank)).read_text() for rank in range(2)]


def test_the_same_program_straight_on_the_libraries_hangs(mpi, tmp_path):
    """What the engine saves users from: that the stress above can fail."""
    ended, states = run_straight(mpi, tmp_path, 8, MIXING_OWN_ORDER="1")

    assert ended.status != 0
    # Each waits in another library for the other one, so this is no question of time.
    assert {each.split()[0] for each in states} == {"builtin", "mpi"}, states


def test_straight_on_the_libraries_it_takes_one_order_on_all_ranks(mpi, tmp_path):
    """What hangs above is the order, not the program."""
    ended, states = run_straight(mpi, tmp_path, 120)

    ended.assert_ended_well()
    assert states == ["done, wrong 0"] * 2


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
