"""What the autotuner is worth: step times with it, without it, and with bad settings to begin with.

    sudo python tests/bench/autotune.py --ranks 4 --rate 1G    # a namespace and a shaped link for each
    python tests/bench/autotune.py --ranks 2                   # one host, nothing shaped

An emulated device (layers are absolute deadlines, gradients are real buffers) trains while the tuner
works: forward waits for each layer's own gradient, backward submits them.  Engines live in the same
processes: `off` never tunes, `tuned` starts from the same settings; `wrong` has sizes that are wrong
on purpose and never tunes, `rescued` starts from them; `fixed` is off with RABIT_SIZES=fixed.  After
the tuning all take turns, and `best of grid` is the fastest of 48 combinations by hand.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import rabit
from rabit import Batch, Config, Engine, Kind, Request, Sum
from rabit.engine.tensor import view_output
from rabit.rendezvous.discovery import StoreServer
from rabit.rendezvous.placement import secret_from_file

WRONG = {
    "partition_bytes": 16 << 10,
    "fusion_bytes": 16 << 10,
    "credit_bytes": 64 << 10,
    "lanes": 1,
}
GRID = {
    "partition_bytes": (512 << 10, 1 << 20, 2 << 20, 8 << 20),
    "fusion_bytes": (1 << 20, 64 << 20),
    "credit_bytes": (1 << 20, 4 << 20, 0),
    "lanes": (1, 2),
}


def parse_rate(text: str) -> float:
    return float(text[:-1]) * {"M": 1e6, "G": 1e9}[text[-1].upper()]


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


def be_rank(options: argparse.Namespace) -> None:
    base = Config.from_environ(autotune_cache="off")
    base = base.replace(secret=secret_from_file(base.secret_file))
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
    configs = {name: configs[name] for name in options.engines.split(",")}
    loops = {
        name: Loop(Engine(config, epoch=epoch), options.layers, options.bytes, options.compute)
        for epoch, (name, config) in enumerate(configs.items(), 1)
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
    times: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(options.turns):
        order = list(loops) if turn % 2 == 0 else list(reversed(loops))
        for name in order:
            times[name].append(loops[name].window(options.steps))
    for name, loop in loops.items():
        report[name]["tunables"] = loop.engine.statistics()["tunables"]
    if options.grid:
        times["best of grid"], report["grid"] = search_grid(loops["tuned"], options)
    if base.rank == 0:
        Path(options.rank_file).write_text(json.dumps({"report": report, "times": times}))
    for loop in loops.values():
        loop.engine.close()


def search_grid(loop: Loop, options: argparse.Namespace) -> tuple[list[float], dict[str, int]]:
    """The windows of the best combination, and that combination.  Rank 0's times decide."""

    def put(values: dict[str, int]) -> None:
        if loop.engine.rank == 0:
            loop.engine.propose_tunables(**values)

    found = []
    for choice in itertools.product(*GRID.values()):
        values = dict(zip(GRID, choice, strict=True))
        put(values)
        found.append((loop.window(max(options.steps // 2, 2)), values))
    best = rabit.broadcast_object(
        min(found, key=lambda each: each[0])[1], 0, "best", engine=loop.engine
    )
    put(best)
    return [loop.window(options.steps) for _ in range(options.turns)], best


def start(options: argparse.Namespace, result: Path) -> None:
    """Runs the ranks, each in a namespace of its own where links are shaped."""
    secret = secrets.token_bytes(32)
    secret_file = result.with_suffix(".secret")
    secret_file.touch(mode=0o600)
    secret_file.write_text(secret.hex())

    def run(address: str, lab: Any) -> None:
        store = StoreServer(address, 0, secret)
        environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "RABIT_SIZE": str(options.ranks),
            "RABIT_SECRET_FILE": str(secret_file),
            "RABIT_STORE_ADDRESS": f"{address}:{store.port}",
            **dict(each.split("=", 1) for each in options.env),
        }
        ranks = []
        for rank in range(options.ranks):
            mine = {"RABIT_RANK": str(rank)}
            if lab is None:
                mine |= {"RABIT_LOCAL_RANK": str(rank), "RABIT_LOCAL_SIZE": str(options.ranks)}
            else:
                mine |= {
                    "RABIT_HOST_KEY": f"host{rank}",
                    "RABIT_CROSS_RANK": str(rank),
                    "RABIT_CROSS_SIZE": str(options.ranks),
                    "RABIT_BIND_ADDRESS": lab.address(rank),
                }
            command = [sys.executable, *sys.argv, "--rank-file", str(result)]
            prefix = [] if lab is None else lab.command(rank)
            ranks.append(subprocess.Popen([*prefix, *command], env=environ | mine))
        codes = [each.wait(options.timeout) for each in ranks]
        store.close()
        if any(codes):
            raise SystemExit(f"ranks ended with {codes}")

    if options.rate:
        import shaped_links

        if reason := shaped_links.why_not():
            raise SystemExit(f"skipped: links cannot be shaped here: {reason}")
        with shaped_links.build(options.ranks, parse_rate(options.rate)) as lab:
            run(lab.gateway, lab)
    else:
        run("127.0.0.1", None)


def interval(over: list[float], under: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of medians."""
    generator = random.Random(1)
    found = sorted(
        statistics.median(generator.choices(over, k=len(over)))
        / statistics.median(generator.choices(under, k=len(under)))
        for _ in range(2000)
    )
    return found[50], found[1949]


def show(options: argparse.Namespace, document: dict[str, Any]) -> None:
    where = f"links of {options.rate}bit/s" if options.rate else "one host"
    print(
        f"{options.ranks} ranks, {where}, {options.layers} gradients of {options.bytes / 1e6:g} MB "
        f"in all, {options.compute * 1e3:g} ms of computation; {options.turns} turns of "
        f"{options.steps} steps"
    )
    times = document["times"]
    for name, each in times.items():
        beside = "wrong" if name == "rescued" else "off"
        low, high = interval(times[beside], each)
        ratio = statistics.median(times[beside]) / statistics.median(each)
        print(
            f"  {name:<13}{statistics.median(each) * 1e3:8.1f} ms a step, "
            f"{ratio:.3f} times as fast as {beside} [{low:.3f}, {high:.3f}]"
        )
    for name, each in document["report"].items():
        if name == "grid":
            print(f"  grid: {each}")
        elif each["steps"]:
            end = "off" if each["is_off"] else "its own choice"
            print(
                f"  {name} ended with {end} after {each['steps']} steps, {each['tuning_s']:.0f} s, "
                f"{each.get('pairs_lost')} of {each.get('pairs')} pairs lost: {each['tunables']}"
            )
        else:
            print(f"  {name}: {each['tunables']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--rate", default="", help="of each link, such as 1G or 100M; none: one host"
    )
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--bytes", type=int, default=8_000_000, help="of all gradients")
    parser.add_argument(
        "--compute", type=float, default=0.08, help="seconds of a step's computation"
    )
    parser.add_argument("--steps", type=int, default=6, help="steps of a window")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--grid", action="store_true", help="measure 48 combinations as well")
    parser.add_argument(
        "--engines", default="off,tuned,wrong,rescued", help="some of these and fixed, off first"
    )
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--rank-file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_file:
        return be_rank(options)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        start(options, result)
        show(options, json.loads(result.read_text()))
    return None


if __name__ == "__main__":
    main()
