"""What the autotuner is worth."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np
from harness import Option, case, interval, lab_or_stop, on_ranks, rate, table, turns, words
from harness import links as shaped_links
from harness.report import median

import rabit
from rabit import Batch, Engine, Kind, Request, Sum
from rabit.engine.tensor import view_output

WRONG = {"partition_bytes": 16 << 10, "fusion_bytes": 16 << 10, "credit_bytes": 64 << 10, "lanes": 1}
GRID = {
    "partition_bytes": (512 << 10, 1 << 20, 2 << 20, 8 << 20),
    "fusion_bytes": (1 << 20, 64 << 20),
    "credit_bytes": (1 << 20, 4 << 20, 0),
    "lanes": (1, 2),
}


class Loop:
    """A training loop: `layers` gradients of growing size, `compute` seconds a step."""

    def __init__(self, engine: Engine, layers: int, total_bytes: int, compute: float) -> None:
        self.engine = engine
        shares = np.geomspace(1.0, 30.0, layers)
        counts = (shares / shares.sum() * total_bytes / 4).astype(int)
        self._buffers = [np.ones(count, np.float32) for count in counts]
        self._forward, self._backward = compute / 3 / layers, compute * 2 / 3 / layers
        requests = []
        for index, buffer in enumerate(self._buffers):
            view = view_output(buffer, "gradient")
            requests.append(Request(Kind.ALLREDUCE, f"g{index}", view, view, Sum, priority=-index))
        self._batch: Batch = engine.prepare(requests)
        self._handles: list[Any] = [None] * layers

    def step(self) -> None:
        deadline = time.perf_counter()
        for handle in self._handles:
            if handle is not None:
                handle.wait(60)
            deadline = max(deadline, time.perf_counter()) + self._forward
            time.sleep(max(deadline - time.perf_counter(), 0))
        for index in reversed(range(len(self._handles))):
            deadline += self._backward
            time.sleep(max(deadline - time.perf_counter(), 0))
            self._buffers[index].fill(1.0)
            self._handles[index] = self._batch.submit([index])[0]
        self.engine.end_step()

    def drain(self) -> None:
        for index, handle in enumerate(self._handles):
            if handle is not None:
                handle.wait(60)
            self._handles[index] = None

    def window(self, steps: int) -> float:
        """Seconds of a step, after one that does not count."""
        rabit.any_rank(False, engine=self.engine)  # all begin together
        self.step()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        took = (time.perf_counter() - began) / steps
        self.drain()
        return took


def autotune_rank(options: Any) -> dict[str, Any]:
    rabit.init()
    base = rabit.default_engine().config.replace(autotune_cache="off")
    tuning = {
        "autotune": True,
        "autotune_steps_per_sample": options.steps,
        "autotune_warmup_samples": 2,
        "autotune_samples": options.samples,
    }
    configs = {
        "off": base,
        "tuned": base.replace(**tuning),
        "wrong": base.replace(**WRONG),
        "rescued": base.replace(**tuning, **WRONG),
        "fixed": base.replace(sizes="fixed"),
    }
    configs = {name: configs[name] for name in options.engines}
    loops = {
        name: Loop(Engine(config, epoch=epoch), options.layers, options.bytes, options.compute)
        for epoch, (name, config) in enumerate(configs.items(), 1 << 21)
    }
    report: dict[str, Any] = {}
    for name, loop in loops.items():
        steps, began = 0, time.perf_counter()
        while rabit.any_rank(loop.engine.is_tuning, engine=loop.engine):
            for _ in range(5):
                loop.step()
            steps += 5
        loop.drain()
        document = loop.engine.statistics()
        seconds = time.perf_counter() - began
        report[name] = {"steps": steps, "tuning_s": seconds, **document.get("autotune", {})}
    windows = {name: lambda loop=loop: loop.window(options.steps) for name, loop in loops.items()}
    times = turns(windows, options.turns, warm=0)
    for name, loop in loops.items():
        report[name]["tunables"] = loop.engine.statistics()["tunables"]
    if options.grid:
        times["best of grid"], report["grid"] = search_grid(loops["tuned"], options)
    for loop in loops.values():
        loop.engine.close()
    rabit.shutdown()
    return {"report": report, "times": times}


def search_grid(loop: Loop, options: Any) -> tuple[list[float], dict[str, int]]:
    """The windows of the best combination, and that combination.  Rank 0's times decide."""

    def put(values: dict[str, int]) -> None:
        if loop.engine.rank == 0:
            loop.engine.propose_tunables(**values)

    found = []
    for choice in itertools.product(*GRID.values()):
        values = dict(zip(GRID, choice, strict=True))
        put(values)
        found.append((loop.window(max(options.steps // 2, 2)), values))
    best = rabit.broadcast_object(min(found, key=lambda each: each[0])[1], 0, "best", engine=loop.engine)
    put(best)
    return [loop.window(options.steps) for _ in range(options.turns)], best


@case(
    ranks=2,
    rate=rate("", "of each link, such as 1G or 100M; none: one host"),
    layers=16,
    bytes=8_000_000,
    compute=0.08,
    steps=6,
    samples=16,
    turns=9,
    grid=False,
    engines=words("off,tuned,wrong,rescued", "some of these and fixed, off first"),
    env=Option("", help="NAME=VALUE, of all ranks"),
    timeout=900.0,
)
def autotune(o: Any) -> None:
    """What the autotuner is worth: step times with it, without it, and with bad settings to begin with.

    With --rate every rank has a namespace and a shaped link; else nothing is shaped.  An emulated device (layers are
    absolute deadlines, gradients are real buffers) trains while the tuner works: forward waits for each layer's own
    gradient, backward submits them.  Engines live in the same processes: `off` never tunes, `tuned` starts from the
    same settings; `wrong` has sizes that are wrong on purpose and never tunes, `rescued` starts from them; `fixed` is
    off with RABIT_SIZES=fixed.  After the tuning all take turns, and `best of grid` (--grid) is the fastest of 48
    combinations by hand.
    """
    environ = dict([o.env.split("=", 1)]) if o.env else {}
    if o.rate:
        os.environ |= environ
        with lab_or_stop(o.ranks, o.rate) as lab:
            found = on_ranks(autotune_rank, o, o.ranks, run=shaped_links.in_lab(lab, o.timeout))[0]
    else:
        found = on_ranks(autotune_rank, o, o.ranks, environ=environ, timeout=o.timeout)[0]
    where = f"links of {o.rate / 1e6:g} Mbit/s" if o.rate else "one host"
    print(
        f"{o.ranks} ranks, {where}, {o.layers} gradients of {o.bytes / 1e6:g} MB in all, {o.compute * 1e3:g} ms of "
        f"computation; {o.turns} turns of {o.steps} steps"
    )
    rows, times = [], found["times"]
    for name, mine in times.items():
        beside = "wrong" if name == "rescued" else "off"
        low, high = interval(lambda base, ours: median(base) / median(ours), times[beside], mine)
        speed = median(times[beside]) / median(mine)
        rows.append([name, f"{median(mine) * 1e3:.1f} ms", f"{speed:.3f} of {beside}", f"[{low:.3f}, {high:.3f}]"])
    table(["", "a step", "times as fast", "95 %"], rows)
    for name, report in found["report"].items():
        if name == "grid" or not report["steps"]:
            print(f"  {name}: {report if name == 'grid' else report['tunables']}")
            continue
        end = "off" if report["is_off"] else "its own choice"
        print(
            f"  {name} ended with {end} after {report['steps']} steps, {report['tuning_s']:.0f} s, "
            f"{report.get('pairs_lost')} of {report.get('pairs')} pairs lost: {report['tunables']}"
        )
