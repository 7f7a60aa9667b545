"""Small calls from Python: rabit with NumPy and torch, beside gloo and Open MPI, in turns in one run.

    python tests/bench/front_door.py [--ranks 2] [--turns 7] [--calls 200] [--bytes 1024,65536]

Every rank is a process of mpiexec where mpi4py is there, else of rabitrun, and holds all libraries.
In each turn every form makes --calls calls in a row behind a barrier; the order of the forms
changes.  Reported are the medians over the turns of the mean call of the slowest rank, and processor
time and context switches of a call on rank 0, which tell more where the machine has other work.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
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
BATCH = 32


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--calls", type=int, default=200, help="in a row, of each form in a turn")
    parser.add_argument("--bytes", default="1024,65536")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def start_ranks(options: argparse.Namespace) -> int:
    """Runs this file again, on every rank."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    mpiexec = shutil.which("mpiexec", path=path) if importlib.util.find_spec("mpi4py") else None
    ranks = str(options.ranks)
    launcher = [sys.executable, "-m", "rabit.launch", "-np", ranks]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if mpiexec is None:
        print("Open MPI is left out: no mpiexec or no mpi4py")
    else:
        launcher = [mpiexec, "--oversubscribe", "--bind-to", "none", "-n", ranks]
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment["FRONT_DOOR_MPI"] = "1"
    command = [*launcher, sys.executable, str(Path(__file__).resolve()), "--worker", *sys.argv[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


# --- the forms ------------------------------------------------------------------------------------


def array_forms(size: int) -> dict[str, Form]:
    import rabit

    array, label = np.ones(size // 4, np.float32), f"array.{size}"
    return {
        "array allreduce_": lambda: rabit.allreduce_(array, name=label),
        "array allreduce_ unnamed": lambda: rabit.allreduce_(array),
        "array allreduce": lambda: rabit.allreduce(array, name=f"{label}.new"),
        "array async_ + synchronize": lambda: rabit.synchronize(
            rabit.allreduce_async_(array, name=f"{label}.async")
        ),
        "array ordered": lambda: rabit.ordered_allreduce_(array),
    }


def tensor_forms(size: int) -> dict[str, Form]:
    import torch
    import torch.distributed as dist

    import rabit_torch

    tensor, label = torch.ones(size // 4), f"tensor.{size}"
    leaf = torch.ones(size // 4, requires_grad=True)
    ours = dist.new_group(backend="rabit")
    return {
        "tensor allreduce_": lambda: rabit_torch.allreduce_(tensor, name=label),
        "tensor allreduce_ unnamed": lambda: rabit_torch.allreduce_(tensor),
        "tensor allreduce": lambda: rabit_torch.allreduce(tensor, name=f"{label}.new"),
        "tensor allreduce, gradient": lambda: rabit_torch.allreduce(leaf, name=f"{label}.leaf"),
        "tensor async_ + synchronize": lambda: rabit_torch.synchronize(
            rabit_torch.allreduce_async_(tensor, name=f"{label}.async")
        ),
        "c10d rabit all_reduce": lambda: dist.all_reduce(tensor, group=ours),
        "c10d gloo all_reduce": lambda: dist.all_reduce(tensor),
    }


def submit_forms(size: int) -> dict[str, Form]:
    """What handing over takes; what the ranks then do is waited for outside of the time.

    Processor time is that of the calling thread here: the engines work meanwhile, and where ranks
    have no cores to spare they take them from some of the rows, so it is the median row that counts.
    """
    import torch

    import rabit_torch

    tensors = [torch.ones(size // 4) for _ in range(BATCH)]
    names = [f"submit.{size}.{index}" for index in range(BATCH)]

    def one_by_one() -> object:
        begin, used = time.perf_counter(), time.thread_time()
        handles = [
            rabit_torch.allreduce_async_(tensor, name=name)
            for tensor, name in zip(tensors, names, strict=True)
        ]
        taken, used = time.perf_counter() - begin, time.thread_time() - used
        for handle in handles:
            rabit_torch.synchronize(handle)
        return taken / BATCH, used / BATCH

    def batched() -> object:
        begin, used = time.perf_counter(), time.thread_time()
        handle = rabit_torch.grouped_allreduce_async_(tensors, name=f"batch.{size}")
        taken, used = time.perf_counter() - begin, time.thread_time() - used
        rabit_torch.synchronize(handle)
        return taken / BATCH, used / BATCH

    return {"tensor submit": one_by_one, f"tensor submit, {BATCH} at once": batched}


def mpi_forms(size: int) -> dict[str, Form]:
    from mpi4py import MPI

    array = np.ones(size // 4, np.float32)
    size = np.float32(MPI.COMM_WORLD.Get_size())

    def average() -> None:
        """What rabit's forms give unless they are told otherwise."""
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
        np.divide(array, size, out=array)

    return {
        "Open MPI Allreduce": lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array),
        "Open MPI Allreduce, averaged": average,
    }


# --- one rank -------------------------------------------------------------------------------------


def turn(form: Form, calls: int) -> tuple[float, float, float]:
    """Seconds, processor seconds and context switches of a call."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    answers = [form() for _ in range(calls)]
    taken = (time.perf_counter() - begin) / calls
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / calls
    if isinstance(answers[0], tuple):  # It has looked at the clocks itself.
        columns: Any = zip(*answers, strict=True)
        taken, used = (statistics.median(each) for each in columns)
    return taken, used, (after.ru_nvcsw - before.ru_nvcsw) / calls


def work(options: argparse.Namespace) -> None:
    import rabit

    has_mpi = os.environ.get("FRONT_DOOR_MPI") == "1"
    if has_mpi:
        import mpi4py.MPI  # noqa: F401  # Before anybody starts threads.
    rabit.init()
    has_torch = importlib.util.find_spec("torch") is not None
    store: Any = None
    if has_torch:
        import torch
        import torch.distributed as dist

        import rabit_torch.distributed  # noqa: F401

        torch.set_num_threads(1)
        # The port is the kernel's choice; the others learn it through rabit.
        if rabit.rank() == 0:
            store = dist.TCPStore("127.0.0.1", 0, rabit.size(), True, wait_for_workers=False)
        port = rabit.broadcast_object(store.port if store is not None else None, 0)
        if store is None:
            store = dist.TCPStore("127.0.0.1", port, rabit.size(), False)
        dist.init_process_group("gloo", store=store, rank=rabit.rank(), world_size=rabit.size())
    for size in (int(each) for each in options.bytes.split(",")):
        forms = array_forms(size)
        if has_torch:
            forms |= tensor_forms(size) | submit_forms(size)
        if has_mpi:
            forms |= mpi_forms(size)
        measure(size, forms, options)
    if has_torch:
        dist.destroy_process_group()
    rabit.shutdown()


def measure(size: int, forms: dict[str, Form], options: argparse.Namespace) -> None:
    import rabit

    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in forms}
    names = list(forms)
    for number in range(-1, options.turns):  # The first is not counted.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            calls = options.calls if "submit" not in name else max(4, options.calls // BATCH)
            rabit.barrier(name="turn")
            measured = turn(forms[name], calls)
            slowest = rabit.allreduce(np.array([measured[0]]), name="slowest", op=rabit.Max)
            if number >= 0:
                found[name].append((float(slowest[0]), *measured[1:]))
    if rabit.rank() == 0:
        show(size, found)


def show(size: int, found: dict[str, list[tuple[float, float, float]]]) -> None:
    print(f"\n{size} bytes, load average {os.getloadavg()[0]:.1f}")
    print(f"  {'':<30} {'us/call':>9} {'x gloo':>7} {'x array':>8} {'cpu us':>8} {'switches':>9}")
    medians = {
        name: [statistics.median(column) for column in zip(*turns, strict=True)]
        for name, turns in found.items()
    }
    gloo = medians.get("c10d gloo all_reduce", [float("nan")])[0]
    for name, (taken, used, switches) in medians.items():
        beside = taken / medians["array allreduce_"][0]
        print(
            f"  {name:<30} {taken * 1e6:9.1f} {gloo / taken:7.2f} {beside:8.2f} "
            f"{used * 1e6:8.1f} {switches:9.2f}"
        )
    sys.stdout.flush()


def main() -> int:
    options = parse()
    if not options.worker:
        return start_ranks(options)
    work(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
