"""rabitrun --launcher mpi."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rabit

pytestmark = [pytest.mark.mpi]

SCRIPT = """
import numpy as np
import rabit

rabit.init()
total = rabit.allreduce(np.full(3, rabit.rank() + 1.0), op=rabit.Sum, name="x")
backends = rabit.default_engine().statistics()["backends"]
print("sum", rabit.rank(), rabit.size(), total[0], *backends, flush=True)
rabit.shutdown()
"""


def rabitrun(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "rabit.launch", "--launcher", "mpi", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(rabit.__file__).parents[1]), **environ},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_ranks_are_started_by_mpiexec(mpi, tmp_path):
    if mpi.python != sys.executable:
        pytest.skip("rabitrun uses the MPI library of the Python that runs it")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    done = rabitrun("-np", 3, "--backend", "mpi", sys.executable, script)

    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("sum"))
    assert lines == [f"sum {rank} 3 6.0 mpi" for rank in range(3)]


def test_the_command_is_shown(mpi):
    if mpi.python != sys.executable:
        pytest.skip("rabitrun uses the MPI library of the Python that runs it")

    done = rabitrun("-H", "a:2,b:1", "--lanes", 3, "--env", "LR=0.1", "--dry-run", "train")

    assert done.returncode == 0, done.stderr
    assert "-H a:2,b:1" in done.stdout
    assert "-x LR" in done.stdout
    assert "-x RABIT_LANES" in done.stdout
    assert "-n 3 train" in done.stdout


def test_what_mpiexec_does_cannot_be_asked_of_rabitrun():
    done = rabitrun("-np", 2, "--collapse-output", "true")

    assert done.returncode == 2
    assert "--launcher mpi leaves the output to mpiexec" in done.stderr


def test_without_an_mpiexec_it_says_what_to_install(tmp_path, monkeypatch):
    from rabit._errors import Unsupported
    from rabit.launch import mpi
    from rabit.launch.hosts import local_hosts
    from rabit.launch.launcher import Request
    from rabit.launch.plan import make_plan

    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    request = Request(make_plan(local_hosts(1), 1), ("true",), {"PATH": str(tmp_path)})

    with pytest.raises(Unsupported, match=r"pip install mariza-rabit\[mpi\]"):
        mpi.mpi_command(request)
