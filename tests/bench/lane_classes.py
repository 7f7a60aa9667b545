"""Operations of a fast backend, beside those of a slow one and alone, in turns.

    sudo python tests/bench/lane_classes.py [--rate 1G] [--sizes 4K,64K,1M]

Two hosts, which are namespaces, have two ranks each.  Those of the first exchange with each other through
shared memory (backend builtin, a process set), while sums of 16 MiB over all ranks cross the link of the given
rate (backend ps), in every other turn.  Each backend has lanes, credit and a queue of its own, so the fast
operations are to take at most 1.1 times their time alone.  All ranks and the kernel's TCP share the processors of this
machine, and where these are few that is part of the ratio.  So the links are made as cheap as can be: the kernel hands
segments of 64 KiB to a shaper, whose queue has room for all that the connections have under way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import shaped_links
import shaped_ranks
from peers import parse_size, show_size, show_time
from schedule import parse_rate

SLOW_BYTES = 16 << 20
IN_FLIGHT = 3
MOST = 1.1
# Fast calls in a turn: as many as take this share of the time of the slow ones.
FEWEST, MOST_CALLS, SHARE = 5, 400, 0.2
# With segments of 8 KiB, shapers and bridge took a whole processor at 1 Gbit/s, and ranks waited for that.
LINK_QUEUE_S = 0.04


class Slow:
    """Keeps operations of the slow backend in flight.  All ranks make the same calls."""

    def __init__(self) -> None:
        import rabit

        self._tensors = [np.ones(SLOW_BYTES // 4, np.float32) for _ in range(IN_FLIGHT)]
        self._run = rabit.allreduce_async_
        self._sum = rabit.Sum
        self._handles: list[Any] = []
        self.ended = 0

    def start(self) -> None:
        self._handles = [
            self._run(each, name=f"slow.{place}", op=self._sum, backend="ps")
            for place, each in enumerate(self._tensors)
        ]

    def is_running(self) -> bool:
        return any(not each.done() for each in self._handles)

    def finish(self) -> None:
        for each in self._handles:
            each.wait()
        self.ended += len(self._handles)


def measure(size: int, turns: int, near: Any) -> dict[str, Any]:
    """Seconds of a fast call by turn, alone and beside the slow backend, and bytes a second of that."""
    import rabit

    tensor, slow = np.ones(size // 4, np.float32), Slow()
    is_fast = rabit.rank() in near.ranks
    found: dict[str, list[float]] = {"alone": [], "beside": []}
    slow_s = 0.0

    def fast() -> float:
        began = time.perf_counter()
        rabit.allreduce_(tensor, name=f"fast.{size}", op=rabit.Max, process_set=near)
        return time.perf_counter() - began

    def turn(way: str, calls: int) -> list[float]:
        nonlocal slow_s
        rabit.barrier(name="turn")
        began = time.perf_counter()
        if way == "beside":
            slow.start()
        times = [fast() for _ in range(calls)] if is_fast else [0.0]
        if way == "beside":
            assert not is_fast or slow.is_running(), (
                f"{calls} calls of {size} B outlast the slow backend's"
            )
            slow.finish()
            slow_s += time.perf_counter() - began
        return times

    slow.start()  # Opens connections and memory.
    slow.finish()
    once = max(turn("beside", FEWEST))
    most = float(rabit.allreduce(np.array([once / slow_s]), op=rabit.Max)[0])
    calls = max(FEWEST, min(MOST_CALLS, int(SHARE / most)))
    slow.ended, slow_s = 0, 0.0
    for number in range(turns):
        for way in ("alone", "beside") if number % 2 else ("beside", "alone"):
            found[way].append(statistics.median(turn(way, calls)))
    return {"size": size, "times": found, "slow_rate": slow.ended * SLOW_BYTES / slow_s}


def work(task: dict[str, Any]) -> None:
    import rabit

    rabit.init()
    near = rabit.add_process_set(rabit.ProcessSet([0, 1], backend="builtin"))
    rows = [measure(size, task["turns"], near) for size in task["sizes"]]
    classes = rabit.statistics()["lane_classes"]
    assert classes["ps"]["issued"] > 0 and classes["builtin"]["issued"] > 0, classes
    Path(task["results"], f"{rabit.rank()}.json").write_text(json.dumps(rows))
    rabit.shutdown()


def show(options: argparse.Namespace, reports: list[list[dict[str, Any]]]) -> bool:
    print(
        f"2 ranks on each of 2 hosts, links of {options.rate / 1e6:g} Mbit/s, "
        f"{IN_FLIGHT} x {show_size(SLOW_BYTES)} in flight on them, {options.turns} turns"
    )
    print(f"{'bytes':>10}{'alone':>12}{'beside':>12}{'ratio':>8}{'slow MB/s':>12}")
    fits = True
    for row in zip(*reports, strict=True):
        medians = {
            way: [max(turn) for turn in zip(*(each["times"][way] for each in row[:2]), strict=True)]
            for way in ("alone", "beside")
        }
        pairs = zip(medians["beside"], medians["alone"], strict=True)
        ratio = statistics.median(beside / alone for beside, alone in pairs)
        fits = fits and ratio <= MOST
        print(
            f"{show_size(row[0]['size']):>10}"
            + "".join(f"{show_time(statistics.median(each)):>12}" for each in medians.values())
            + f"{ratio:8.2f}{row[0]['slow_rate'] / 1e6:12.1f}"
        )
    print(f"at most {MOST}: {'met' if fits else 'missed'}")
    return fits


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rate", type=parse_rate, default="1G", help="of each link, as 1G")
    parser.add_argument("--sizes", default="4K,64K,1M", help="of the fast operations, in bytes")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for all of it")
    options = shaped_ranks.options_of(parser, work)
    os.environ |= {"RABIT_BACKEND": "builtin,ps"}
    sizes = [parse_size(each) for each in options.sizes.split(",")]
    task = {"sizes": sizes, "turns": options.turns}
    with (
        shaped_links.build(2, options.rate, LINK_QUEUE_S) as lab,
        tempfile.TemporaryDirectory() as folder,
    ):
        reports = shaped_ranks.run_task(
            lab, Path(folder), __file__, task, options.timeout, ranks_per_host=2
        )
        dropped = sum(lab.dropped())
    print(f"{dropped} packets were dropped at the links")
    return 0 if show(options, reports) else 1


if __name__ == "__main__":
    sys.exit(main())
