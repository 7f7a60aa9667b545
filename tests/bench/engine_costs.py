"""What calls of the engine cost: many tensors, even parts, the control plane, messages read once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import case, integers, median, on_ranks, table, turns


def batch_of(arrays: list[np.ndarray], op: Any) -> Any:
    """In-place allreduces, as one batch; what comes first is the most urgent."""
    import rabit

    def request(number: int, array: np.ndarray) -> Any:
        view = rabit.TensorView(array.ctypes.data, array.shape, rabit.DType.FLOAT32, keepalive=array)
        urgency = {"priority": len(arrays) - number}
        return rabit.Request(kind=rabit.Kind.ALLREDUCE, name=f"g{number}", op=op, input=view, output=view, **urgency)

    return rabit.default_engine().prepare([request(number, array) for number, array in enumerate(arrays)])


@case(ranks=2, tensors=1000, bytes=1024, steps=60)
def many_tensors(o: Any) -> None:
    """Many small gradients: engine time per step, Python time per submit, and torch's gloo beside it."""
    found = on_ranks(many_tensors_rank, o, o.ranks)[0]
    print(f"{o.tensors} tensors of {o.bytes} bytes, {o.ranks} ranks, medians of {o.steps // 2} steps each")
    rows = []
    for way, samples in found.items():
        submit, step = (median(column) for column in zip(*samples, strict=True))
        rows.append([way, f"{submit * 1e6:.2f} us", f"{step * 1e3:.2f} ms", f"{o.tensors / step:,.0f}"])
    table(["", "submit, a tensor", "step", "tensors/s"], rows)


def many_tensors_rank(o: Any) -> dict[str, list[tuple[float, float]]]:
    import torch
    import torch.distributed as dist

    import rabit

    rabit.init()
    batch = batch_of([np.ones(o.bytes // 4, np.float32) for _ in range(o.tensors)], rabit.Sum)
    place = {"rank": rabit.rank(), "world_size": rabit.size()}
    dist.init_process_group("gloo", init_method=f"file://{o.folder}/gloo", **place)
    tensors = [torch.ones(o.bytes // 4) for _ in range(o.tensors)]

    def step(submit: Any, wait: Any) -> tuple[float, float]:
        rabit.barrier()
        began = time.perf_counter()
        handles = submit()
        submitted = time.perf_counter() - began
        for handle in handles:
            wait(handle)
        return submitted / o.tensors, time.perf_counter() - began

    def one_by_one() -> list[Any]:
        return [handle for index in range(o.tensors) for handle in batch.submit([index])]

    def of_gloo() -> list[Any]:
        return [dist.all_reduce(each, async_op=True) for each in tensors]

    ours = {"one call for each": one_by_one, "one call for all": batch.submit}
    found = turns(
        {name: lambda form=form: step(form, lambda h: h.wait()) for name, form in ours.items()}, o.steps // 2, warm=2
    )
    gloo = turns({"gloo, all asynchronous": lambda: step(of_gloo, lambda w: w.wait())}, max(3, o.steps // 6))
    dist.destroy_process_group()
    rabit.shutdown()
    return found | gloo


@case(ranks=4, pairs=500, kib=64, steps=10)
def even_parts(o: Any) -> None:
    """Reduce-scatters and allgathers of even parts against allreduces of the same bytes.

    A step is either `pairs` allreduces or `pairs` pairs of a reduce-scatter and an allgather, in two grouped calls.
    Shown are the median and the least time of a step, and the processor time of all ranks, which a loaded machine
    changes less.
    """
    found = on_ranks(even_parts_rank, o, o.ranks)
    rows = []
    for name in found[0]:
        wall = [each[0] for each in found[0][name]]
        busy = sum(median(each[1] for each in rank[name]) for rank in found)
        rows.append([name, *(f"{seconds * 1e3:.1f} ms" for seconds in (median(wall), min(wall), busy))])
    table(["", "step", "least", "processors"], rows)


def even_parts_rank(o: Any) -> dict[str, list[tuple[float, float]]]:
    import rabit

    rabit.init()
    full = [np.full(o.kib * 256, rabit.rank() + 1, np.float32) for _ in range(o.pairs)]
    part = [np.array_split(each, rabit.size())[rabit.rank()].copy() for each in full]

    def pairs() -> None:
        rabit.grouped_reducescatter(full, name="scatter", op=rabit.Sum)
        rabit.grouped_allgather(part, name="gather")

    def pairs_at_once() -> None:
        scattered = rabit.grouped_reducescatter_async(full, name="scatter2", op=rabit.Sum)
        rabit.grouped_allgather(part, name="gather2")
        scattered.result()

    def timed(form: Any) -> tuple[float, float]:
        rabit.barrier()
        began, busy = time.perf_counter(), time.process_time()
        form()
        return time.perf_counter() - began, time.process_time() - busy

    forms = {
        "allreduces": lambda: rabit.grouped_allreduce(full, name="sum", op=rabit.Sum),
        "pairs": pairs,
        "pairs at once": pairs_at_once,
    }
    found = turns({name: lambda form=form: timed(form) for name, form in forms.items()}, o.steps, warm=2)
    rabit.shutdown()
    return found


@case(ranks=integers("2,4,8"), tensors=integers("10,100,1000,10000"), steps=30, rate=10.0)
def control_plane(o: Any) -> None:
    """What a steady step costs the control plane: bytes, messages and the engine thread's CPU.

    Every rank submits the same tensors of 4 bytes, `rate` times a second, as training does. Counted from the engine's
    statistics after the first steps: control bytes and messages of rank 0, which talks to everybody, and of the
    busiest other rank, and the CPU time of the thread "rabit-engine" as a share of one core.
    """
    rows = []
    for ranks in o.ranks:
        for tensors in o.tensors:
            o.count = tensors
            root, *others = on_ranks(control_plane_rank, o, ranks)
            most = [max(column) for column in zip(*others, strict=True)]
            for who, each in (("rank 0", root), ("another", most)):
                numbers = [*(f"{value:.0f}" for value in each[:2]), *(f"{value:.1f}" for value in each[2:4])]
                rows.append(
                    [f"{ranks} ranks, {tensors} tensors, {who}", *numbers, f"{each[4]:.2f} %", f"{1 / each[5]:.1f}"]
                )
    table(["means per step", "B out", "B in", "messages out", "in", "engine", "steps/s"], rows)


def engine_cpu_seconds() -> float:
    """CPU time of this process's engine thread, at the resolution of the scheduler's clock."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "rabit-engine":
            return int((task / "schedstat").read_text().split()[0]) * 1e-9
    raise SystemExit("no thread is called rabit-engine: is the native library current?")


def control_plane_rank(o: Any) -> list[float]:
    import rabit

    rabit.init()
    engine, values = rabit.default_engine(), np.ones(o.count, np.float32)
    batch = batch_of([values[index : index + 1] for index in range(o.count)], rabit.Max)

    def step() -> None:
        for handle in batch.submit():
            handle.wait()

    for _ in range(5):
        step()
    counted = ("bytes_sent", "bytes_received", "messages_sent", "messages_received")
    before = engine.statistics()["controller"]
    cpu, began = engine_cpu_seconds(), time.perf_counter()
    pause = threading.Event()  # nobody sets it: a sleep that ends on time
    for index in range(o.steps):
        step()
        pause.wait(max(0.0, began + (index + 1) / o.rate - time.perf_counter()))
    wall = time.perf_counter() - began
    cpu, after = engine_cpu_seconds() - cpu, engine.statistics()["controller"]
    rabit.shutdown()
    return [*((after[key] - before[key]) / o.steps for key in counted), 100 * cpu / wall, wall / o.steps]


@case(ranks=2, turns=40)
def single_copy(o: Any) -> None:
    """Collectives over shared memory: long messages read from the sender's memory, and copied twice.

    Every rank holds one engine of each kind; they take turns on the same buffers. A ratio is the median of copied /
    read, above 1 reading is faster, with the middle half of the turns; `cpu` is the same of the processor time of all
    ranks.
    """
    ranks = on_ranks(single_copy_rank, o, o.ranks, environ={"RABIT_TRANSPORT": "shm"})
    rows = []
    for name, taken in ranks[0].items():
        clock = [c[0] / r[0] for c, r in zip(taken["copied"], taken["read"], strict=True)]
        cpu = [
            sum(rank[name]["copied"][turn][1] for rank in ranks) / sum(rank[name]["read"][turn][1] for rank in ranks)
            for turn in range(o.turns)
        ]
        low, middle, high = np.percentile(clock, [25, 50, 75])
        times = [f"{median(each[0] for each in taken[kind]) * 1e3:.2f} ms" for kind in ("read", "copied")]
        rows.append([name, *times, f"{middle:.2f} ({low:.2f}-{high:.2f})", f"{median(cpu):.2f}"])
    table([f"{o.ranks} ranks", "read", "copied", "copied / read", "cpu"], rows)


def single_copy_rank(o: Any) -> dict[str, dict[str, list[tuple[float, float]]]]:
    import rabit

    rabit.init()
    config = rabit.default_engine().config
    engines = {
        kind: rabit.Engine(config.replace(shm_single_copy=reads), epoch=(1 << 21) + reads)
        for kind, reads in (("read", True), ("copied", False))
    }

    def timed(run: Any, engine: Any) -> tuple[float, float]:
        rabit.ordered_barrier(engine=engine)
        began, used = time.perf_counter(), time.process_time()
        run(engine)
        return time.perf_counter() - began, time.process_time() - used

    found = {}
    for size in (16 << 20, 64 << 20):
        full, part = np.ones(size // 4, np.float32), np.ones(size // 4 // rabit.size(), np.float32)
        operations = {
            "allreduce": lambda engine, x=full: rabit.allreduce_(x, name="r", op=rabit.Max, engine=engine),
            "allgather": lambda engine, x=part: rabit.allgather(x, name="g", engine=engine),
            "broadcast": lambda engine, x=full: rabit.broadcast_(x, 0, name="b", engine=engine),
            "alltoall": lambda engine, x=full: rabit.alltoall(x, name="t", engine=engine),
        }
        for name, run in operations.items():
            kinds = {kind: lambda run=run, each=each: timed(run, each) for kind, each in engines.items()}
            found[f"{size >> 20} MiB {name}"] = turns(kinds, o.turns)
    for engine in engines.values():
        engine.close()
    rabit.shutdown()
    return found
