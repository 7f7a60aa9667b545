"""What gradient methods cost on slow links.

Every rank is a process in a network namespace whose link is shaped.  The model is square matrices whose
gradients are random numbers that cost nothing to compute, so that a step is encoding and communication.
All ways take turns in one run.  Bytes are those that the kernel counts on the interface of a rank: with
headers and acknowledgements.  `formula` is what a rank sends by the method's own account, without them.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import Option, case, lab_or_stop, on_ranks, rate
from harness import links as shaped_links
from methods_bytes import bytes_of_engine

import rabit
from rabit import strategies

SIDE = 1024
LOOK_S, SENT_WITHIN = 0.02, 10.0
HEARTBEATS = 10_000  # bytes between two looks, which are not those of a step


def added(bits: float) -> Callable[[int], float]:
    """Bytes that one of W ranks sends in a step, over those of 4·d: of sums, and of what goes in two phases."""
    return lambda w: 2 * (w - 1) / w * bits / 32


def gathered(bits: float) -> Callable[[int], float]:
    """The same of what everybody gets from everybody."""
    return lambda w: (w - 1) * bits / 32


SCALE, PAIR, SIGNS = 32 / 512, 64 / 4096, 1 + 32 / 4096

# Texts of all methods that claim fewer bytes, and of torch's hooks.
WAYS: dict[str, Callable[[int], float] | None] = {
    "mean": added(32),
    "mean:codec=bf16": added(16),
    "bytegrad": added(8),
    "fp8": added(8),
    "natural": added(9),
    "qsgd:bits=8": added(8 + SCALE),
    "qsgd:bits=4": added(4 + SCALE),
    "nuqsgd:bits=4": added(4 + SCALE),
    "alq:bits=3": added(3 + SCALE),
    "amq:bits=3": added(3 + SCALE),
    "terngrad": gathered(2 + 32 / 4096),
    "sign": added(SIGNS),
    "onebit": added(1 + 64 / 512),
    "qadam:warmup=1": added(8 + PAIR),
    "onebit-adam:warmup=1": added(SIGNS),
    "onebit-lamb:warmup=1": added(SIGNS),
    "randomk:ratio=0.1": added(3.2),
    "wangni:ratio=0.05": gathered(64 * 0.05),
    "topk:ratio=0.01": gathered(64 * 0.01),
    "ef21:ratio=0.01": gathered(64 * 0.01),
    "ef21-sgdm:ratio=0.01": gathered(64 * 0.01),
    "dgc:ratio=0.001": gathered(64 * 0.001),
    "demo": gathered(48 * 8 / 64),
    "powersgd:rank=2": added(32 * 2 * 2 / SIDE),
    "local:every=32": added(1),
    "slowmo:every=32": added(1),
    "diloco:every=32": added(1),
    "sparseloco:every=32": gathered(64 * 0.02 / 32),
    "decentralized:peers=shift-one": lambda w: 1.0,
    "lowprecision": lambda w: 2 * (8 + PAIR) / 32,
    "ddp": added(32),
    "ddp fp16 hook": added(16),
    "ddp PowerSGD hook, rank 2": added(32 * 2 * 2 / SIDE),
}


def gradients(count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(rabit.rank())
    return {f"w{i}": random.standard_normal((SIDE, SIDE), np.float32) for i in range(count)}


class Method:
    """A method of rabit, on arrays."""

    def __init__(self, name: str, count: int) -> None:
        self.every = int(name.partition("every=")[2] or 1)
        self._given = gradients(count)
        self._trainer = strategies.ArrayTrainer(
            {key: np.zeros_like(value) for key, value in self._given.items()},
            strategies.make(name),
            lr=0.01,
            name=name.replace(":", "."),
        )

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._trainer.step(self._given)


class Peer:
    """DDP of torch on gloo, with one of its hooks."""

    every = 1

    def __init__(self, name: str, count: int) -> None:
        import torch
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
        from torch.nn.parallel import DistributedDataParallel

        given = [torch.from_numpy(each) for each in gradients(count).values()]

        class Matrices(torch.nn.Module):
            """Parameters whose gradients are given."""

            def __init__(self) -> None:
                super().__init__()
                self.weights = torch.nn.ParameterList(torch.zeros(SIDE, SIDE) for _ in given)

            def forward(self) -> torch.Tensor:
                pairs = zip(self.weights, given, strict=True)
                return torch.stack([(w * g).sum() for w, g in pairs]).sum()

        # In one bucket: with two, the hook for PowerSGD blocks the threads of gloo that it needs itself.
        self._net = DistributedDataParallel(Matrices(), bucket_cap_mb=1024)
        if "fp16" in name:  # torch's hook for bfloat16 is for NCCL alone.
            self._net.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif "PowerSGD" in name:
            state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2)
            self._net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._net.zero_grad()
            self._net().backward()
            for weight in self._net.parameters():
                weight.data.sub_(weight.grad, alpha=0.01)


# Its sums are of 8 KiB, which the engine may add up by recursive doubling where links are quick: log2 w times
# their bytes, in place of 2 (w - 1) / w.
SMALL_SUMS = "powersgd:rank=2"

# Times faster than the mean of gradients that a method is to be at 100 Mbit/s and less.
CLAIMS = {
    "bytegrad": 3.3,
    "qsgd:bits=8": 3.3,
    "qsgd:bits=4": 6.0,
    "powersgd:rank=2": 10.0,
    "topk:ratio=0.01": 10.0,
    "diloco:every=32": 20.0,
    "decentralized:peers=shift-one": 1.4,
}


def warmup(name: str) -> int:
    """Steps until it is what is measured: 1-bit methods begin with gradients, torch's PowerSGD with means."""
    return 3 if "warmup=" in name or name.startswith("ddp PowerSGD") else 1


def bytes_sent() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def wait_until_sent() -> None:
    """What nobody waits for may still be on its way when an operation ends; it is counted when it has left."""
    before, deadline = bytes_sent(), time.monotonic() + SENT_WITHIN
    while True:
        time.sleep(LOOK_S)
        now = bytes_sent()
        if now - before < HEARTBEATS:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {rabit.rank()} still sends {SENT_WITHIN} s after a step")
        before = now


def join_gloo(where: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=where, rank=rabit.rank(), world_size=rabit.size())


def methods_links_rank(o: Any) -> dict[str, list[list[float]]]:
    rabit.init()
    if any(name.startswith("ddp") for name in o.chosen):
        join_gloo(f"file://{o.folder}/gloo")
    ways = {name: (Peer if name.startswith("ddp") else Method)(name, o.count) for name in o.chosen}
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for turn in range(o.turns + 1):
        for name, way in ways.items():
            # The first turn warms up, through the phases with which some begin: it is not counted.
            count = max(o.steps if turn else warmup(name), way.every)
            rabit.barrier()
            before, counted, begin = bytes_sent(), bytes_of_engine(rabit), time.perf_counter()
            way.steps(count)
            rabit.barrier()
            seconds = (time.perf_counter() - begin) / count
            wait_until_sent()
            if turn:
                bytes_of_step = [bytes_sent() - before, bytes_of_engine(rabit) - counted]
                found[name].append([seconds, *(each / count for each in bytes_of_step)])
            if rabit.rank() == 0:
                print(f"turn {turn} {name}: {seconds:.4f} s", file=sys.stderr, flush=True)
            # What was measured counts, also if the ranks are ended by the clock.
            Path(o.folder, f"{rabit.rank()}.json").write_text(json.dumps(found))
    rabit.barrier()
    rabit.shutdown()
    return found


def rows_of(options: Any, reports: list[Any]) -> list[dict[str, Any]]:
    size = (options.mebibytes << 20) // (4 * SIDE * SIDE) * 4 * SIDE * SIDE
    rows, w = [], options.ranks
    for name in reports[0]:
        turns = min(len(report[name]) for report in reports)
        if not turns:
            continue
        slowest = [max(t[0] for t in turn) for turn in zip(*(r[name][:turns] for r in reports), strict=True)]
        sent, counted = (statistics.mean(t[place] for r in reports for t in r[name]) for place in (1, 2))
        formula = WAYS[name]
        rows.append(
            {
                "method": name,
                "seconds": statistics.median(slowest),
                "bytes": sent,
                "engine_bytes": None if name.startswith("ddp") else counted,
                "formula": size * formula(options.ranks) if formula else None,
                "formula_most": max(1.0, math.log2(w) / added(32)(w)) if name == SMALL_SUMS else 1.0,
            }
        )
    for row in rows:
        row["verdict"] = verdict(options.rate, row, rows)
    return rows


def verdict(rate: float, row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """What falls short of what is claimed, or nothing."""
    name, misses = row["method"], []
    counted, formula = row["engine_bytes"], row["formula"]
    if counted and formula and not 0.95 <= counted / formula <= 1.05 * row["formula_most"]:
        misses.append(f"{counted / formula:.2f} of the bytes of its formula")
    mean = next((each["seconds"] for each in rows if each["method"] == "mean"), None)
    if mean is not None and not name.startswith(("mean", "ddp")):
        least = CLAIMS.get(name, 1.0) if rate <= 1e8 else 1.0
        times = mean / row["seconds"]
        if times < least:
            misses.append(f"{times:.2f} times as fast as the mean, not {least:g}")
    return "; ".join(misses)


def show(options: Any, rows: list[dict[str, Any]]) -> None:
    base = {each["method"]: each["seconds"] for each in rows}
    size = options.mebibytes
    print(f"{options.ranks} ranks, {options.rate / 1e6:g} Mbit/s, {size} MiB of gradients")
    print(f"{'':28}{'s/step':>10}{'mean':>8}{'ddp':>8}{'MB sent':>10}{'formula':>10}")
    for each in rows:
        line = f"{each['method']:28}{each['seconds']:10.4f}"
        for other in ("mean", "ddp"):
            ratio = base[other] / each["seconds"] if other in base else float("nan")
            line += f"{ratio:7.2f}x"
        numbers = f"{each['bytes'] / 1e6:10.3f}{(each['formula'] or 0) / 1e6:10.3f}"
        print(f"{line}{numbers}  {each['verdict'] or 'ok'}")


@case(
    ranks=4,
    rate=rate("100M"),
    mebibytes=16,
    ways=Option("", help="some of them, with + between"),
    turns=3,
    steps=2,
    timeout=590.0,
    save=Option("", help="a JSON file for methods_picture"),
)
def methods_links(o: Any) -> None:
    """What gradient methods cost on slow links: seconds and bytes of a step, beside torch's own hooks on gloo."""
    o.count = max(1, o.mebibytes // (4 * SIDE * SIDE >> 20))
    o.chosen = o.ways.split("+") if o.ways else list(WAYS)
    with lab_or_stop(o.ranks, o.rate, segment_bytes=shaped_links.SEGMENT_BYTES) as lab:
        rows = rows_of(o, on_ranks(methods_links_rank, o, o.ranks, run=shaped_links.in_lab(lab, o.timeout)))
    show(o, rows)
    if o.save:
        Path(o.save).parent.mkdir(parents=True, exist_ok=True)
        saved = {"rate": o.rate, "mebibytes": o.mebibytes, "rows": rows}
        Path(o.save).write_text(json.dumps(saved, indent=1) + "\n")
