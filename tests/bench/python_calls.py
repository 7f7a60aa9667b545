"""Calls from Python: rabit with NumPy and torch, beside gloo and Open MPI."""

from __future__ import annotations

import importlib.util
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from harness import (
    Option,
    case,
    choice,
    integers,
    median,
    mpi_environ,
    mpiexec,
    on_ranks,
    seconds_each,
    slowest,
    table,
    turns,
    words,
)

Form = Callable[[], object]
BATCH = 32


def mpi_is_there() -> bool:
    if mpiexec() is not None and importlib.util.find_spec("mpi4py"):
        return True
    print("Open MPI is left out: no mpiexec or no mpi4py")
    return False


# --- front_door -----------------------------------------------------------------------------------------------------


@case(ranks=2, turns=7, calls=200, bytes=integers("1024,65536"))
def front_door(o: Any) -> None:
    """Small calls from Python: rabit with NumPy and torch, beside gloo and Open MPI, in turns in one run.

    Every rank is a process of mpiexec where mpi4py is there, else of rabitrun, and holds all libraries. In each turn
    every form makes `calls` calls in a row behind a barrier. Reported are the medians over the turns of the mean call
    of the slowest rank, and processor time and context switches of a call on rank 0, which tell more where the
    machine has other work.
    """
    o.has_mpi = mpi_is_there()
    by = "mpiexec" if o.has_mpi else "rabitrun"
    for size, found in on_ranks(front_door_rank, o, o.ranks, by=by, environ=mpi_environ())[0].items():
        medians = {name: [median(column) for column in zip(*each, strict=True)] for name, each in found.items()}
        gloo, array = (medians.get("c10d gloo all_reduce", [float("nan")])[0], medians["array allreduce_"][0])
        rows = [
            [
                name,
                f"{taken * 1e6:.1f}",
                f"{gloo / taken:.2f}",
                f"{taken / array:.2f}",
                f"{used * 1e6:.1f}",
                f"{switches:.2f}",
            ]
            for name, (taken, used, switches) in medians.items()
        ]
        heads = [f"{size} bytes, load {os.getloadavg()[0]:.1f}", "us/call", "x gloo", "x array", "cpu us", "switches"]
        table(heads, rows)


def front_door_rank(o: Any) -> dict[str, dict[str, list[tuple[float, float, float]]]]:
    if o.has_mpi:
        import mpi4py.MPI  # noqa: F401  # Before anybody starts threads.
    import torch
    import torch.distributed as dist

    import rabit
    import rabit_torch.distributed  # noqa: F401

    rabit.init()
    torch.set_num_threads(1)
    place = {"rank": rabit.rank(), "world_size": rabit.size()}
    dist.init_process_group("gloo", init_method=f"file://{o.folder}/gloo", **place)
    found = {}
    for size in o.bytes:
        forms = (
            array_forms(size) | tensor_forms(size) | submit_forms(size) | (averaged_forms(size) if o.has_mpi else {})
        )
        calls = {name: max(4, o.calls // BATCH) if "submit" in name else o.calls for name in forms}
        found[size] = turns(
            {name: lambda form=form, count=calls[name]: one_turn(form, count) for name, form in forms.items()}, o.turns
        )
    dist.destroy_process_group()
    rabit.shutdown()
    return found


def one_turn(form: Form, calls: int) -> tuple[float, float, float]:
    """Seconds of the slowest rank, processor seconds and context switches of a call."""
    import rabit

    rabit.barrier(name="turn")
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    answers = [form() for _ in range(calls)]
    taken = (time.perf_counter() - began) / calls
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / calls
    if isinstance(answers[0], tuple):  # It has looked at the clocks itself.
        taken, used = (median(each) for each in zip(*answers, strict=True))
    return slowest(taken), used, (after.ru_nvcsw - before.ru_nvcsw) / calls


def array_forms(size: int) -> dict[str, Form]:
    import rabit

    array, label = np.ones(size // 4, np.float32), f"array.{size}"
    return {
        "array allreduce_": lambda: rabit.allreduce_(array, name=label),
        "array allreduce_ unnamed": lambda: rabit.allreduce_(array),
        "array allreduce": lambda: rabit.allreduce(array, name=f"{label}.new"),
        "array async_ + synchronize": lambda: rabit.synchronize(rabit.allreduce_async_(array, name=f"{label}.async")),
        "array ordered": lambda: rabit.ordered_allreduce_(array),
    }


def tensor_forms(size: int) -> dict[str, Form]:
    import torch
    import torch.distributed as dist

    import rabit_torch

    tensor, label = torch.ones(size // 4), f"tensor.{size}"
    leaf, ours = torch.ones(size // 4, requires_grad=True), dist.new_group(backend="rabit")
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

    Processor time is that of the calling thread here: the engines work meanwhile, and where ranks have no cores to
    spare they take them from some of the rows, so it is the median row that counts.
    """
    import torch

    import rabit_torch

    tensors = [torch.ones(size // 4) for _ in range(BATCH)]
    names = [f"submit.{size}.{index}" for index in range(BATCH)]

    def looked_at(submit: Callable[[], list[Any]]) -> tuple[float, float]:
        began, used = time.perf_counter(), time.thread_time()
        handles = submit()
        taken, used = time.perf_counter() - began, time.thread_time() - used
        for handle in handles:
            rabit_torch.synchronize(handle)
        return taken / BATCH, used / BATCH

    def one_by_one() -> list[Any]:
        return [rabit_torch.allreduce_async_(x, name=name) for x, name in zip(tensors, names, strict=True)]

    def batched() -> list[Any]:
        return [rabit_torch.grouped_allreduce_async_(tensors, name=f"batch.{size}")]

    return {
        "tensor submit": lambda: looked_at(one_by_one),
        f"tensor submit, {BATCH} at once": lambda: looked_at(batched),
    }


def averaged_forms(size: int) -> dict[str, Form]:
    from mpi4py import MPI

    array, ranks = np.ones(size // 4, np.float32), np.float32(MPI.COMM_WORLD.Get_size())

    def average() -> None:
        """What rabit's forms give unless they are told otherwise."""
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
        np.divide(array, ranks, out=array)

    return {
        "Open MPI Allreduce": lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array),
        "Open MPI Allreduce, averaged": average,
    }


# --- small_collectives ----------------------------------------------------------------------------------------------


@case(
    ranks=2, bytes=1024, turns=5, calls=200, transport=choice("auto", "tcp", "shm"),
    beside=Option("", help="a folder with another build of rabit, as `pip install --target FOLDER` makes it"),
)  # fmt: skip
def small_collectives(o: Any) -> None:
    """Small collectives from Python: torch tensors and arrays through rabit, beside gloo and Open MPI.

    A job for each library in each turn, so that none has the threads of another; each makes `calls` calls of a form
    in a row. Bytes are those of an input. Reported are medians over the turns of the median call of rank 0.
    """

    def job(library: str, folder: str = "") -> dict[str, float]:
        by = {"rabit": "rabitrun", "gloo": "torchrun", "mpi": "mpiexec"}[library]
        environ = mpi_environ(o.transport) | ({"PYTHONPATH": str(Path(folder).resolve())} if folder else {})
        task = SimpleNamespace(**{**vars(o), "library": library})
        return on_ranks(small_rank, task, o.ranks, by=by, environ=environ, quiet=True, timeout=300)[0]

    columns = {"rabit": lambda: job("rabit")}
    if o.beside:
        columns["other build"] = lambda: job("rabit", o.beside)
    columns["gloo"] = lambda: job("gloo")
    if mpi_is_there():
        columns["Open MPI"] = lambda: job("mpi")
    found = turns(columns, o.turns, warm=0)
    rows = []
    for form in found["rabit"][0]:
        row = [form]
        for name, each in found.items():
            key = form if name in ("rabit", "other build") else form.split()[-1]
            row.append(f"{1e6 * median(turn[key] for turn in each):.1f}" if key in each[0] else "")
        rows.append(row)
    table([f"{o.ranks} ranks, {o.transport}, {o.bytes} bytes, us", *found], rows)


def small_rank(o: Any) -> dict[str, float]:
    forms = {"rabit": rabit_forms, "gloo": gloo_forms, "mpi": mpi_forms}[o.library](o.bytes)
    for form in forms.values():  # Ranks that have just started are slower, whatever they call.
        for _ in range(o.calls):
            form()
    return {name: median(seconds_each(form, o.calls)) for name, form in forms.items()}


SAID = {"epoch": 3, "loss": 0.25}


def rabit_forms(size: int) -> dict[str, Form]:
    import torch

    import rabit
    import rabit_torch

    torch.set_num_threads(1)
    rabit.init()
    tensor, forms = torch.ones(size // 4), {}
    for prefix, module, source in (("tensor", rabit_torch, tensor), ("array", rabit, tensor.numpy())):
        for name in ("allreduce_", "allreduce", "broadcast_", "broadcast", "allgather", "reducescatter", "alltoall"):
            root = (0,) if name.startswith("broadcast") else ()
            forms[f"{prefix} {name}"] = named(getattr(module, name), (source, *root), f"{prefix}.{name}.{size}")
    forms["broadcast_object"] = lambda: rabit.broadcast_object(SAID, 0, "said")
    forms["allgather_object"] = lambda: rabit.allgather_object(SAID, "heard")
    forms["barrier"] = rabit.barrier
    return forms


def named(call: Callable[..., object], given: tuple[Any, ...], name: str) -> Form:
    return lambda: call(*given, name=name)


def gloo_forms(size: int) -> dict[str, Form]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    tensor, whole = torch.ones(size // 4), torch.zeros(size // 4 * ranks)
    part, received = torch.zeros(size // 4 // ranks), torch.zeros(size // 4)
    return {
        "allreduce_": lambda: dist.all_reduce(tensor),
        "broadcast_": lambda: dist.broadcast(tensor, 0),
        "allgather": lambda: dist.all_gather_into_tensor(whole, tensor),
        "reducescatter": lambda: dist.reduce_scatter_tensor(part, tensor),
        "alltoall": lambda: dist.all_to_all_single(received, tensor),
        "broadcast_object": lambda: dist.broadcast_object_list([SAID], 0),
        "allgather_object": lambda: dist.all_gather_object([None] * ranks, SAID),
        "barrier": dist.barrier,
    }


def mpi_forms(size: int) -> dict[str, Form]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    array, received = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)
    whole, part = (np.zeros(size // 4 * world.size, np.float32), np.zeros(size // 4 // world.size, np.float32))
    return {
        "allreduce_": lambda: world.Allreduce(MPI.IN_PLACE, array),
        "broadcast_": lambda: world.Bcast(array, 0),
        "allgather": lambda: world.Allgather(array, whole),
        "reducescatter": lambda: world.Reduce_scatter_block(array, part),
        "alltoall": lambda: world.Alltoall(array, received),
        "broadcast_object": lambda: world.bcast(SAID, 0),
        "allgather_object": lambda: world.allgather(SAID),
        "barrier": world.Barrier,
    }


# --- mpi_overhead ---------------------------------------------------------------------------------------------------


@case(
    ranks=2, rounds=12, calls=20, depth=8, links=words("mpi,auto"), bytes=integers("1048576,16777216"),
    bind=choice("none", "core", help="core: each rank has one core, and its threads stay there"),
)  # fmt: skip
def mpi_overhead(o: Any) -> None:
    """The engine over MPI beside mpi4py itself: allreduce of the same buffers, in turns.

    Two tables. mpi: everything of the engine goes through MPI too (RABIT_MPI_SHM=0). auto, the default of the
    backend: ranks of one host use rabit's shared memory, so that mpi4py alone calls MPI. Ordered: one operation at a
    time without negotiation, the form that makes the same promise as MPI, one order of calls on every rank. Blocking:
    one at a time, submit to result. In flight: a step of `depth` operations that are submitted together and waited
    for at the end, beside as many Allreduce calls one after the other; at once: the same, beside as many Iallreduce
    with one Waitall. All in place, on buffers that were just written. The table has the medians over all calls of the
    slowest rank, and the median over the rounds of the ratio of the two medians of that round, which is what noise
    disturbs least.
    """
    if not mpi_is_there():
        return
    for links in o.links:
        environ = {"RABIT_BACKEND": "mpi", "RABIT_MPI_SHM": "1" if links == "auto" else "0", **mpi_environ()}
        flags = ["--bind-to", o.bind] if o.bind != "none" else []
        found = on_ranks(mpi_overhead_rank, o, o.ranks, by="mpiexec", flags=flags, environ=environ)[0]
        rows = []
        for size, times in found["times"].items():
            for form in ("ordered", "blocking", "in flight", "in flight at once"):
                ours, theirs = (times[f"engine, {form.removesuffix(' at once')}"], times[f"mpi4py, {form}"])
                ratios = median(mine / other for mine, other in zip(ours, theirs, strict=True))
                rows.append(
                    [f"{size} {form}", f"{median(ours) * 1e6:.0f}", f"{median(theirs) * 1e6:.0f}", f"{ratios:.2f}"]
                )
        title = f"{o.ranks} ranks, inside a host by {found['inside']}, {o.depth} in flight, bound to {o.bind}"
        table([title, "engine us", "mpi4py us", "ratio"], rows)


def mpi_overhead_rank(o: Any) -> dict[str, Any]:
    from mpi4py import MPI

    import rabit

    rabit.init()
    world, times = MPI.COMM_WORLD, {}
    for size in o.bytes:
        outputs = [np.empty(size // 4, np.float32) for _ in range(o.depth)]

        def engine_many(outputs: list[Any] = outputs) -> None:
            pending = [rabit.allreduce_async_(each, name=f"m{i}", op=rabit.Sum) for i, each in enumerate(outputs)]
            for each in pending:
                each.result()

        def mpi_many(outputs: list[Any] = outputs) -> None:
            for each in outputs:
                world.Allreduce(MPI.IN_PLACE, each, op=MPI.SUM)

        def mpi_at_once(outputs: list[Any] = outputs) -> None:
            MPI.Request.Waitall([world.Iallreduce(MPI.IN_PLACE, each, op=MPI.SUM) for each in outputs])

        first = outputs[:1]
        forms = {
            "engine, blocking": (lambda x=first[0]: rabit.allreduce_(x, name="one", op=rabit.Sum), first),
            "mpi4py, blocking": (lambda x=first: mpi_many(x), first),
            "engine, ordered": (lambda x=first[0]: rabit.ordered_allreduce_(x, rabit.Sum), first),
            "mpi4py, ordered": (lambda x=first: mpi_many(x), first),
            "engine, in flight": (engine_many, outputs),
            "mpi4py, in flight": (mpi_many, outputs),
            "mpi4py, in flight at once": (mpi_at_once, outputs),
        }

        def once(form: Form, used: list[Any]) -> float:
            for each in used:
                each.fill(1.0)
            world.Barrier()
            began = time.perf_counter()
            form()
            taken = float(world.allreduce(time.perf_counter() - began, op=MPI.MAX))
            assert all(each[0] == each[-1] == world.size for each in used), "a wrong sum"
            return taken

        def a_turn(form: Form, used: list[Any], once: Any = once) -> float:
            return median([once(form, used) for _ in range(o.calls + 2)][2:])

        times[size] = turns({name: lambda pair=pair: a_turn(*pair) for name, pair in forms.items()}, o.rounds)
    inside = rabit.statistics()["backend_details"]["mpi"]["inside_host"]
    rabit.shutdown()
    return {"times": times, "inside": inside}
