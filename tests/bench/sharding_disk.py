"""State on disk: the rate of a step, next to that of the disk in the same minute and to the update alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import case, median, on_ranks, table


@case(ranks=2, millions=64, files="", rounds=5)
def sharding_disk(o: Any) -> None:
    """AdamW in float32 with shard="optimizer": bytes per second that a step reads and writes.

    millions: of parameters. The disk's rate: the same files, read and written at once by two threads of each rank
    without anything else, in turns with the steps. files: a folder on the disk to measure; empty: that of the run.
    """
    found = on_ranks(disk_rank, o, o.ranks)
    rows = []
    for name in ("disk alone", "update in memory", "step"):
        taken = median([max(each) for each in zip(*(rank[name] for rank in found), strict=True)])
        moved = found[0]["bytes"] * o.ranks
        rate = "" if name == "update in memory" else f"{moved / taken / 1e6:.0f} MB/s"
        rows.append([name, f"{taken * 1e3:.0f} ms", rate])
    alone, update, step = (float(row[1].split()[0]) for row in rows)
    print(
        f"{o.ranks} ranks, {o.millions} M parameters, AdamW: {found[0]['bytes'] * o.ranks / 1e6:.0f} MB read and "
        f"written per step; past the page cache: {found[0]['is_direct']}"
    )
    table(["", "time", "read + written"], rows)
    longest = max(alone, update)
    print(f"rate of the step / of the disk: {alone / step:.2f}; step / max(update, disk): {step / longest:.2f}")


@case(ranks=2, layers=16, batch=64, device_ms=0, where="disk", rounds=9)
def sharding_delayed(o: Any) -> None:
    """A step of training whose update runs at once, and one whose update runs while the next one computes.

    layers: of 1024 x 1024, in float32 with AdamW and shard="gradients". where: the state is, disk or cpu. In turns.
    device_ms: a pass also sleeps for so long, as where a device computes and the cores are free.
    """
    found = on_ranks(delayed_rank, o, o.ranks)
    times = {name: [max(each) for each in zip(*(rank[name] for rank in found), strict=True)] for name in found[0]}
    print(f"{o.ranks} ranks, {o.layers} M parameters, batch {o.batch}, state: {o.where}")
    table(["", "time"], [[name, f"{median(taken) * 1e3:.0f} ms"] for name, taken in times.items()])
    pairs = zip(times["delayed"], times["at once"], strict=True)
    print(f"delayed / at once, median of {o.rounds} pairs: {median([late / plain for late, plain in pairs]):.2f}")


def delayed_rank(o: Any) -> dict[str, list[float]]:
    import warnings

    import torch

    import rabit_torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rabit_torch.init()
    batch = torch.randn(o.batch, 1024)
    steps: dict[str, Any] = {}
    for name, more in (("at once", {}), ("delayed", {"delay_after": 0})):
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(o.layers)))
        optimizer = rabit_torch.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), fused=True),
            model.named_parameters(),
            shard="gradients",
            offload="cpu" if o.where == "cpu" else f"disk:{o.folder / name}",
            **more,
        )
        steps[name] = model, optimizer

    def step(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        time.sleep(o.device_ms / 1e3)
        model(batch).square().mean().backward()
        optimizer.step()

    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(o.rounds):
        for name, (model, optimizer) in steps.items():
            step(model, optimizer)
            rabit_torch.barrier()
            began = time.perf_counter()
            for _ in range(3):
                step(model, optimizer)
            times[name].append((time.perf_counter() - began) / 3)
            optimizer.state_dict()  # Nothing runs from here on.
    rabit_torch.shutdown()
    return times


def disk_rank(o: Any) -> dict[str, Any]:
    import torch

    import rabit_torch

    torch.set_num_threads(1)
    rabit_torch.init()
    count = o.millions * 1_000_000 // 16
    model = torch.nn.ParameterList(torch.zeros(count) for _ in range(16))
    kept = torch.nn.ParameterList(torch.zeros(count // o.ranks) for _ in range(16))
    folder = Path(o.files or o.folder / "state")
    optimizer = rabit_torch.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), fused=True),
        model.named_parameters(),
        shard="optimizer",
        offload=f"disk:{folder}",
    )
    in_memory = torch.optim.AdamW(kept.parameters(), fused=True)
    for parameter in kept:
        parameter.grad = torch.ones_like(parameter)
    states = optimizer._rabit_states
    tier = states.tier
    sum(parameter.sum() for parameter in model).backward()
    optimizer.step()  # The state is made.
    keys = [f"group{number}" for number in range(len(states._groups))]
    times: dict[str, list[float]] = {"disk alone": [], "update in memory": [], "step": []}
    for _ in range(o.rounds):
        optimizer.zero_grad()
        sum(parameter.sum() for parameter in model).backward()
        optimizer.synchronize()
        for name, run in (
            ("disk alone", lambda: read_and_write(tier, keys)),
            ("update in memory", in_memory.step),
            ("step", states.step),
        ):
            rabit_torch.barrier()
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    moved = 2 * sum(tier.size(key) for key in keys)
    is_direct = tier.is_direct
    optimizer.step()
    rabit_torch.shutdown()
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
    return {**times, "bytes": moved, "is_direct": is_direct}


def read_and_write(tier: Any, keys: list[str]) -> None:
    """All files of the tier are read, and as many bytes written, at the same time, without a checksum."""
    import os

    buffers = [tier.buffer(max(tier.size(key) for key in keys)) for _ in range(2)]
    copy = tier.folder / "copy"

    def read() -> None:
        for key in keys:
            with tier._opened(tier.path(key, tier._slots[key].current), os.O_RDONLY) as file:
                os.preadv(file, [memoryview(buffers[0])[: tier.size(key)]], 0)

    def write() -> None:
        with tier._opened(copy, os.O_WRONLY | os.O_CREAT) as file:
            place = 0
            for key in keys:
                place += os.pwrite(file, memoryview(buffers[1])[: tier.size(key)], place)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(read), threads.submit(write)]:
            done.result()
