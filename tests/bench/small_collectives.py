"""Small collectives from Python: torch tensors and arrays through rabit, beside gloo and Open MPI.

    python tests/bench/small_collectives.py [--ranks 2] [--bytes 1024] [--turns 5] [--transport auto]
    python tests/bench/small_collectives.py --beside FOLDER

A job for each library in each turn, so that none has the threads of another; each makes --calls calls of a form in a
row. Bytes are those of an input. Reported are medians over the turns of the median call of rank 0.
FOLDER: another build of rabit, as `pip install --target FOLDER` makes it, which takes turns with the installed one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Form = Callable[[], object]
MARK = "RESULT "


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--beside", type=Path, help="a folder with another build of rabit")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


# --- the forms ------------------------------------------------------------------------------------


def rabit_forms(size: int) -> dict[str, Form]:
    import torch

    import rabit
    import rabit_torch

    torch.set_num_threads(1)
    rabit.init()
    tensor = torch.ones(size // 4)
    forms: dict[str, Form] = {}
    for prefix, module, source in (
        ("tensor", rabit_torch, tensor),
        ("array", rabit, tensor.numpy()),
    ):
        calls: dict[str, tuple[Any, ...]] = {
            "allreduce_": (module.allreduce_,),
            "allreduce": (module.allreduce,),
            "broadcast_": (module.broadcast_, 0),
            "broadcast": (module.broadcast, 0),
            "allgather": (module.allgather,),
            "reducescatter": (module.reducescatter,),
            "alltoall": (module.alltoall,),
        }
        for name, (call, *rest) in calls.items():
            forms[f"{prefix} {name}"] = _named(call, (source, *rest), f"{prefix}.{name}.{size}")
    said = {"epoch": 3, "loss": 0.25}
    forms["broadcast_object"] = lambda: rabit.broadcast_object(said, 0, "said")
    forms["allgather_object"] = lambda: rabit.allgather_object(said, "heard")
    forms["barrier"] = rabit.barrier
    return forms


def _named(call: Callable[..., object], arguments: tuple[Any, ...], name: str) -> Form:
    return lambda: call(*arguments, name=name)


def gloo_forms(size: int) -> dict[str, Form]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    tensor, all_of_them = torch.ones(size // 4), torch.zeros(size // 4 * ranks)
    part, received = torch.zeros(size // 4 // ranks), torch.zeros(size // 4)
    said = {"epoch": 3, "loss": 0.25}
    return {
        "allreduce_": lambda: dist.all_reduce(tensor),
        "broadcast_": lambda: dist.broadcast(tensor, 0),
        "allgather": lambda: dist.all_gather_into_tensor(all_of_them, tensor),
        "reducescatter": lambda: dist.reduce_scatter_tensor(part, tensor),
        "alltoall": lambda: dist.all_to_all_single(received, tensor),
        "broadcast_object": lambda: dist.broadcast_object_list([said], 0),
        "allgather_object": lambda: dist.all_gather_object([None] * ranks, said),
        "barrier": dist.barrier,
    }


def mpi_forms(size: int) -> dict[str, Form]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    array, received = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)
    all_of_them = np.zeros(size // 4 * world.size, np.float32)
    part = np.zeros(size // 4 // world.size, np.float32)
    said = {"epoch": 3, "loss": 0.25}
    return {
        "allreduce_": lambda: world.Allreduce(MPI.IN_PLACE, array),
        "broadcast_": lambda: world.Bcast(array, 0),
        "allgather": lambda: world.Allgather(array, all_of_them),
        "reducescatter": lambda: world.Reduce_scatter_block(array, part),
        "alltoall": lambda: world.Alltoall(array, received),
        "broadcast_object": lambda: world.bcast(said, 0),
        "allgather_object": lambda: world.allgather(said),
        "barrier": world.Barrier,
    }


FORMS = {"rabit": rabit_forms, "gloo": gloo_forms, "mpi": mpi_forms}


# --- one rank -------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    found = {}
    forms = FORMS[options.worker](options.bytes)
    for form in forms.values():  # Ranks that have just started are slower, whatever they call.
        for _ in range(options.calls):
            form()
    for name, form in forms.items():
        taken = []
        for _ in range(options.calls):
            begin = time.perf_counter()
            form()
            taken.append(time.perf_counter() - begin)
        found[name] = statistics.median(taken)
    ranks = {
        each: os.environ.get(each, "0") for each in ("RABIT_RANK", "RANK", "OMPI_COMM_WORLD_RANK")
    }
    if set(ranks.values()) == {"0"}:
        print(MARK + json.dumps(found), flush=True)


# --- all of them ----------------------------------------------------------------------------------


def run(library: str, options: argparse.Namespace, folder: Path | None = None) -> dict[str, float]:
    """Medians of one job, by form."""
    rabitrun = [sys.executable, "-m", "rabit.launch"]
    launchers = {
        "rabit": [*rabitrun, "-np", str(options.ranks)],
        "gloo": [
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={options.ranks}",
        ],
        "mpi": ["mpiexec", "--oversubscribe", "--bind-to", "none", "-n", str(options.ranks)],
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RABIT_TRANSPORT": options.transport}
    environment["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    )
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if folder is not None:
        environment["PYTHONPATH"] = str(folder.resolve())
    command = [*launchers[library], *([] if library == "gloo" else [sys.executable])]
    command += [str(Path(__file__).resolve()), "--worker", library]
    command += ["--bytes", str(options.bytes), "--calls", str(options.calls)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if MARK in line]
    if done.returncode or not lines:
        sys.exit(f"{library} has failed with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    found: dict[str, float] = json.loads(lines[0].split(MARK, 1)[1])
    return found


def main() -> None:
    options = parse()
    if options.worker:
        work(options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    columns: dict[str, tuple[str, Path | None]] = {"rabit": ("rabit", None)}
    if options.beside:
        columns["other build"] = ("rabit", options.beside)
    columns["gloo"] = ("gloo", None)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if importlib.util.find_spec("mpi4py") and shutil.which("mpiexec", path=path):
        columns["Open MPI"] = ("mpi", None)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in columns}
    for turn in range(options.turns):
        print(f"turn {turn + 1} of {options.turns}", file=sys.stderr)
        for name, (library, folder) in columns.items():
            for form, taken in run(library, options, folder).items():
                found[name].setdefault(form, []).append(taken * 1e6)
    print(f"{options.ranks} ranks, {options.transport}, {options.bytes} bytes, us")
    print(f"{'':<22}" + "".join(f"{name:>13}" for name in columns))
    for form in found["rabit"]:
        row = ""
        for name, (library, _) in columns.items():
            values = found[name].get(form if library == "rabit" else form.split()[-1])
            row += f"{statistics.median(values):13.1f}" if values else f"{'':>13}"
        print(f"{form:<22}{row}")


if __name__ == "__main__":
    main()
