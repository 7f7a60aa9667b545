"""Many small gradients: engine time per step, Python time per submit, and torch's gloo beside it.

    rabitrun -np 2 python tests/bench/many_tensors.py [--tensors 1000] [--bytes 1024]

Started without rabitrun, it launches itself with 2 ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import rabit


def view_of(array: np.ndarray) -> rabit.TensorView:
    return rabit.TensorView(array.ctypes.data, array.shape, rabit.DType.FLOAT32, keepalive=array)


def measure(args: argparse.Namespace) -> None:
    rabit.init()
    engine = rabit.default_engine()
    arrays = [np.ones(args.bytes // 4, dtype=np.float32) for _ in range(args.tensors)]
    requests = [
        rabit.Request(
            kind=rabit.Kind.ALLREDUCE,
            name=f"gradient.{index}",
            op=rabit.Sum,
            input=view_of(array),
            output=view_of(array),
            priority=args.tensors - index,
        )
        for index, array in enumerate(arrays)
    ]
    batch = engine.prepare(requests)
    one_by_one, at_once, steps = [], [], []
    for step in range(args.steps):
        rabit.barrier()
        start = time.perf_counter()
        if step % 2:
            handles = batch.submit()
            at_once.append((time.perf_counter() - start) / args.tensors)
        else:
            handles = []
            for index in range(args.tensors):
                before = time.perf_counter()
                handles += batch.submit([index])
                one_by_one.append(time.perf_counter() - before)
        for handle in handles:
            handle.wait()
        steps.append((time.perf_counter() - start, step % 2))
    gloo = measure_gloo(args)
    if rabit.rank() == 0:
        report(args, one_by_one, at_once, steps)
        if gloo:
            print(f"  step, gloo, all asynchronous       {gloo * 1e3:8.2f} ms")
    rabit.shutdown()


def measure_gloo(args: argparse.Namespace) -> float:
    """Median seconds of a step in which gloo has all tensors in flight at once; 0 without torch."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return 0.0
    folder = tempfile.mkdtemp() if rabit.rank() == 0 else None
    store = f"file://{rabit.broadcast_object(folder)}/store"
    dist.init_process_group("gloo", init_method=store, rank=rabit.rank(), world_size=rabit.size())
    tensors = [torch.ones(args.bytes // 4) for _ in range(args.tensors)]
    steps = []
    for _ in range(max(3, args.steps // 6)):
        rabit.barrier()
        start = time.perf_counter()
        for work in [dist.all_reduce(each, async_op=True) for each in tensors]:
            work.wait()
        steps.append(time.perf_counter() - start)
    dist.destroy_process_group()
    return statistics.median(steps)


def report(args: argparse.Namespace, one_by_one: list, at_once: list, steps: list) -> None:
    together = statistics.median(seconds for seconds, batched in steps[4:] if batched)
    alone = statistics.median(seconds for seconds, batched in steps[4:] if not batched)
    print(
        f"{args.tensors} tensors of {args.bytes} bytes, {rabit.size()} ranks, medians of {args.steps} steps"
    )
    print(
        f"  submit, one call for each tensor   {statistics.median(one_by_one) * 1e6:8.2f} us a tensor"
    )
    print(
        f"  submit, one call for all           {statistics.median(at_once) * 1e6:8.2f} us a tensor"
    )
    print(
        f"  step, one call for each tensor     {alone * 1e3:8.2f} ms  ({args.tensors / alone:,.0f} tensors/s)"
    )
    print(
        f"  step, one call for all             {together * 1e3:8.2f} ms  ({args.tensors / together:,.0f} tensors/s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensors", type=int, default=1000, help="per step (default 1000)")
    parser.add_argument("--bytes", type=int, default=1024, help="of each tensor (default 1024)")
    parser.add_argument("--steps", type=int, default=60, help="half of them batched (default 60)")
    parser.add_argument(
        "--ranks", type=int, default=2, help="when started without rabitrun (default 2)"
    )
    args = parser.parse_args()
    if "RABIT_RANK" not in os.environ:
        command = [
            sys.executable,
            "-m",
            "rabit.launch",
            "-np",
            str(args.ranks),
            sys.executable,
            *sys.argv,
        ]
        sys.exit(subprocess.run(command, check=False).returncode)
    measure(args)


if __name__ == "__main__":
    main()
