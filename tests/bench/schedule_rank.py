"""One rank of tests/bench schedule: an emulated device, and the ways to communicate beside it.

The device is a clock: a layer advances it by the layer's time and sleeps to that moment, an absolute
one, so that lateness does not add up (schedule_device.py).  Gradients are real buffers.  All ways
live in one process and take turns on the same links.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from schedule_device import Silent
from schedule_shapes import SHAPES, scaled

import rabit
from rabit.engine.engine import Engine
from rabit.engine.request import Request
from rabit.engine.tensor import view_output
from rabit.tuning.step_time import Layer
from rabit.types import Kind, ReduceOp

EPOCH = 1 << 21


class Reduced(Silent):
    """One allreduce for each gradient; the forward waits for its own, or for all.

    order: the priority of each layer; None: all alike.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        buffers: Sequence[np.ndarray],
        engine: Engine,
        *,
        has_barrier: bool,
        order: Sequence[int] | None,
    ) -> None:
        super().__init__(layers)
        self._has_barrier = has_barrier
        self._handles: list[Any] = [None] * len(layers)
        requests = []
        for index, buffer in enumerate(buffers):
            view = view_output(buffer, "gradient")
            priority = 0 if order is None else order[index]
            requests.append(Request(Kind.ALLREDUCE, f"g{index}", view, view, ReduceOp.AVERAGE, priority=priority))
        self._batch = engine.prepare(requests)

    def submit(self, index: int) -> None:
        self._handles[index] = self._batch.submit([index])[0]

    def after_backward(self) -> None:
        if self._has_barrier:
            self.drain()

    def before_layer(self, index: int) -> None:
        handle = self._handles[index]
        if handle is not None:
            handle.wait()
            self._handles[index] = None

    def drain(self) -> None:
        for index in range(len(self.layers)):
            self.before_layer(index)


class Unoverlapped(Reduced):
    """Backward, then communication, then forward."""

    def submit(self, index: int) -> None:
        pass

    def after_backward(self) -> None:
        self._handles = self._batch.submit()
        self.drain()


class Dear(Silent):
    """Reduce-scatter in the backward, all-gather in the forward; neighbours travel in groups."""

    def __init__(
        self, layers: Sequence[Layer], buffers: Sequence[np.ndarray], engine: Engine, group_bytes: int
    ) -> None:
        super().__init__(layers)
        self._engine = engine
        self._groups = neighbours([each.bytes for each in layers], group_bytes)
        self._first_of = {group[0]: number for number, group in enumerate(self._groups)}
        flat = [np.concatenate([buffers[index] for index in group]) for group in self._groups]
        size, rank = engine.size, engine.rank
        self._scattered: list[Any] = []
        self._gathered: list[Any] = []
        scatter, gather = [], []
        for number, buffer in enumerate(flat):
            part = len(buffer) // size
            shard = buffer[rank * part : (rank + 1) * part].copy()
            whole, mine = view_output(buffer, "gradient"), view_output(shard, "shard")
            scatter.append(Request(Kind.REDUCESCATTER, f"s{number}", whole, mine, ReduceOp.AVERAGE))
            gather.append(Request(Kind.ALLGATHER, f"a{number}", mine, whole))
        self._scatter, self._gather = engine.prepare(scatter), engine.prepare(gather)

    def submit(self, index: int) -> None:
        if index in self._first_of:  # the last of its group in the backward
            self._scattered.extend(self._scatter.submit([self._first_of[index]]))

    def after_backward(self) -> None:
        for handle in self._scattered:
            handle.wait()
        self._scattered = []
        self._gathered = self._gather.submit()

    def before_layer(self, index: int) -> None:
        if self._gathered and index in self._first_of:
            self._gathered[self._first_of[index]].wait()

    def drain(self) -> None:
        for handle in self._gathered:
            handle.wait()


def neighbours(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Layers (indices) that travel as one: in order, up to `limit` bytes or a single one."""
    groups: list[list[int]] = []
    filled = limit + 1
    for index, size in enumerate(sizes):
        if filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += size
    return groups


class Bench:
    """What one rank does: measures the link, then the ways, a turn each."""

    def __init__(self, task: dict[str, Any], folder: Path) -> None:
        self.task, self.folder = task, folder
        rabit.init()
        base = rabit.default_engine().config
        self.engines: dict[str, Engine] = {}
        for epoch, (name, settings) in enumerate(task["engines"].items(), start=EPOCH):
            self.engines[name] = Engine(base.replace(**settings), epoch=epoch)
        self.main = next(iter(self.engines.values()))
        self.rank, self.ranks = self.main.rank, self.main.size
        self.shape = ""  # of the cell that is running

    def barrier(self) -> None:
        rabit.barrier(engine=self.main)

    def agree(self, value: float) -> float:
        """The value of rank 0."""
        return float(rabit.broadcast(np.array([value]), 0, engine=self.main)[0])

    def slowest(self, seconds: float) -> float:
        return float(rabit.allreduce(np.array([seconds]), op=rabit.Max, engine=self.main)[0])

    def measure(self, engine: Engine, sizes: Sequence[int], repeats: int) -> dict[int, float]:
        """Seconds of one allreduce of each size: median, of the slowest rank."""
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for turn in range(repeats + 1):
            for size in sizes:
                buffer = np.ones(size // 4, np.float32)
                rabit.barrier(engine=engine)
                begin = time.perf_counter()
                rabit.allreduce_(buffer, name=f"m{size}", engine=engine)
                took = self.slowest(time.perf_counter() - begin)
                if turn:
                    times[size].append(took)
        return {size: statistics.median(found) for size, found in times.items()}

    def cell(self, cell: dict[str, Any], seconds_per_byte: float) -> dict[str, Any]:
        total = int(cell["rho"] * cell["compute"] / seconds_per_byte)
        self.shape = cell["shape"]
        layers = scaled(cell["shape"], cell["compute"], total, self.ranks)
        buffers = [np.ones(each.bytes // 4, np.float32) for each in layers]
        ways = {name: self.way(name, layers, buffers) for name in ["silent", *cell["ways"]]}
        moments: dict[str, list[list[float]]] = {name: [] for name in ways}
        gc.collect()
        for turn in range(cell["turns"] + 1):
            if self.rank == 0:
                turns = f"turn {turn} of {cell['turns']}"  # 0 warms up
                print(f"{self.shape}, rho {cell['rho']:g}: {turns}", file=sys.stderr, flush=True)
            for name, way in ways.items():
                count = 2 if turn == 0 or name == "silent" else cell["steps"]
                self.barrier()
                began = way.steps(count + 1)
                way.drain()
                if turn:  # the first step of a turn starts with nothing in flight
                    moments[name].append(began[1:])
        if any(not np.all(each == 1.0) for each in buffers):
            raise RuntimeError("the average of ones is not one")
        return {"moments": moments, "bytes": [each.bytes for each in layers]}

    def way(self, name: str, layers: list[Layer], buffers: list[np.ndarray]) -> Silent:
        spec = {"kind": "silent", **self.task["ways"].get(name, {})}
        engine = self.engines.get(spec.get("engine", ""), self.main)
        makers: dict[str, Callable[[], Silent]] = {
            "silent": lambda: Silent(layers),
            "ddp": lambda: self.ddp(layers),
            "optimizer": lambda: self.optimizer(layers, engine, spec["overlap"]),
            "dear": lambda: Dear(layers, buffers, engine, spec["group_bytes"]),
            "sequential": lambda: Unoverlapped(layers, buffers, engine, has_barrier=True, order=None),
            "reduced": lambda: Reduced(
                layers, buffers, engine, has_barrier=spec["barrier"], order=priorities(spec["order"], len(layers))
            ),
        }
        return makers[spec["kind"]]()

    def ddp(self, layers: list[Layer]) -> Silent:
        from schedule_torch import Ddp

        bucket_bytes = ddp_bucket_bytes(layers, self.shape)
        return Ddp(layers, self.rank, self.ranks, f"file://{self.folder}/gloo", bucket_bytes)

    def optimizer(self, layers: list[Layer], engine: Engine, overlap: str) -> Silent:
        from schedule_torch import Trained

        return Trained(layers, engine, overlap)


def ddp_bucket_bytes(layers: Sequence[Layer], shape: str) -> int:
    """DDP's default of 25 MiB, scaled as the model is: it would hold all of a scaled one."""
    parameters = sum(each.parameters for each in SHAPES[shape]())
    share = sum(each.bytes for each in layers) / (4 * parameters)
    return max(256 << 10, int((25 << 20) * share))


def priorities(order: str, count: int) -> list[int] | None:
    """None: as they come; forward: what is needed first; names: the text of the layer's number."""
    if order == "fifo":
        return None
    if order == "forward":
        return [count - index for index in range(count)]
    by_name = sorted(range(count), key=str)
    return [count - by_name.index(index) for index in range(count)]


def schedule_rank(o: Any) -> dict[str, Any]:
    """What one rank reports of `o.task`."""
    task = o.task
    bench = Bench(task, o.folder)
    times = bench.measure(bench.engines[task["measured"]], task["sizes"], task["repeats"])
    slope, latency = np.polyfit(list(times), list(times.values()), 1)
    seconds_per_byte, latency = bench.agree(slope), bench.agree(latency)
    cells = [bench.cell(cell, seconds_per_byte) for cell in task["cells"]]
    bench.barrier()
    for engine in bench.engines.values():
        engine.close()
    rabit.shutdown()
    return {"times": times, "seconds_per_byte": seconds_per_byte, "latency": latency, "cells": cells}
