"""Figures of a GPU: staging beside copies alone and beside gloo, NCCL, how far the host is ahead, memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from gpu_rank import gpu_rank
from harness import case, on_ranks, table

TESTS = Path(__file__).resolve().parents[1]

# What runs: a title, how many ranks, the backend, and whether every rank needs a GPU of its own.
RUNS: list[tuple[str, int, str, bool]] = [
    ("copies", 1, "builtin", False),
    ("against_gloo", 4, "builtin", False),
    ("host_ahead", 2, "builtin", False),
    ("host_ahead", 1, "nccl", False),
    ("bandwidth", 1, "nccl", False),
    ("bandwidth", 2, "nccl", True),
    ("inside_hosts", 2, "nccl", False),
    ("memory", 2, "builtin", False),
    ("memory", 1, "nccl", False),
]


def count_devices(is_emulated: bool) -> int:
    if is_emulated:
        return 2
    import torch

    return int(torch.cuda.device_count())


def environment(is_emulated: bool, backend: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    found = {"RABIT_BACKEND": backend, "PYTHONPATH": path}
    if is_emulated:
        sys.path.insert(0, str(TESTS))
        from support import emulated_cuda, emulated_nccl

        found["EMULATED_CUDA"] = str(emulated_cuda.build())
        found["RABIT_NCCL_LIBRARY"] = str(emulated_nccl.build())
    return found


@case(emulated=False, megabytes=64, timeout=300)
def gpu_figures(o: Any) -> bool:
    """Figures of a GPU: staging beside copies alone and beside gloo, NCCL, how far the host is ahead, memory.

    Each figure with the ranks that it takes. Ranks beyond the number of GPUs share one, and what takes a GPU for each
    rank says so where there are fewer. --megabytes: of the large tensor. --emulated runs the same on the emulated
    driver, where the figures mean nothing.
    """
    devices = count_devices(o.emulated)
    if not devices:
        print("torch sees no CUDA device: nothing is measured (--emulated runs the code all the same)")
        return True
    rows, passes = [], True
    for title, ranks, backend, is_alone in RUNS:
        head = [backend, ranks]
        if is_alone and devices < ranks:
            rows.append([*head, title, f"not run: {ranks} ranks need as many GPUs, there are {devices}"])
            continue
        o.title = title
        environ = environment(o.emulated, backend)
        try:
            found = on_ranks(gpu_rank, o, ranks, environ=environ, quiet=True, timeout=o.timeout)[0]
        except SystemExit as failure:
            print(failure, file=sys.stderr)
            passes, found = False, [[title, "FAILED: see above"]]
        rows += [[*head, *row] for row in found]
    table(["backend", "ranks", "what", "figure"], rows)
    return passes
