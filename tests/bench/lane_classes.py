"""Lanes of a fast backend beside those of a slow one.

Two hosts, which are namespaces, have two ranks each.  Those of the first exchange with each other through
shared memory (backend builtin, a process set), while sums of 16 MiB over all ranks cross the link of the given
rate (backend ps), in every other turn.  Each backend has lanes, credit and a queue of its own, so the fast
operations are to take at most 1.1 times their time alone.  In a third of the turns plain sockets of processes without
rabit carry as many bytes over the link both ways: what their column has above 1 is the kernel's, and what the lanes add
is the rest.

All is measured twice.  "Apart": what works for the slow backend, which is its lanes, the second host and the plain
sockets, has a processor of its own, as on hosts that have more of them than busy threads.  That is what the lanes can
be judged by.  "Shared": everything is on all processors of this machine, and where these are few, waiting for them is
part of the ratio, for plain sockets as well.  The links are made as cheap as can be: the kernel hands segments of
64 KiB to a shaper, whose queue has room for all that the connections have under way.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import case, lab_or_stop, on_ranks, rate, show_size, show_time, sizes, table
from harness import links as shaped_links

SLOW_BYTES = 16 << 20
SLOW_THREAD = "rabit-ps"
IN_FLIGHT = 3
RANKS_PER_HOST = 2
FLOW_CHUNK = 256 << 10
WAYS = ("alone", "plain", "beside")
APART, SHARED = "apart", "shared"
# Sums before the first turn: the lanes of a backend start when they are needed.
FIRST_SUMS = 4
MOST = 1.1
# Fast calls in a turn: as many as take this share of the time of the slow ones.
FEWEST, MOST_CALLS, SHARE = 5, 400, 0.2


class Processors(NamedTuple):
    """Where threads run that work for the fast backend, and for the slow one."""

    fast: set[int]
    slow: set[int]

    @classmethod
    def of(cls, place: str) -> Processors:
        every = os.sched_getaffinity(0)
        if place == SHARED:
            return cls(every, every)
        first, *others = sorted(every)
        if not others:
            raise SystemExit("one processor: nothing can be apart; run it on a machine with two")
        return cls({first}, {others[0]})

    def take(self, is_fast: bool) -> None:
        """Puts the threads of this rank there."""
        for thread, name in threads().items():
            is_slow = not is_fast or name == SLOW_THREAD
            os.sched_setaffinity(thread, self.slow if is_slow else self.fast)

    def check(self) -> None:
        lanes = [thread for thread, name in threads().items() if name == SLOW_THREAD]
        assert lanes, f"no thread is called {SLOW_THREAD}"
        for lane in lanes:
            assert os.sched_getaffinity(lane) == self.slow, "a lane started late"


def threads() -> dict[int, str]:
    """Those of this process: their names by number."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(task.name): (task / "comm").read_text().strip() for task in tasks}


def flow(peer: str) -> None:
    """Bytes to and from a process like this one.  Each line of stdin is a number of them.

    peer: its address, as host:port; "host:0": this one listens there, and prints where.
    """
    host, _, port = peer.rpartition(":")
    if port == "0":
        listener = socket.create_server((host, 0))
        print(listener.getsockname()[1], flush=True)
        link, _ = listener.accept()
    else:
        link = socket.create_connection((host, int(port)))
    out, into = bytes(FLOW_CHUNK), bytearray(FLOW_CHUNK)

    def send(left: int) -> None:
        while left > 0:
            link.sendall(out[: min(left, FLOW_CHUNK)])
            left -= FLOW_CHUNK

    for line in sys.stdin:
        left = int(line)
        sender = threading.Thread(target=send, args=(left,))
        sender.start()
        while left > 0:
            left -= link.recv_into(into, min(left, FLOW_CHUNK))
        sender.join()
        print("done", flush=True)


class Plain:
    """As many bytes over the link as the sums of `Slow`, by plain sockets.  All ranks make the same calls."""

    def __init__(self, processors: set[int]) -> None:
        import rabit

        self._processors = processors
        self._process: subprocess.Popen[str] | None = None
        mine, port = os.environ["RABIT_BIND_ADDRESS"], 0
        if rabit.rank() == 0:
            self._process = self._start(f"{mine}:0")
            assert self._process.stdout is not None
            port = int(self._process.stdout.readline())
        host, port = rabit.broadcast_object((mine, port), root_rank=0, name="flow")
        if rabit.rank() == RANKS_PER_HOST:
            self._process = self._start(f"{host}:{port}")

    def _start(self, peer: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", f"import lane_classes; lane_classes.flow({peer!r})"]
        pipe = subprocess.PIPE
        here = Path(__file__).parent
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, bufsize=1, cwd=here)
        os.sched_setaffinity(process.pid, self._processors)
        return process

    def start(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            # Each sum crosses the link once for each rank there.
            self._process.stdin.write(f"{IN_FLIGHT * RANKS_PER_HOST * SLOW_BYTES}\n")

    def is_running(self) -> bool:
        assert self._process is None or self._process.stdout is not None
        return self._process is None or not select.select([self._process.stdout], [], [], 0)[0]

    def finish(self) -> None:
        if self._process is not None:
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == "done\n"

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


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


def measure(size: int, turns: int, near: Any, processors: Processors) -> dict[str, Any]:
    """Seconds of a fast call by turn, alone and beside the slow backend, and bytes a second of that."""
    import rabit

    tensor, slow, plain = np.ones(size // 4, np.float32), Slow(), Plain(processors.slow)
    loads: dict[str, Slow | Plain | None] = {"alone": None, "plain": plain, "beside": slow}
    is_fast = rabit.rank() in near.ranks
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    slow_s = 0.0

    def fast() -> float:
        began = time.perf_counter()
        rabit.allreduce_(tensor, name=f"fast.{size}", op=rabit.Max, process_set=near)
        return time.perf_counter() - began

    def turn(way: str, calls: int) -> list[float]:
        nonlocal slow_s
        load = loads[way]
        rabit.barrier(name="turn")
        began = time.perf_counter()
        if load is not None:
            load.start()
        times = [fast() for _ in range(calls)] if is_fast else [0.0]
        if load is not None:
            assert not is_fast or load.is_running(), f"{calls} calls of {size} B outlast {way}"
            load.finish()
        if way == "beside":
            slow_s += time.perf_counter() - began
        return times

    for _ in range(FIRST_SUMS):  # Opens connections and memory.
        slow.start()
        slow.finish()
    processors.take(is_fast)
    once = max(turn("beside", FEWEST))
    most = float(rabit.allreduce(np.array([once / slow_s]), op=rabit.Max)[0])
    calls = max(FEWEST, min(MOST_CALLS, int(SHARE / most)))
    slow.ended, slow_s = 0, 0.0
    for number in range(turns):
        for way in WAYS[number % 3 :] + WAYS[: number % 3]:
            found[way].append(statistics.median(turn(way, calls)))
    plain.close()
    processors.check()
    return {"size": size, "times": found, "slow_rate": slow.ended * SLOW_BYTES / slow_s}


def lane_classes_rank(o: Any) -> list[dict[str, Any]]:
    os.environ |= {"RABIT_BACKEND": "builtin,ps"}
    import rabit

    rabit.init()
    near = rabit.add_process_set(rabit.ProcessSet([0, 1], backend="builtin"))
    places = {place: Processors.of(place) for place in (APART, SHARED)}
    rows = [
        measure(size, o.turns, near, processors) | {"place": place}
        for place, processors in places.items()
        for size in o.sizes
    ]
    classes = rabit.statistics()["lane_classes"]
    assert classes["ps"]["issued"] > 0 and classes["builtin"]["issued"] > 0, classes
    rabit.shutdown()
    return rows


@case(rate=rate("1G"), sizes=sizes("4K,64K,1M", "of the fast operations"), turns=9, timeout=300.0)
def lane_classes(o: Any) -> bool:
    """Operations of a fast backend, beside those of a slow one and alone, in turns."""
    # With segments of 8 KiB, shapers and bridge took a processor at 1 Gbit/s, and ranks waited for that.
    with lab_or_stop(2, o.rate, shaped_links.LONG_QUEUE_SECONDS) as lab:
        run = shaped_links.in_lab(lab, o.timeout, ranks_per_host=RANKS_PER_HOST)
        reports = on_ranks(lane_classes_rank, o, 2 * RANKS_PER_HOST, run=run)
        dropped = sum(lab.dropped())
    print(
        f"2 ranks on each of 2 hosts, links of {o.rate / 1e6:g} Mbit/s, {IN_FLIGHT} x {show_size(SLOW_BYTES)} "
        f"in flight on them, {o.turns} turns, {dropped} packets were dropped at the links"
    )
    fits, rows = True, []
    for row in zip(*reports, strict=True):
        times = {
            way: [max(turn) for turn in zip(*(each["times"][way] for each in row[:2]), strict=True)] for way in WAYS
        }
        ratios = {
            way: statistics.median(loaded / alone for loaded, alone in zip(times[way], times["alone"], strict=True))
            for way in ("plain", "beside")
        }
        if row[0]["place"] == APART:
            fits = fits and ratios["beside"] <= MOST
        medians = (show_time(statistics.median(each)) for each in times.values())
        slow = f"{row[0]['slow_rate'] / 1e6:.1f}"
        shares = (f"{each:.2f}" for each in ratios.values())
        rows.append([f"{row[0]['place']} {show_size(row[0]['size'])}", *medians, *shares, slow])
    table(["processors, bytes", *WAYS, "plain", "beside", "slow MB/s"], rows)
    print(f"apart at most {MOST}: {'met' if fits else 'missed'}")
    return fits
