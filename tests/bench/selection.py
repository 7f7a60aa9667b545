"""Allreduce: the automatic choice of an algorithm beside every fixed one."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import numpy as np
from harness import (
    case,
    choice,
    lab_or_stop,
    on_ranks,
    rate,
    show_size,
    show_time,
    sizes,
    table,
    words,
)
from harness import links as shaped_links

import rabit

AUTO = "auto"
FIXED = tuple(rabit.capabilities()["algorithms"])


# --- one rank -------------------------------------------------------------------------------------


def run_once(path: str, engine, array: np.ndarray, name: str) -> None:
    if path == "ordered":
        rabit.ordered_allreduce_(array, rabit.Max, engine=engine)
    else:
        rabit.allreduce_(array, name=name, op=rabit.Max, engine=engine)


def take_turn(args: Any, engine, array: np.ndarray, once: float | None) -> float:
    """Seconds of one operation, the mean of one turn; `once`: about what one takes."""
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
    mine = np.array([value], dtype=np.float64)
    rabit.ordered_broadcast_(mine, 0, engine=engine)
    return float(mine[0])


def measure_size(args: Any, engines: dict, size: int) -> dict:
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
    def counts() -> dict[str, int]:
        found = engine.statistics()["routes"]
        return {each["algorithm"]: each["exchanges"] for each in found if each["kind"] == "allreduce"}

    before = counts()
    rabit.ordered_allreduce_(np.ones(size // 4, dtype=np.float32), rabit.Max, engine=engine)
    after = counts()
    return next(key for key in after if after[key] != before.get(key, 0))


def selection_rank(args: Any) -> dict[str, Any]:
    rabit.init()
    config, engines, started = rabit.default_engine().config, {}, 0.0
    for epoch, algorithm in enumerate([*args.algorithms, AUTO], 1 << 21):
        rule = "" if algorithm == AUTO else algorithm
        began = time.perf_counter()
        engines[algorithm] = rabit.Engine(config.replace(allreduce_algorithm=rule), epoch=epoch)
        started = time.perf_counter() - began
    rows = [measure_size(args, engines, size) for size in args.sizes]
    for engine in engines.values():
        rabit.ordered_barrier(engine=engine)
        engine.close()
    rabit.shutdown()
    return {"rows": rows, "start": started}


# --- the parent -----------------------------------------------------------------------------------


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


@case(
    ranks=2,
    sizes=sizes("1K,4K,16K,64K,256K,1M,4M,16M,64M"),
    transport=choice("auto", "tcp"),
    rate=rate("", "shaped links, such as 1G or 200M; needs root"),
    path=choice("ordered", "engine", help="ordered: no negotiation"),
    algorithms=words(",".join(FIXED)),
    rounds=24,
    search_rounds=6,
    turn_seconds=0.01,
)
def selection(o: Any) -> None:
    """Allreduce: the automatic choice of an algorithm beside every fixed one, in one run.

    Every rank holds one engine for each algorithm and one that chooses by itself; they take turns, in an
    order that rotates, on the same buffer.  With --rate every rank has a network namespace of its own
    behind a link of that many bits a second.

    The fastest of several noisy medians looks faster than it is.  Therefore the fastest algorithm is
    looked for in turns of their own.  Then the automatic choice runs beside it, next to each other in
    time, for --rounds turns more: the ratio is the median of theirs / ours, above 1 the choice is faster,
    with the interval that holds it in 95 of 100 cases.  Where another algorithm was chosen, an engine
    that is told to use the choice runs too; where the same one was, the ratio shows nothing but noise.
    """
    if o.rate:
        with lab_or_stop(o.ranks, o.rate) as lab:
            found = on_ranks(selection_rank, o, o.ranks, run=shaped_links.in_lab(lab, 900))[0]
    else:
        found = on_ranks(selection_rank, o, o.ranks, environ={"RABIT_TRANSPORT": o.transport}, timeout=900)[0]
    where = f"links of {o.rate / 1e6:g} Mbit/s" if o.rate else f"transport {o.transport}"
    print(
        f"{o.ranks} ranks, {where}, {o.path} calls, medians of {o.search_rounds} turns, ratios of {o.rounds}; "
        f"the engine that chooses started in {found['start'] * 1e3:.0f} ms"
    )
    rows = []
    for row in found["rows"]:
        medians = [show_time(statistics.median(values)) for values in row["search"].values()]
        told = ""
        if row["chosen"] != row["fastest"] and row["chosen"] in row["comparison"]:
            told = f"; told to: {show_ratio(row, row['chosen'])}"
        rows.append([show_size(row["size"]), *medians, f"{row['chosen']}, {show_ratio(row, AUTO)}{told}"])
    table(["", *o.algorithms, AUTO, "choice"], rows)
