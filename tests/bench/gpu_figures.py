"""Figures of a GPU: staging beside copies alone and beside gloo, NCCL, how far the host is ahead, memory.

    make test-gpu, or: python tests/bench/gpu_figures.py [--emulated] [--megabytes 64]

Prints a table; each figure with the ranks that it takes.  Ranks beyond the number of GPUs share one, and what takes
a GPU for each rank says so where there are fewer.  --emulated runs the same on the emulated driver, where the figures
mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("gpu_rank.py")

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


def environment_of(args: argparse.Namespace, backend: str, folder: Path) -> dict[str, str]:
    found = {**os.environ, "OMP_NUM_THREADS": "1", "FIGURES": str(folder / "figures.json")}
    found["BACKEND_HERE"] = backend
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), found.get("PYTHONPATH", "")]))
    if args.emulated:
        sys.path.insert(0, str(TESTS))
        from support import emulated_cuda, emulated_nccl

        found["EMULATED_CUDA"] = str(emulated_cuda.build())
        found["RABIT_NCCL_LIBRARY"] = str(emulated_nccl.build())
    return found


def run(title: str, ranks: int, backend: str, args: argparse.Namespace) -> list[list[str]]:
    """The rows of one run, or its error as one."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = [sys.executable, "-m", "rabit.launch", "-np", str(ranks), sys.executable]
        done = subprocess.run(
            [*command, str(WORKER), title, str(args.megabytes)],
            env=environment_of(args, backend, folder),
            capture_output=True,
            text=True,
            timeout=args.timeout,
            check=False,
        )
        if done.returncode == 0:
            rows: list[list[str]] = json.loads((folder / "figures.json").read_text())
            return rows
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [""]
        print(done.stdout + done.stderr, file=sys.stderr)
        return [[title, f"FAILED with {done.returncode}: {lines[-1][:100]}"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulated", action="store_true", help="on the emulated driver")
    parser.add_argument("--megabytes", type=int, default=64, help="of the large tensor")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one run")
    args = parser.parse_args()
    devices = count_devices(args.emulated)
    if not devices:
        print(
            "torch sees no CUDA device: nothing is measured (--emulated runs the code all the same)"
        )
        return 0
    rows, failures = [], 0
    for title, ranks, backend, is_alone in RUNS:
        head = [backend, str(ranks)]
        if is_alone and devices < ranks:
            rows.append(
                [*head, title, f"not run: {ranks} ranks need as many GPUs, there are {devices}"]
            )
            continue
        found = run(title, ranks, backend, args)
        failures += any(each[-1].startswith("FAILED") for each in found)
        rows += [[*head, *each] for each in found]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
