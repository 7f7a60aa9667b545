"""Allreduce: the automatic choice of an algorithm beside every fixed one, in one run.

    python tests/bench/selection.py [--ranks 4] [--transport auto] [--sizes 1K,16K,1M]
    sudo python tests/bench/selection.py --ranks 4 --rate 1G --sizes 64K,1M,16M --rounds 4

Every rank holds one engine for each algorithm and one that chooses by itself; they take turns, in an
order that rotates, on the same buffer.  With --rate every rank has a network namespace of its own
behind a link of that many bits a second.

The fastest of several noisy medians looks faster than it is.  Therefore the fastest algorithm is
looked for in one half of the turns, and its ratio with the automatic choice taken from the other
half: above 1 the choice is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import shaped_links
from peers import parse_size, show_size, show_time

AUTO = "auto"
FIXED = (
    "direct",
    "gather_all",
    "ring",
    "recursive_doubling",
    "halving_doubling",
    "tree",
    "double_tree",
    "hierarchical",
)


# --- one rank -------------------------------------------------------------------------------------


def run_once(path: str, engine, array: np.ndarray, name: str) -> None:
    import rabit

    if path == "ordered":
        rabit.ordered_allreduce_(array, rabit.Max, engine=engine)
    else:
        rabit.allreduce_(array, name=name, op=rabit.Max, engine=engine)


def measure_size(args: argparse.Namespace, engines: dict, size: int) -> dict[str, list[float]]:
    """Seconds of one operation by algorithm, one figure for each turn."""
    import rabit

    array = np.ones(max(size // 4, 1), dtype=np.float32)
    name = f"bench.{size}"
    seconds: dict[str, list[float]] = {each: [] for each in engines}
    order = list(engines)
    once = None
    for turn in range(args.rounds + 1):
        for algorithm in order:
            engine = engines[algorithm]
            run_once(args.path, engine, array, name)
            rabit.ordered_barrier(engine=engine)
            count = 1 if once is None else max(1, min(100, int(args.turn_seconds / once)))
            start = time.perf_counter()
            for _ in range(count):
                run_once(args.path, engine, array, name)
            taken = (time.perf_counter() - start) / count
            if turn:  # the first turn warms up
                seconds[algorithm].append(taken)
        order = order[1:] + order[:1]
        if once is None:  # rank 0's figure, so that all ranks count alike
            mine = np.array([taken], dtype=np.float64)
            rabit.ordered_broadcast_(mine, 0, engine=engines[order[0]])
            once = float(mine[0])
    return seconds


def chosen(engine, size: int) -> str:
    """What the engine would run: of the algorithms that have run once more than before."""
    import rabit

    def counts() -> dict[str, int]:
        found = engine.statistics()["backend_details"]["builtin"]["algorithms"]
        return {key: each["calls"] for key, each in found.items() if "allreduce" in key}

    before = counts()
    rabit.ordered_allreduce_(np.ones(size // 4, dtype=np.float32), rabit.Max, engine=engine)
    after = counts()
    return next(key.split("/")[1] for key in after if after[key] != before.get(key, 0))


def work(args: argparse.Namespace) -> None:
    import rabit
    from rabit._config import Config

    secret = bytes.fromhex(Path(args.result).with_suffix(".secret").read_text())
    config = Config.from_environ().replace(secret=secret)
    engines = {}
    start = 0.0
    for epoch, algorithm in enumerate([*args.algorithms, AUTO], 1):
        rule = "" if algorithm == AUTO else algorithm
        start = time.perf_counter()
        engines[algorithm] = rabit.Engine(config.replace(allreduce_algorithm=rule), epoch=epoch)
    started = time.perf_counter() - start
    rows = []
    for size in args.sizes:
        seconds = measure_size(args, engines, size)
        rows.append({"size": size, "seconds": seconds, "chosen": chosen(engines[AUTO], size)})
    if config.rank == 0:
        document = {"rows": rows, "start": started}
        Path(args.result).write_text(json.dumps(document))
    for engine in engines.values():
        rabit.ordered_barrier(engine=engine)
        engine.close()


# --- the parent -----------------------------------------------------------------------------------


def worker_words(args: argparse.Namespace, result: Path) -> list[str]:
    return [
        *(sys.executable, str(Path(__file__).resolve()), "--worker", "--path", args.path),
        *("--sizes", ",".join(map(str, args.sizes)), "--rounds", str(args.rounds)),
        *("--algorithms", ",".join(args.algorithms), "--turn-seconds", str(args.turn_seconds)),
        *("--result", str(result)),
    ]


def launch(args: argparse.Namespace, result: Path) -> None:
    """Runs the ranks, each in a namespace of its own where links are shaped."""
    if not args.rate:
        run_ranks(args, result, "127.0.0.1", None)
        return
    if reason := shaped_links.why_not():
        raise SystemExit(f"--rate needs network namespaces: {reason}")
    rate = float(args.rate[:-1]) * {"G": 1e9, "M": 1e6}[args.rate[-1]]
    with shaped_links.build(args.ranks, rate) as lab:
        run_ranks(args, result, lab.gateway, lab)


def run_ranks(
    args: argparse.Namespace, result: Path, address: str, lab: shaped_links.Lab | None
) -> None:
    from rabit._meeting import StoreServer

    secret = secrets.token_bytes(32)
    key = result.with_suffix(".secret")
    key.touch(mode=0o600)
    key.write_text(secret.hex())
    store = StoreServer(address, 0, secret)
    ranks = []
    for rank in range(args.ranks):
        place = {"RABIT_LOCAL_RANK": str(rank), "RABIT_LOCAL_SIZE": str(args.ranks)}
        if lab is not None:
            place = {
                "RABIT_HOST_KEY": f"host{rank}",
                "RABIT_CROSS_RANK": str(rank),
                "RABIT_CROSS_SIZE": str(args.ranks),
                "RABIT_BIND_ADDRESS": lab.address(rank),
            }
        common = {
            "RABIT_RANK": str(rank),
            "RABIT_SIZE": str(args.ranks),
            "RABIT_STORE_ADDRESS": f"{address}:{store.port}",
            "RABIT_TRANSPORT": args.transport,
            "OMP_NUM_THREADS": "1",
        }
        words = [*([] if lab is None else lab.command(rank)), *worker_words(args, result)]
        ranks.append(subprocess.Popen(words, env={**os.environ, **common, **place}))
    codes = [process.wait(timeout=900) for process in ranks]
    store.close()
    if any(codes):
        raise SystemExit(f"the ranks exited with {codes}")


def print_rows(document: dict, args: argparse.Namespace) -> None:
    where = f"links of {args.rate}bit/s" if args.rate else f"transport {args.transport}"
    print(
        f"{args.ranks} ranks, {where}, {args.path} calls, medians of {args.rounds} turns; "
        f"the engine that chooses started in {document['start'] * 1e3:.0f} ms"
    )
    print(
        f"{'':>8}" + "".join(f"{name[:11]:>12}" for name in [*args.algorithms, AUTO]) + "  choice"
    )
    for row in document["rows"]:
        seconds = row["seconds"]
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        searched = {name: statistics.median(seconds[name][::2]) for name in args.algorithms}
        fastest = min(searched, key=searched.__getitem__)
        pairs = zip(seconds[fastest][1::2], seconds[AUTO][1::2], strict=True)
        ratio = statistics.median(theirs / ours for theirs, ours in pairs)
        print(
            f"{show_size(row['size']):>8}"
            + "".join(f"{show_time(each):>12}" for each in medians.values())
            + f"  {row['chosen']}, {ratio:.2f} of {fastest}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--sizes", default="1K,4K,16K,64K,256K,1M,4M,16M,64M", help="bytes")
    parser.add_argument("--transport", choices=("auto", "tcp"), default="auto")
    parser.add_argument("--rate", default="", help="shaped links, such as 1G or 200M; needs root")
    parser.add_argument(
        "--path", choices=("ordered", "engine"), default="ordered", help="ordered: no negotiation"
    )
    parser.add_argument("--algorithms", default=",".join(FIXED), help="those to compare with")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each (default 8)")
    parser.add_argument("--turn-seconds", type=float, default=0.01, help="about, of one turn")
    parser.add_argument("--json", help="also write every figure to this file")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.sizes = [parse_size(text) for text in args.sizes.split(",")]
    args.algorithms = args.algorithms.split(",")
    if args.worker:
        work(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        launch(args, result)
        document = json.loads(result.read_text())
    print_rows(document, args)
    if args.json:
        Path(args.json).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
