"""What goes wrong under MPI ends with an error, in bounded time."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.mpi import PURE_MPI

pytestmark = [pytest.mark.mpi]

# Rank 1 dies while the others are inside a collective that it never joins on the wire.
KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
import rabit

rabit.init()
kind = sys.argv[1]
values = np.ones(int(sys.argv[2]), np.float32)
for step in range(10_000):
    if step == 20 and rabit.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if kind == "allreduce":
            rabit.allreduce(values, name="x")
        elif kind == "broadcast":
            rabit.broadcast(values, 1, name="x")
        else:
            rabit.barrier()
    except rabit.RabitError as error:
        # Not printed: mpiexec may drop the last words of a job that fails.  Renamed when whole:
        # it may kill this rank as well, between opening and writing.
        told = Path(sys.argv[3], f"{rabit.rank()}.part")
        told.write_text(f"{type(error).__name__}: {error}")
        told.rename(told.with_suffix(""))
        raise
"""

# Rank 1 dies with operations of two backends under way, some of which are over by then.
KILLED_MIXED = """
import os, signal, sys
from pathlib import Path
import numpy as np
import rabit

rabit.init()
rank = rabit.rank()
values = np.ones(1_000_000, np.float32)

def start(step):
    return [(each, rabit.allreduce_async(values, name=f"{each}.{step}.{number}", op=rabit.Sum, backend=each))
            for number in range(4) for each in ("builtin", "mpi")]

for _, handle in start("before"):
    assert rabit.synchronize(handle)[0] == rabit.size()
handles = start("last")
if rank == 1:
    rabit.synchronize(handles[0][1])
    os.kill(os.getpid(), signal.SIGKILL)
said = []

def note(backend, run):
    try:
        run()
    except rabit.RabitError as error:
        said.append(f"{backend} {type(error).__name__} {error.rank}: {error}")

for backend, handle in handles:
    note(backend, lambda: rabit.synchronize(handle))
for backend in ("builtin", "mpi"):
    note(backend, lambda: rabit.allreduce(values, name=f"{backend}.late", backend=backend))
told = Path(sys.argv[1], f"{rank}.part")
told.write_text("\\n".join(said))
told.rename(told.with_suffix(""))
sys.exit(1)
"""

KINDS = [("allreduce", 10), ("allreduce", 1_000_000), ("broadcast", 1000), ("barrier", 1)]


@pytest.fixture
def killed(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    return script


def told_by_survivors(mpi, folder, ended):
    """What ranks 0 and 2 have been told, by their numbers.

    The end of the first survivor may take the job with it before the other has come so far, and MPICH's mpiexec,
    whatever it is told, may be quicker than both.
    """
    told = {path.name: path.read_text() for path in folder.iterdir() if not path.suffix}
    assert told or mpi.name == "mpich", ended.output + ended.errors
    assert told.keys() <= {"0", "2"}
    return told


def may_be_lost(mpi, told):
    """Rank 1, and whom MPICH's mpiexec has killed then, before that one was told of it."""
    return ["1", *({"0", "2"} - told.keys() if mpi.name == "mpich" else ())]


@pytest.mark.slow
@pytest.mark.parametrize("more", [PURE_MPI, {}], ids=["mpi", "shared memory"])
@pytest.mark.parametrize(("kind", "count"), KINDS)
def test_a_killed_rank_ends_the_others_with_an_error(mpi, killed, tmp_path, kind, count, more):
    """mpiexec is told to let the others live, so that they have to notice by themselves."""
    folder = tmp_path / "told"
    folder.mkdir()
    environ = {"RABIT_BACKEND": "mpi", **more}
    ended = mpi.run(3, killed, kind, count, folder, environ=environ, timeout=60, goes_on=True)

    assert ended.status != 0
    told = told_by_survivors(mpi, folder, ended)
    lost = "|".join(may_be_lost(mpi, told))
    for message in told.values():
        assert re.match(rf"PeerLost.*rank ({lost}) \(.* is lost", message), message


@pytest.mark.slow
@pytest.mark.parametrize("more", [PURE_MPI, {}], ids=["mpi", "shared memory"])
def test_a_killed_rank_ends_operations_of_all_backends(mpi, tmp_path, more):
    """None of them hangs, and each error names the rank and the operation."""
    script = tmp_path / "killed_mixed.py"
    script.write_text(KILLED_MIXED)
    folder = tmp_path / "told"
    folder.mkdir()
    environ = {"RABIT_BACKEND": "builtin,mpi", **more}

    ended = mpi.run(3, script, folder, environ=environ, timeout=60, goes_on=True)

    assert ended.status != 0
    told = told_by_survivors(mpi, folder, ended)
    lost = "|".join(may_be_lost(mpi, told))
    for text in told.values():
        lines = text.splitlines()
        for line in lines:
            assert re.match(rf"(builtin|mpi) PeerLost ({lost}): .*rank \2 .* is lost", line), line
        assert [line.split()[0] for line in lines[-2:]] == ["builtin", "mpi"], lines


def test_a_killed_rank_ends_the_job(mpi, killed, tmp_path):
    environ = {"RABIT_BACKEND": "mpi", **PURE_MPI}
    ended = mpi.run(3, killed, "allreduce", 1000, tmp_path, environ=environ)

    assert ended.status != 0


def test_a_deadline_ends_a_collective_that_a_rank_does_not_join(mpi, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, time, numpy as np, rabit\n"
        "rabit.init()\n"
        "rabit.barrier()\n"
        "if rabit.rank() == 1:\n"
        "    stopped = os.getpid()\n"
        "    if os.fork() == 0:  # MPICH's mpiexec does not always end what is stopped.\n"
        "        os.closerange(0, 1024)\n"
        "        time.sleep(20)\n"
        "        if os.getppid() == stopped: os.kill(stopped, signal.SIGKILL)\n"
        "        os._exit(0)\n"
        "    os.kill(stopped, signal.SIGSTOP)\n"
        "try:\n"
        "    rabit.allreduce(np.ones(5), name='x')\n"
        "except rabit.RabitError as error:\n"
        "    print('got', type(error).__name__, error, flush=True)\n"
        "    raise\n"
    )

    environ = {"RABIT_BACKEND": "mpi", "RABIT_HEARTBEAT_TIMEOUT": "2", **PURE_MPI}
    ended = mpi.run(2, script, environ=environ, timeout=60)

    assert ended.status != 0
    assert "got PeerLost" in ended.output, ended.output + ended.errors


def test_ranks_that_mpi_did_not_start_are_told():
    pytest.importorskip("mpi4py")
    script = (
        "from rabit.testing import run_ranks\nrun_ranks(2, lambda engine: None, backend='mpi')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode != 0
    assert re.search(r"rank \d of 2 is rank 0 of 1 in MPI", done.stderr), done.stderr
    assert "rabitrun --launcher mpi" in done.stderr
