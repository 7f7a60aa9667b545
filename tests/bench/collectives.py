"""Allgather, reducescatter, broadcast and alltoall: rabit beside gloo, Open MPI and MPICH.

    python tests/bench/collectives.py [--ranks 2] [--bytes 1M] [--rounds 5] [--mpich PYTHON]

As tests/bench/allreduce.py: the libraries take turns in the same processes on the same buffers;
medians of single operations of the slowest rank.  The size is that of the larger of input and output.
"rabit" goes through the whole engine, "ordered" is not negotiated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import allreduce
import peers

OPERATIONS = ("allgather", "reducescatter", "broadcast", "alltoall")


def buffers(operation: str, count: int, size: int):
    """(input, output) as float32 arrays; the larger has `count` elements."""
    import numpy as np

    part = count // size
    inputs = {"allgather": part, "reducescatter": count, "broadcast": count, "alltoall": count}
    outputs = {"allgather": count, "reducescatter": part, "broadcast": count, "alltoall": count}
    source = np.ones(inputs[operation], np.float32)
    if operation == "broadcast":
        return source, source
    return source, np.zeros(outputs[operation], np.float32)


def rabit_calls(operation: str, source, target) -> dict[str, Callable[[], object]]:
    import rabit

    def view(array):
        address = array.ctypes.data
        return rabit.TensorView(address, array.shape, rabit.DType.FLOAT32, keepalive=array)

    kinds = {
        "allgather": rabit.Kind.ALLGATHER,
        "reducescatter": rabit.Kind.REDUCESCATTER,
        "broadcast": rabit.Kind.BROADCAST,
        "alltoall": rabit.Kind.ALLTOALL,
    }
    request = rabit.Request(
        kind=kinds[operation],
        name=f"{operation}.{source.size}",
        input=view(source),
        output=view(target),
        op=rabit.Sum,
        root=0 if operation == "broadcast" else -1,
    )
    batch = rabit.default_engine().prepare([request])
    ordered = {
        "allgather": lambda: rabit.ordered_allgather_into(target, source),
        "reducescatter": lambda: rabit.ordered_reducescatter_into(target, source, rabit.Sum),
        "broadcast": lambda: rabit.ordered_broadcast_(target, 0),
        "alltoall": lambda: rabit.ordered_alltoall_into(target, source),
    }
    return {"rabit": lambda: batch.run().wait(), "ordered": ordered[operation]}


def gloo_call(operation: str, source, target) -> Callable[[], object]:
    import torch
    import torch.distributed as dist

    given, taken = torch.from_numpy(source), torch.from_numpy(target)
    return {
        "allgather": lambda: dist.all_gather_into_tensor(taken, given),
        "reducescatter": lambda: dist.reduce_scatter_tensor(taken, given),
        "broadcast": lambda: dist.broadcast(taken, 0),
        "alltoall": lambda: dist.all_to_all_single(taken, given),
    }[operation]


def mpi_call(operation: str, source, target) -> Callable[[], object]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return {
        "allgather": lambda: world.Allgather(source, target),
        "reducescatter": lambda: world.Reduce_scatter_block(source, target, op=MPI.SUM),
        "broadcast": lambda: world.Bcast(target, 0),
        "alltoall": lambda: world.Alltoall(source, target),
    }[operation]


def work(args: argparse.Namespace) -> None:
    import torch

    import rabit

    torch.set_num_threads(1)
    rabit.init()
    if "gloo" in args.peers:
        allreduce.start_gloo(args.store)
    results: dict[str, dict[str, list[float]]] = {}
    for operation in OPERATIONS:
        source, target = buffers(operation, args.bytes // 4, rabit.size())
        calls = rabit_calls(operation, source, target)
        if "gloo" in args.peers:
            calls["gloo"] = gloo_call(operation, source, target)
        if "mpi" in args.peers:
            calls["mpi"] = mpi_call(operation, source, target)
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(args.rounds + 1):
            for name, call in calls.items():
                rabit.barrier()
                call()
                for _ in range(args.repeats):
                    # A root may run ahead of what its peers have received: start together.
                    rabit.ordered_barrier()
                    start = time.perf_counter()
                    call()
                    if turn:
                        samples[name].append(time.perf_counter() - start)
        for name, values in samples.items():
            results.setdefault(name, {})[operation] = values
    everyone = rabit.allgather_object(results)
    if rabit.rank() == 0:
        # A broadcast is over when its last receiver has it.
        recorded = {
            name: {each: [rank[name][each] for rank in everyone] for each in OPERATIONS}
            for name in results
        }
        Path(args.result).write_text(json.dumps(recorded))
    rabit.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers.add_arguments(parser)
    parser.add_argument("--bytes", default="1M", help="of the larger buffer (default 1M)")
    parser.add_argument("--repeats", type=int, default=50, help="in each turn (default 50)")
    for hidden in ("--store", "--result"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.bytes = peers.parse_size(args.bytes)
    if args.worker:
        args.peers = [peer for peer in (args.peers or "").split(",") if peer]
        work(args)
        return
    found = peers.find_peers(args.peers, args.mpich, args.mpich_mpiexec)
    repeats = ["--repeats", str(args.repeats)]
    mpi_arguments = ["--operations", ",".join(OPERATIONS), "--sizes", str(args.bytes), *repeats]
    results = peers.measure(
        __file__, ["--bytes", str(args.bytes), *repeats], args, found, mpi_arguments
    )
    print(f"{peers.show_size(args.bytes)}, {args.ranks} ranks, medians of the slowest rank")
    peers.print_times(results, {each: each for each in OPERATIONS})
    for note in found.notes:
        print(note)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
