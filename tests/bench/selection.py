"""Allreduce: the automatic choice of an algorithm beside every fixed one, in one run.

    python tests/bench/selection.py [--ranks 4] [--transport auto] [--sizes 1K,16K,1M]
    sudo python tests/bench/selection.py --ranks 4 --rate 1G --sizes 64K,1M,16M --rounds 6

Every rank holds one engine for each algorithm and one that chooses by itself; they take turns, in an
order that rotates, on the same buffer.  With --rate every rank has a network namespace of its own
behind a link of that many bits a second.

The fastest of several noisy medians looks faster than it is.  Therefore the fastest algorithm is
looked for in turns of their own.  Then the automatic choice runs beside it, next to each other in
time, for --rounds turns more: the ratio is the median of theirs / ours, above 1 the choice is faster,
with the interval that holds it in 95 of 100 cases.  Where another algorithm was chosen, an engine
that is told to use the choice runs too; where the same one was, the ratio shows nothing but noise.
"""

from __future__ import annotations

import argparse
import json
import math
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


def take_turn(args: argparse.Namespace, engine, array: np.ndarray, once: float | None) -> float:
    """Seconds of one operation, the mean of one turn; `once`: about what one takes."""
    import rabit

    name = f"bench.{array.nbytes}"
    run_once(args.path, engine, array, name)
    rabit.ordered_barrier(engine=engine)
    count = 1 if once is None else max(1, min(100, int(args.turn_seconds / once)))
    start = time.perf_counter()
    for _ in range(count):
        run_once(args.path, engine, array, name)
    return (time.perf_counter() - start) / count


def from_rank_0(engine, value: float) -> float:
    """Rank 0's figure, so that all ranks count and choose alike."""
    import rabit

    mine = np.array([value], dtype=np.float64)
    rabit.ordered_broadcast_(mine, 0, engine=engine)
    return float(mine[0])


def measure_size(args: argparse.Namespace, engines: dict, size: int) -> dict:
    """Seconds of one operation by algorithm and turn, of the search and of the comparison."""
    array = np.ones(max(size // 4, 1), dtype=np.float32)
    names = list(engines)
    once = None
    search: dict[str, list[float]] = {each: [] for each in names}
    for turn in range(args.search_rounds + 1):
        for algorithm in names[turn % len(names) :] + names[: turn % len(names)]:
            taken = take_turn(args, engines[algorithm], array, once)
            if turn:  # the first turn warms up
                search[algorithm].append(taken)
        if once is None:
            once = from_rank_0(engines[AUTO], taken)
    medians = [statistics.median(search[each]) for each in args.algorithms]
    best = int(from_rank_0(engines[AUTO], medians.index(min(medians))))
    choice = chosen(engines[AUTO], size)
    beside = [AUTO, args.algorithms[best]]
    if choice in args.algorithms and choice not in beside:
        beside.append(choice)
    comparison: dict[str, list[float]] = {each: [] for each in beside}
    for turn in range(args.rounds):
        for algorithm in beside if turn % 2 else reversed(beside):
            comparison[algorithm].append(take_turn(args, engines[algorithm], array, once))
    return {
        "size": size,
        "search": search,
        "comparison": comparison,
        "fastest": args.algorithms[best],
        "chosen": choice,
    }


def chosen(engine, size: int) -> str:
    """What the engine would run: the algorithm that has run once more than before."""
    import rabit

    def counts() -> dict[str, int]:
        found = engine.statistics()["routes"]
        return {
            each["algorithm"]: each["exchanges"] for each in found if each["kind"] == "allreduce"
        }

    before = counts()
    rabit.ordered_allreduce_(np.ones(size // 4, dtype=np.float32), rabit.Max, engine=engine)
    after = counts()
    return next(key for key in after if after[key] != before.get(key, 0))


def work(args: argparse.Namespace) -> None:
    import rabit
    from rabit.config.config import Config

    secret = bytes.fromhex(Path(args.result).with_suffix(".secret").read_text())
    config = Config.from_environ().replace(secret=secret)
    engines = {}
    start = 0.0
    for epoch, algorithm in enumerate([*args.algorithms, AUTO], 1):
        rule = "" if algorithm == AUTO else algorithm
        start = time.perf_counter()
        engines[algorithm] = rabit.Engine(config.replace(allreduce_algorithm=rule), epoch=epoch)
    started = time.perf_counter() - start
    rows = [measure_size(args, engines, size) for size in args.sizes]
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
        *("--search-rounds", str(args.search_rounds)),
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
    from rabit.rendezvous.discovery import StoreServer

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


def median_and_interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and two of the values that hold the true one between them in about 95 % of cases."""
    ranked = sorted(values)
    reach = 0.98 * math.sqrt(len(ranked))  # 1.96 standard deviations of a binomial rank
    low = max(0, math.floor(len(ranked) / 2 - reach) - 1)
    high = min(len(ranked) - 1, math.ceil(len(ranked) / 2 + reach))
    return statistics.median(ranked), ranked[low], ranked[high]


def show_ratio(row: dict, ours: str) -> str:
    fastest = row["fastest"]
    pairs = zip(row["comparison"][fastest], row["comparison"][ours], strict=True)
    middle, low, high = median_and_interval([theirs / mine for theirs, mine in pairs])
    return f"{middle:.3f} ({low:.2f}-{high:.2f}) of {fastest}"


def print_rows(document: dict, args: argparse.Namespace) -> None:
    where = f"links of {args.rate}bit/s" if args.rate else f"transport {args.transport}"
    print(
        f"{args.ranks} ranks, {where}, {args.path} calls, medians of {args.search_rounds} turns, "
        f"ratios of {args.rounds}; the engine that chooses started in {document['start'] * 1e3:.0f} ms"
    )
    print(
        f"{'':>8}" + "".join(f"{name[:11]:>12}" for name in [*args.algorithms, AUTO]) + "  choice"
    )
    for row in document["rows"]:
        medians = [statistics.median(values) for values in row["search"].values()]
        told = ""
        if row["chosen"] != row["fastest"] and row["chosen"] in row["comparison"]:
            told = f"; told to: {show_ratio(row, row['chosen'])}"
        print(
            f"{show_size(row['size']):>8}"
            + "".join(f"{show_time(each):>12}" for each in medians)
            + f"  {row['chosen']}, {show_ratio(row, AUTO)}{told}"
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
    parser.add_argument("--rounds", type=int, default=24, help="of the comparison (default 24)")
    parser.add_argument("--search-rounds", type=int, default=6, help="of each (default 6)")
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
