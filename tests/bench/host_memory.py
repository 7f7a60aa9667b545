"""Memory of a host whose ranks train with shard=..., with a part of the parameters on each rank or one copy for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import case, on_ranks, table, words

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {"shard": None},
    "stage2": {"shard": "gradients"},
    "shared": {"shard": "gradients", "host_shared": True},
    "stage3": {"shard": "parameters"},
}
# Bytes per parameter of the host's N ranks with AdamW in float32, gradients of all parameters included.
FORMULAS = {"none": (16, 0), "stage2": (4, 12), "shared": (0, 16), "stage3": (0, 16)}


@case(ranks=4, modes=words("none,stage2,shared,stage3"), layers=24, width=1024, steps=3)
def host_memory(o: Any) -> None:
    """Proportional memory (Pss) of all ranks between backward pass and step, and between two steps, above the start.

    Formula: without the window of stage 3, and without gradients on their way.
    """
    rows = []
    count = o.layers * o.width * o.width
    for mode in o.modes:
        o.mode = mode
        found = on_ranks(host_memory_rank, o, o.ranks)
        at_step, between = (sum(rank[key] for rank in found) for key in ("at_step", "between"))
        of_each, together = FORMULAS[mode]
        formula = count * (of_each * o.ranks + together)
        rows.append([mode, *(f"{size / 1e6:.0f} MB" for size in (formula, at_step, between))])
    print(f"{o.ranks} ranks of one host, {count / 1e6:.1f} M parameters in {o.layers} layers, AdamW in float32")
    table(["", "formula", "at the step", "between steps"], rows)


def host_memory_rank(o: Any) -> dict[str, int]:
    import gc

    import torch

    import rabit_torch

    torch.set_num_threads(1)
    rabit_torch.init()
    warm = torch.nn.Linear(8, 8)
    torch.optim.AdamW(warm.parameters()).step()
    gc.collect()
    rabit_torch.barrier()
    base = proportional()
    model = torch.nn.Sequential(*(torch.nn.Linear(o.width, o.width, bias=False) for _ in range(o.layers)))
    options = dict(OPTIONS[o.mode])
    if options["shard"] == "parameters":
        options["model"] = model
    optimizer = rabit_torch.DistributedOptimizer(
        torch.optim.AdamW(model.parameters()), model.named_parameters(), **options
    )
    found = {"at_step": 0, "between": 0}
    for number in range(o.steps):
        model(torch.ones(1, o.width)).sum().backward()
        optimizer.synchronize()
        rabit_torch.barrier()
        if number:
            found["at_step"] = max(found["at_step"], proportional() - base)
        rabit_torch.barrier()
        if options["shard"] is None:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        optimizer.zero_grad()
        rabit_torch.barrier()
        if number:
            found["between"] = max(found["between"], proportional() - base)
        rabit_torch.barrier()
    rabit_torch.shutdown()
    return found


def proportional() -> int:
    """Bytes of this process in memory; of what several processes have, its share."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
