"""The largest model that the ranks of a host train within a limit of memory, in each stage: one step of it."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from harness import case, on_ranks, table, words
from host_memory import proportional
from sharding import STAGES

DISK, ALL = "-disk", "-all"  # of a mode whose state is on disk, and one whose parameters are there, too
SHARED = "-shared"  # of a mode whose ranks share the parameters of their host
# Bytes per parameter of all ranks together, AdamW in float32; N: of ranks.
PER_PARAMETER = {
    "none": lambda n: 16 * n,
    "stage1": lambda n: 8 * n + 8,
    "stage2": lambda n: 4 * n + 12,
    "stage2-shared": lambda n: 16,
    "stage3": lambda n: 16,
    "stage3-disk": lambda n: 8,
    "stage3-all": lambda n: 4,
}


@case(ranks=4, gibibytes=4.5, modes=words(",".join(PER_PARAMETER)), width=2048, more=1.1, files="")
def sharding_largest(o: Any) -> None:
    """The parameters that the formula allows in so many GiB of a host, a step of them, and the ranks' peak memory.

    Memory is proportional (Pss), sampled: the peak is of the sum over ranks at one moment. Models of stage 3, and those
    that ranks share on all but the first, are built on the meta device. `more` times the size of the former is to be
    refused before anything is allocated. files: a folder on the disk for state; empty: that of the run.
    """
    rows = []
    for mode in o.modes:
        o.mode = mode
        found = on_ranks(largest_rank, o, o.ranks)
        peak = peak_of([rank["samples"] for rank in found])
        rows.append(
            [mode, f"{found[0]['count'] / 1e6:.0f} M", f"{peak / 2**30:.2f} GiB",
             f"{max(rank['seconds'] for rank in found):.0f} s", found[0]["refused"]]
        )  # fmt: skip
    print(f"{o.ranks} ranks, {o.gibibytes} GiB, AdamW in float32, layers of {o.width} x {o.width}")
    heads = ["mode", "parameters", "peak of all ranks, above the start", "start and step", f"{o.more} times as many"]
    table(heads, rows)


def largest_rank(o: Any) -> dict[str, Any]:
    import torch

    import rabit.sharding.room
    import rabit_torch
    from rabit import ResourceExhausted
    from rabit_torch.sharding.parts_on_disk import step_bytes

    limit = int(o.gibibytes * 2**30)
    rabit.sharding.room.free_bytes = lambda: limit
    torch.set_num_threads(1)
    rabit_torch.init()
    stage = STAGES[o.mode.split("-")[0]]
    layer = o.width**2
    # Three gradients are on their way, and two units in the window.
    aside = {None: 0, "optimizer": 0, "gradients": 3, "parameters": 5}[stage] * 4 * layer
    aside += {DISK: step_bytes(8), ALL: step_bytes(12)}.get(o.mode.removeprefix("stage3"), 0)
    layers = (limit - o.ranks * aside) // (PER_PARAMETER[o.mode](o.ranks) * layer)
    refused = ""
    if stage == "parameters":
        try:
            wrapped(o, stage, math.ceil(layers * o.more))
            refused = "was not refused"
        except ResourceExhausted as error:
            refused = str(error).split(": ", 1)[1].split(". ")[0]
    torch.optim.AdamW(torch.nn.Linear(8, 8).parameters(), fused=True).step()  # What torch loads for it is not counted.
    rabit_torch.barrier()
    began = time.perf_counter()
    with Samples() as samples:
        model, optimizer = wrapped(o, stage, layers)
        model(torch.ones(1, o.width)).sum().backward()
        samples.add()
        optimizer.step()
        samples.add()
    seconds = time.perf_counter() - began
    rabit_torch.shutdown()
    return {"count": layers * layer, "samples": samples.taken, "seconds": seconds, "refused": refused}


class Samples:
    """(time, memory of this process above that at the start), taken by a thread in its block."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, int]] = []
        self._base = proportional()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Samples:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def add(self) -> None:
        self.taken.append((time.monotonic(), proportional() - self._base))

    def _run(self) -> None:
        while not self._is_over.wait(0.1):
            self.add()


def peak_of(ranks: list[list[tuple[float, int]]]) -> int:
    """The largest sum over ranks of what each of them, on one host, had last."""
    last, peak = [0] * len(ranks), 0
    for _, rank, memory in sorted((at, rank, memory) for rank, taken in enumerate(ranks) for at, memory in taken):
        last[rank] = memory
        peak = max(peak, sum(last))
    return peak


def wrapped(o: Any, stage: str | None, layers: int) -> tuple[Any, Any]:
    import torch

    import rabit_torch.sharding

    is_shared = o.mode.endswith(SHARED)
    with torch.device("meta" if stage == "parameters" or (is_shared and rabit_torch.rank()) else "cpu"):
        model = torch.nn.Sequential(*(torch.nn.Linear(o.width, o.width, bias=False) for _ in range(layers)))
    options: dict[str, Any] = {"model": model} if stage == "parameters" or is_shared else {}
    if is_shared:
        options["host_shared"] = True
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    disk = f"disk:{o.files or o.folder / 'state'}"
    if o.mode.endswith(ALL):
        rabit_torch.sharding.shard(model, offload=disk)
    elif o.mode.endswith(DISK):
        options["offload"] = disk
    return model, rabit_torch.DistributedOptimizer(optimizer, model.named_parameters(), shard=stage, **options)
