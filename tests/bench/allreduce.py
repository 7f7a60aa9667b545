"""In-place allreduce: rabit beside torch's gloo, Open MPI and MPICH, in one run.

    python tests/bench/allreduce.py [--ranks 2] [--sizes 1K,64K,1M,16M,64M] [--mpich PYTHON]
    python tests/bench/allreduce.py --transport tcp --sizes 16M     # nobody uses shared memory
    python tests/bench/allreduce.py --sizes 64M --dtype float32,float16,bfloat16

"rabit" is the blocking call through the whole engine, negotiation included; "ordered" the call that
is not negotiated.

gloo and Open MPI ("mpi") live in the same processes, use the same buffers and take turns, so that a
busy moment of the machine hits all of them; the processes of MPICH (see peers.py) take turns with
those.  A turn is a block of calls of one library: one that is not counted, then as many as
peers.repeats_of says, each timed by itself, with one element set anew before it.  What is timed is
one call without arguments, in every library.

Each figure is the median of all single operations of rank 0; the ratios are the best peer's time
divided by rabit's (above 1: rabit is faster).  Peers that are not installed are left out, with the
reason.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import peers

if TYPE_CHECKING:
    import numpy as np
    import torch

DTYPES = ("float32", "float16", "bfloat16")


# --- the worker: one rank -------------------------------------------------------------------------


# Binds the call of one library to what it reduces, so that a measured call prepares nothing.
Bind = Callable[["np.ndarray | torch.Tensor", "torch.Tensor", str], Callable[[], object]]


def bind_rabit(array, _tensor, name):
    import rabit

    return lambda: rabit.allreduce_(array, name=name, op=rabit.Sum)


def bind_ordered(array, _tensor, _name):
    import rabit

    return lambda: rabit.ordered_allreduce_(array, rabit.Sum)


def bind_gloo(_array, tensor, _name):
    import torch.distributed as dist

    return lambda: dist.all_reduce(tensor)


def bind_mpi(array, _tensor, _name):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return lambda: world.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)


def start_gloo(store: str) -> None:
    import torch.distributed as dist

    import rabit

    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rabit.rank(), world_size=rabit.size()
    )


def work(args: argparse.Namespace) -> None:
    import torch

    import rabit

    torch.set_num_threads(1)
    rabit.init()
    libraries: dict[str, Bind] = {"rabit": bind_rabit, "ordered": bind_ordered}
    if "gloo" in args.peers:
        start_gloo(args.store)
        libraries["gloo"] = bind_gloo
    if "mpi" in args.peers:
        libraries["mpi"] = bind_mpi

    samples: peers.Samples = {name: {} for name in libraries}
    for size in peers.with_warm_up(args.sizes):
        calls = {}
        for dtype in args.dtypes:
            tensor = torch.ones(size // 4, dtype=getattr(torch, dtype))
            array = tensor.numpy() if dtype != "bfloat16" else tensor
            for name, bind in libraries.items():
                if name != "mpi" or dtype == "float32":
                    calls[name, dtype] = (bind(array, tensor, f"bench.{dtype}.{size}"), array)
        for (name, dtype), values in take_turns(calls, size, args.rounds).items():
            samples[name][row_key(size, dtype)] = [values]
    if rabit.rank() == 0:
        Path(args.result).write_text(json.dumps(samples))
    rabit.barrier()
    rabit.shutdown()


def take_turns(calls, size: int, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of single operations by library and dtype, of which `calls` has a call without
    arguments and its array.  The dtypes take turns too, because their ratio is a figure as well."""
    import rabit

    samples: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for turn in range(rounds + 1):
        for key, (call, array) in calls.items():
            array[:] = 1.0
            rabit.barrier()
            call()
            assert array[0] == rabit.size(), (key, array[0])
            for _ in range(peers.repeats_of(size, rounds)):
                array[:1] = 1.0
                start = time.perf_counter()
                call()
                if turn:  # the first round warms caches and negotiation up
                    samples[key].append(time.perf_counter() - start)
    return samples


# --- the parent: launches the ranks and prints the table ------------------------------------------


def row_key(size: int, dtype: str) -> str:
    return f"{size}/{dtype}"


def print_table(results: dict[str, dict[str, float]], args: argparse.Namespace) -> None:
    print(
        f"in-place allreduce, {args.ranks} ranks on {socket.gethostname()} "
        f"({os.cpu_count()} cores), transport {args.transport}, medians"
    )
    several = len(args.dtypes) > 1
    rows = {
        peers.show_size(size) + (f" {dtype}" if several else ""): row_key(size, dtype)
        for size in args.sizes
        for dtype in args.dtypes
    }
    peers.print_times(results, rows)
    if not several or "float32" not in args.dtypes:
        return
    for size in args.sizes:
        for name in peers.OURS:
            ours = results[name]
            shares = ", ".join(
                f"{dtype} {ours[row_key(size, dtype)] / ours[row_key(size, 'float32')]:.2f}"
                for dtype in args.dtypes
                if dtype != "float32"
            )
            title = peers.show_size(size)
            print(f"{title}, time of as many elements / float32's, {name}: {shares}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers.add_arguments(parser)
    parser.add_argument(
        "--sizes",
        default="1K,4K,16K,64K,256K,1M,4M,16M,64M",
        help="bytes, comma separated; of 16-bit types as many elements as of float32",
    )
    parser.add_argument(
        "--transport", choices=("auto", "tcp"), default="auto", help="tcp: loopback for everybody"
    )
    parser.add_argument(
        "--dtype", default="float32", help=f"comma separated, of {', '.join(DTYPES)}"
    )
    for hidden in ("--store", "--result"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.sizes = [peers.parse_size(text) for text in args.sizes.split(",")]
    args.dtypes = args.dtype.split(",")
    for dtype in args.dtypes:
        if dtype not in DTYPES:
            parser.error(f"--dtype {dtype}: known are {', '.join(DTYPES)}")
    if args.worker:
        args.peers = [peer for peer in (args.peers or "").split(",") if peer]
        work(args)
        return
    found = peers.find_peers(args.peers, args.mpich, args.mpich_mpiexec)
    sizes = ",".join(map(str, args.sizes))
    keys = ",".join(row_key(size, "float32") for size in args.sizes)
    mpi_arguments = ["--operations", "allreduce", "--sizes", sizes, "--keys", keys]
    results = peers.measure(
        __file__, ["--sizes", sizes, "--dtype", args.dtype], args, found, mpi_arguments
    )
    print_table(results, args)
    for note in found.notes:
        print(note)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
