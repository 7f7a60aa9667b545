"""Ranks: a function of a case runs on each of them, and the case gets what they have returned."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = ["mpi_environ", "mpiexec", "on_ranks", "program_path", "run_rank"]

BENCH = Path(__file__).resolve().parents[1]
RANK_VARIABLES = ("RABIT_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")


def program_path() -> str:
    """PATH with the programs of this interpreter first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def mpiexec() -> str | None:
    """The one beside this interpreter, or in PATH."""
    return shutil.which("mpiexec", path=program_path())


def mpi_environ(transport: str = "auto") -> dict[str, str]:
    """What lets Open MPI run as root; transport "tcp": it, MPICH and rabit use loopback."""
    found = {f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")}
    if transport != "tcp":
        return found | {"RABIT_TRANSPORT": transport}
    return found | {
        "RABIT_TRANSPORT": "tcp",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "UCX_TLS": "tcp,self",
        "MPIR_CVAR_NOLOCAL": "1",
    }


def launcher(name: str, ranks: int, flags: Sequence[str]) -> list[str]:
    """What starts Python on so many ranks; ends before the arguments of Python."""
    if name == "mpiexec":
        program = mpiexec()
        assert program is not None, "there is no mpiexec"
        return [program, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *flags, sys.executable]
    if name == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return [sys.executable, *torchrun, *flags]
    if name == "alone":
        return [sys.executable]
    return [sys.executable, "-m", "rabit.launch", "-np", str(ranks), *flags, sys.executable]


def on_ranks(
    function: Callable[[Any], Any],
    o: Any,
    ranks: int,
    *,
    by: str | Sequence[str] = "rabitrun",
    flags: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    run: Callable[[list[str], Path], None] | None = None,
    quiet: bool = False,
    timeout: float = 1800,
) -> list[Any]:
    """What `function(o)` has returned on every rank, in rank order; it must be at the top of a module of this folder.

    by: "rabitrun" with `flags`, "mpiexec", "torchrun", "alone", or a command that ends in an interpreter.
    run: starts Python with some words on all ranks itself, and gets the folder of the run (links.py).
    `o.folder` is an empty folder that all ranks see.  Raises SystemExit if a rank fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = {"module": module_of(function), "function": function.__name__, "options": {**vars(o), "folder": name}}
        (folder / "task").write_text(json.dumps(task, default=str))
        program = [str(BENCH), "--rank", str(folder / "task")]
        if run is not None:
            run(program, folder)
        else:
            start = launcher(by, ranks, flags) if isinstance(by, str) else list(by)
            everywhere = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": program_path(), **(environ or {})}
            kept: dict[str, Any] = {"capture_output": True, "text": True} if quiet else {}
            done = subprocess.run([*start, *program], env=everywhere, timeout=timeout, check=False, **kept)
            if done.returncode:
                said = f":\n{done.stdout[-2000:]}{done.stderr[-4000:]}" if quiet else ""
                raise SystemExit(f"{function.__name__}: the ranks ended with {done.returncode}{said}")
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def module_of(function: Callable[..., Any]) -> str:
    return Path(inspect.getfile(function)).stem


def run_rank(path: str) -> None:
    """One rank: see `on_ranks`."""
    task = json.loads(Path(path).read_text())
    module = __import__(task["module"])
    o = SimpleNamespace(**task["options"])
    o.folder = Path(o.folder)
    rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")
    found = getattr(module, task["function"])(o)
    (o.folder / f"{rank}.json").write_text(json.dumps(found))
    if getattr(o, "ends_at_once", False):
        os._exit(0)
