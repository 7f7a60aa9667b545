"""Training on busy cores: rabit's optimizer and DDP on rabit beside DDP on gloo, in separate processes.

    python tests/bench/busy_cores.py [--ranks 2] [--turns 5] [--models mlp,deep,cnn,digits,resnet,letters,finetune]

Every way runs in processes of its own, as users start them: torchrun for DDP, rabitrun for
DistributedOptimizer.  The ranks share as many cores as there are ranks, with one busy compute
thread each, so whatever waits or copies takes a core from somebody's computation.  The ways take
turns.  Reported are medians over the turns: milliseconds of a step, the ratio to DDP on gloo in the
same turn (more is better), processor time of a step on rank 0, of which threads, and how often a
step gave its core away (voluntary) or lost it (involuntary).  "alone" is one rank without any library.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from example_models import SUBJECTS

WAYS = ("gloo", "ddp", "optimizer", "alone")
LABELS = {
    "gloo": "DDP on gloo",
    "ddp": "DDP on rabit",
    "optimizer": "DistributedOptimizer",
    "alone": "alone",
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150, help="of each turn")
    names = ", ".join(SUBJECTS)
    parser.add_argument("--models", default="mlp,deep,cnn", help=f"of {names}; the last are those of the examples")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)  # way, model, result file
    return parser.parse_args()


# --- one rank -------------------------------------------------------------------------------------


def threads_ns() -> dict[str, int]:
    """Processor time of this process by the names of its threads."""
    found: dict[str, int] = defaultdict(int)
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip().rstrip("0123456789-")
            found[name] += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:  # The thread has ended.
            continue
    return found


def work(options: argparse.Namespace) -> None:
    way, model_name, result = options.worker
    cores = sorted(os.sched_getaffinity(0))[: options.ranks]
    os.sched_setaffinity(0, cores)
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    subject = SUBJECTS[model_name]()
    model: Any = subject.make()
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    optimizer: Any = subject.optimizer(each for _, each in trained)
    rank = 0
    if way in ("gloo", "ddp"):
        if way == "ddp":
            import rabit_torch.distributed
        dist.init_process_group("gloo" if way == "gloo" else "rabit")
        rank, model = dist.get_rank(), DistributedDataParallel(model)
    elif way == "optimizer":
        import rabit_torch

        rabit_torch.init()
        rank = rabit_torch.rank()
        optimizer = rabit_torch.DistributedOptimizer(optimizer, trained)
    x = subject.rows(torch.Generator().manual_seed(rank))

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(10):
        step()
    measured = measure(step, options.steps)
    if rank == 0:
        Path(result).write_text(json.dumps(measured))
    if way in ("gloo", "ddp"):
        dist.destroy_process_group()
    elif way == "optimizer":
        rabit_torch.shutdown()
    # The last reference to a gloo group is the model's: its destructor joins threads while it holds the GIL, and
    # such a thread may be about to take the GIL. Such a worker never ends.
    os._exit(0)


def measure(step: Any, steps: int) -> dict[str, Any]:
    """Of blocks of five steps the median; every rank makes as many."""
    before, threads = resource.getrusage(resource.RUSAGE_SELF), threads_ns()
    blocks: list[float] = []
    for _ in range(max(1, steps // 5)):
        begin = time.perf_counter()
        for _ in range(5):
            step()
        blocks.append((time.perf_counter() - begin) / 5)
    after, steps = resource.getrusage(resource.RUSAGE_SELF), 5 * len(blocks)
    used = threads_ns()
    return {
        "ms": statistics.median(blocks) * 1e3,
        "cpu_ms": sum(used.values()) / steps / 1e6 - sum(threads.values()) / steps / 1e6,
        "voluntary": (after.ru_nvcsw - before.ru_nvcsw) / steps,
        "involuntary": (after.ru_nivcsw - before.ru_nivcsw) / steps,
        "threads": {
            name: (ns - threads.get(name, 0)) / steps / 1e6
            for name, ns in used.items()
            if ns - threads.get(name, 0) > steps * 10_000
        },
    }


# --- the whole ------------------------------------------------------------------------------------


def run(options: argparse.Namespace, way: str, model: str) -> dict[str, Any]:
    """One turn of one way, in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        program = [str(Path(__file__).resolve()), "--worker", way, model, str(result)]
        program += ["--ranks", str(options.ranks), "--steps", str(options.steps)]
        ranks = str(options.ranks)
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
        launchers = {
            "optimizer": ["-m", "rabit.launch", "-np", ranks, sys.executable],
            "alone": [],
        }
        command = [sys.executable, *launchers.get(way, torchrun), *program]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode or not result.exists():
            raise RuntimeError(f"{way} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured


def show(name: str, turns: dict[str, list[dict[str, Any]]]) -> None:
    print(f"\n{SUBJECTS[name]().title}")
    print(f"  {'':<21} {'ms/step':>8} {'x gloo':>7} {'cpu ms':>7} {'vol':>6} {'invol':>6}  threads, ms")
    for way, found in turns.items():
        median = {
            key: statistics.median(each[key] for each in found)
            for key in ("ms", "cpu_ms", "voluntary", "involuntary")
        }
        ratio = statistics.median(
            base["ms"] / each["ms"] for base, each in zip(turns["gloo"], found, strict=True)
        )
        names = sorted({thread for each in found for thread in each["threads"]})
        shares = {
            thread: statistics.median(each["threads"].get(thread, 0.0) for each in found)
            for thread in names
        }
        text = ", ".join(f"{thread} {ms:.2f}" for thread, ms in shares.items())
        print(
            f"  {LABELS[way]:<21} {median['ms']:8.2f} {ratio:7.2f} {median['cpu_ms']:7.2f} "
            f"{median['voluntary']:6.1f} {median['involuntary']:6.1f}  {text}",
            flush=True,
        )


def main() -> None:
    options = parse()
    if options.worker:
        work(options)
        return
    ways = [each for each in WAYS if each in options.ways.split(",") or each == "gloo"]
    print(
        f"{options.ranks} ranks on {options.ranks} cores, {options.turns} turns; "
        f"load average {os.getloadavg()[0]:.1f} at the start"
    )
    for model in options.models.split(","):
        turns: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for turn in range(options.turns):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                turns[way].append(run(options, way, model))
        show(model, turns)


if __name__ == "__main__":
    main()
