"""Training in parts: step time and bytes on links that the kernel shapes, and memory of a rank."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import case, lab_or_stop, median, on_ranks, rate, ratio, table, words
from harness import links as shaped_links

GLOO_PORT = 17018
STAGES = {
    **{"none": None, "stage1": "optimizer", "stage2": "gradients", "stage3": "parameters"},
    **{"pull": "parameters", "hpz": "parameters"},
}
HOST = "-host"  # of a mode whose state is divided inside of each host
MODES = "none,stage1,stage2,stage3,ddp,zero,fsdp2"


@case(ranks=4, per_host=1, rate=rate("1G"), modes=words(MODES), tokens=64, width=256, layers=12, rounds=7)
def sharding(o: Any) -> None:
    """A step of a decoder with AdamW in every stage, next to DDP, ZeroRedundancyOptimizer and FSDP2 on gloo.

    Namespaces of `per_host` ranks; a mode such as stage2-host divides among these. Received bytes are those of the
    interface of the first namespace.
    """
    with lab_or_stop(o.ranks // o.per_host, o.rate, shaped_links.LONG_QUEUE_SECONDS) as lab:
        o.address = lab.address(0)
        run = shaped_links.in_lab(lab, timeout=460, ranks_per_host=o.per_host)
        found = on_ranks(step_rank, o, o.ranks, run=run)
    count = found[0]["parameters"]
    print(
        f"{o.ranks} ranks in {o.ranks // o.per_host} namespaces at {o.rate / 1e6:g} Mbit/s, "
        f"decoder of {count / 1e6:.1f} M parameters, {o.tokens} tokens"
    )
    unit = 4 * count
    times = {
        mode: [max(each) for each in zip(*(rank["times"][mode] for rank in found), strict=True)]
        for mode in o.modes
    }
    rows = [
        [mode, f"{median(times[mode]) * 1e3:.0f} ms", ratio(times[o.modes[0]], times[mode]),
         found[0]["received"][mode] / unit, count_of_units(mode, o.ranks, o.per_host)]
        for mode in o.modes
    ]  # fmt: skip
    table(["", "step", f"{o.modes[0]} / it", "received / 4 bytes of all", "formula"], rows)


def count_of_units(mode: str, ranks: int, per_host: int) -> str:
    """Bytes received in a step, in units of the parameters' bytes; what others' code is known to do."""
    if mode.endswith(HOST):  # What the ranks of a host exchange stays in its memory.
        return f"{2 * (ranks - per_host) / ranks:.2f}"
    if per_host > 1:
        return "-"
    part = (ranks - 1) / ranks
    passes = {"stage3": 3, "pull": 3, "zero": 3, "fsdp2": 4}.get(mode, 2)
    return f"{passes * part:.2f}"


def decoder(o: Any) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
            self.attention = nn.MultiheadAttention(o.width, 4, batch_first=True)
            self.up, self.down = nn.Linear(o.width, 4 * o.width), nn.Linear(4 * o.width, o.width)

        def forward(self, hidden: Any) -> Any:
            normed = self.first(hidden)
            hidden = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
            return hidden + self.down(nn.functional.gelu(self.up(self.second(hidden))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(8192, o.width)
            self.blocks = nn.ModuleList(Block() for _ in range(o.layers))
            self.head = nn.Linear(o.width, 8192, bias=False)

        def forward(self, batch: Any) -> Any:
            hidden = self.embedding(batch)
            for block in self.blocks:
                hidden = block(hidden)
            return self.head(hidden)

    torch.manual_seed(0)
    return Decoder()


def prepared(mode: str, o: Any) -> Callable[[], None]:
    """A training step of a model of its own."""
    import torch

    import rabit_torch.sharding

    model = decoder(o)
    called = model
    if (stage := mode.removesuffix(HOST)) in STAGES:
        options: dict[str, Any] = {"model": model} if STAGES[stage] == "parameters" else {}
        if mode.endswith(HOST):
            options["shard_within"] = "host"
        if stage == "pull":
            rabit_torch.sharding.shard(model, gather="pull")
        if stage == "hpz":
            rabit_torch.sharding.shard(model, backward_within="host")
        optimizer = rabit_torch.DistributedOptimizer(
            torch.optim.AdamW(model.parameters()), model.named_parameters(), shard=STAGES[stage], **options
        )
    elif mode == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in (model.embedding, *model.blocks, model.head):
            fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        called = torch.nn.parallel.DistributedDataParallel(model)
        if mode == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
        else:
            optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randint(8192, (1, o.tokens), generator=torch.Generator().manual_seed(1))

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(called(batch).flatten(0, 1), batch.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def received_bytes() -> int:
    """Of the interfaces of this namespace, but the loopback."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[0]) for line in lines if "lo:" not in line)


def step_rank(o: Any) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import rabit_torch

    torch.set_num_threads(1)
    rabit_torch.init()
    rank = rabit_torch.rank()
    os.environ.update(MASTER_ADDR=o.address, MASTER_PORT=str(GLOO_PORT))
    dist.init_process_group("gloo", rank=rank, world_size=o.ranks)
    trained = {mode: prepared(mode, o) for mode in o.modes}
    received: dict[str, float] = {}
    times: dict[str, list[float]] = {mode: [] for mode in o.modes}
    for number in range(o.rounds + 2):
        for mode, each in trained.items():
            rabit_torch.barrier()
            time.sleep(0.02)  # The barrier's own bytes are through.
            before, began = received_bytes(), time.perf_counter()
            each()
            taken = time.perf_counter() - began
            rabit_torch.barrier()
            if number >= 2:
                times[mode].append(taken)
                received[mode] = received.get(mode, 0) + (received_bytes() - before) / o.rounds
    count = sum(each.numel() for each in decoder(o).parameters())
    dist.destroy_process_group()
    rabit_torch.shutdown()
    return {"times": times, "received": received, "parameters": count}


# --- memory ---------------------------------------------------------------------------------------


@case(ranks=4, modes=words("none,stage1,stage2,stage3"), layers=24, width=2048, steps=3)
def sharding_memory(o: Any) -> None:
    """Bytes of a rank between backward pass and step, AdamW in float32: tensors counted, and resident memory.

    Fused: other forms of AdamW take memory of the size of the parameters during a step, which the allocator keeps.
    """
    rows = []
    for mode in o.modes:
        o.mode = mode
        found = on_ranks(memory_rank, o, o.ranks)
        worst = max(found, key=lambda each: each["counted"])
        rows.append(
            [mode, f"{worst['formula'] / 1e6:.0f} MB", f"{worst['counted'] / 1e6:.0f} MB",
             worst["counted"] / worst["formula"], f"{max(each['resident'] for each in found) / 1e6:.0f} MB"]
        )  # fmt: skip
    print(f"{o.ranks} ranks, {o.layers} layers of {o.width} x {o.width}, AdamW in float32")
    table(["", "formula", "counted", "of the formula", "resident, above the start"], rows)


def memory_rank(o: Any) -> dict[str, float]:
    import gc

    import torch

    import rabit_torch
    from rabit.sharding import Entry, FlatLayout, rank_bytes
    from rabit_torch.sharding.model import divided_model

    torch.set_num_threads(1)
    rabit_torch.init()
    hidden = torch.ones(1, o.width)
    warm = torch.nn.Linear(8, 8)
    torch.optim.AdamW(warm.parameters()).step()
    gc.collect()
    base = resident()
    model = torch.nn.Sequential(*(torch.nn.Linear(o.width, o.width, bias=False) for _ in range(o.layers)))
    stage = STAGES[o.mode]
    layout = FlatLayout(
        (Entry(name, tuple(each.shape), "float32") for name, each in model.named_parameters()), o.ranks
    )
    formula = rank_bytes(layout, stage, rabit_torch.rank()).total
    options = {"model": model} if stage == "parameters" else {}
    optimizer = rabit_torch.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), fused=True), model.named_parameters(), shard=stage, **options
    )
    if stage == "parameters":
        divided = divided_model(model)
        assert divided is not None
        formula += divided.gathers.window
    counted = kept = 0
    for number in range(o.steps):
        optimizer.zero_grad()
        model(hidden).sum().backward()
        optimizer.synchronize()
        if number:
            gc.collect()
            counted, kept = max(counted, alive()), max(kept, resident() - base)
        if stage is None:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    rabit_torch.shutdown()
    return {"formula": formula, "counted": counted, "resident": kept}


def alive() -> int:
    """Bytes of the memory of all tensors."""
    import gc

    import torch

    found: dict[int, int] = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):  # `isinstance` asks the object, which may be lazy
            with torch._C.DisableTorchFunctionSubclass():
                several = [each] if each.grad is None else [each, each.grad]
                for tensor in several:
                    if tensor.is_meta:
                        continue
                    storage = tensor.untyped_storage()
                    found[storage.data_ptr()] = max(storage.nbytes(), found.get(storage.data_ptr(), 0))
    return sum(found.values())


def resident() -> int:
    """Bytes of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
