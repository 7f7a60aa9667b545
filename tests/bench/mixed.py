"""Steps of models that mix kinds and sizes: every fixed backend beside the mix that a table makes of them."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import (
    Option,
    case,
    choice,
    lab_or_stop,
    links,
    mpi_environ,
    on_ranks,
    rate,
    table,
    words,
)
from traces import TRACES, Operation

import rabit
from rabit.bench.cases import Spec
from rabit.engine.engine import Engine
from rabit.engine.request import Request
from rabit.types import Kind
from rabit_torch.tensors import view

SEED = 7
EPOCH = 1 << 21
WANTED = 1.2
FIXED = {"builtin": "*:builtin", "mpi": "*:mpi", "mpi/library": "*:mpi/library", "ps": "*:ps"}
# Which of these a job can run, by the backends that it has; those that do every kind themselves.
CONTESTANTS = {"builtin,mpi": ("builtin", "mpi", "mpi/library"), "builtin,ps": ("builtin", "ps")}
SINGLE = {"builtin", "mpi", "mpi/library"}
CALLS, TURN_S = 5, 0.5  # steps in a turn, as many as fit


class Step:
    """The operations of a step on one engine, with torch tensors of their own."""

    def __init__(self, engine: Engine, operations: list[Operation]) -> None:
        self._engine = engine
        self._awaited = [each.is_awaited for each in operations]
        self._results: list[torch.Tensor] = []  # of what moves: ones everywhere
        self._batch = engine.prepare([self._request(number, each) for number, each in enumerate(operations)])

    def _request(self, number: int, operation: Operation) -> Request:
        kind, size = Spec.kind_of(operation.kind), self._engine.size
        part = max(1, operation.bytes // 4 // size)
        given = torch.ones(part if kind is Kind.ALLGATHER else part * size)
        result = torch.zeros(part * size)
        if kind is Kind.ALLREDUCE:
            given = result  # A sum of zeros may be repeated.
        else:
            self._results.append(result)
        name = f"{number}.{operation.kind}.{operation.bytes}"
        return Request(
            kind,
            name,
            view(given, name),
            view(result, name),
            op=rabit.Sum,
            splits=[part] * size if kind is Kind.ALLTOALL else None,
        )

    def run(self) -> float:
        """Seconds of a step that all ranks begin together."""
        rabit.ordered_barrier(engine=self._engine)
        began = time.perf_counter()
        left = []
        for number, is_awaited in enumerate(self._awaited):
            handle = self._batch.submit([number])[0]
            if is_awaited:
                handle.wait()
            else:
                left.append(handle)
        for handle in left:
            handle.wait()
        seconds = time.perf_counter() - began
        assert all(bool((each == 1).all()) for each in self._results)
        return seconds


def mixed_rank(o: Any) -> dict[str, Any]:
    """One rank: seconds of a step of its slowest rank, by trace, contestant and turn."""
    rabit.init()
    base = rabit.default_engine()
    engines = {"mix": Engine(base.config.replace(route_table=o.table), epoch=EPOCH)}
    for number, name in enumerate(CONTESTANTS[base.config.backend], 1):
        config = base.config.replace(route=FIXED[name])
        engines[name] = Engine(config, epoch=EPOCH + number)
    found: dict[str, dict[str, list[float]]] = {}
    traces, began = o.traces, time.monotonic()
    for place, trace in enumerate(traces):
        chance = random.Random(SEED)
        times = found[trace] = {name: [] for name in engines}
        for turn in range(o.rounds):
            operations = TRACES[trace](chance)
            steps = {name: Step(engine, operations) for name, engine in engines.items()}
            names = list(steps)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                once = rabit.allreduce(np.array([steps[name].run()]), op=rabit.Max)
                calls = max(1, min(CALLS, int(TURN_S / once[0])))
                mine = np.array([steps[name].run() for _ in range(calls)])
                slowest = rabit.allreduce(mine, op=rabit.Max)
                times[name].append(float(np.median(slowest)))
            share = (place + (turn + 1) / o.rounds) / len(traces)
            tell(f"{trace}, step {turn + 1} of {o.rounds}", share, time.monotonic() - began)
    routes = {name: engine.statistics()["routes"] for name, engine in engines.items()}
    for engine in engines.values():
        engine.close()
    rabit.shutdown()
    return {"times": found, "routes": routes}


def tell(what: str, share: float, seconds: float) -> None:
    """How far the run is: a line of rank 0, which `share` of it took so many `seconds`."""
    if rabit.rank() == 0:
        left = seconds * (1 - share) / share
        print(f"{what}: {seconds:.0f} s, some {left:.0f} s to go", file=sys.stderr, flush=True)


def show(document: dict[str, Any]) -> bool:
    passes, rows = True, []
    for trace, times in document["times"].items():
        medians = {name: statistics.median(each) for name, each in times.items()}
        best = min(SINGLE & medians.keys(), key=medians.__getitem__)
        for name, each in medians.items():
            ratios = [theirs / ours for theirs, ours in zip(times[name], times["mix"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            rows.append([trace, name, f"{each * 1e3:.3f} ms", middle, f"{low:.2f}-{high:.2f}"])
        ratio = statistics.median(theirs / ours for theirs, ours in zip(times[best], times["mix"], strict=True))
        passes = passes and ratio >= WANTED
        print(f"{trace}: {ratio:.3f} of the best single backend, {best} (at least {WANTED})")
    table(["trace", "backend", "a step", "of the mix's", "middle half"], rows)
    ran: dict[str, float] = {}
    for row in document["routes"]["mix"]:
        if row["row"] == "route_table":
            name = f"{row['kind']} by {row['backend']}/{row['algorithm']}"
            ran[name] = ran.get(name, 0) + row["exchanges"]
    print("the mix ran", ", ".join(f"{count:.0f} x {name}" for name, count in sorted(ran.items())))
    return passes


@contextlib.contextmanager
def place(o: Any) -> Iterator[dict[str, Any]]:
    """What `on_ranks` takes to run on the ranks of a host with MPI, or behind links with servers."""
    if o.servers:
        os.environ["RABIT_BACKEND"] = "builtin,ps"
        processes = o.ranks + o.servers
        with lab_or_stop(processes, o.rate, links.LONG_QUEUE_SECONDS, links.SEGMENT_BYTES) as lab:
            yield {"run": links.in_lab(lab, o.timeout, o.servers)}
        return
    environ = {"RABIT_MPI_SHM": "0", **mpi_environ(o.transport)}
    flags = ["--launcher", "mpi", "--backend", "builtin,mpi"]
    yield {"flags": flags, "environ": environ, "timeout": o.timeout}


def tune_rank(o: Any) -> None:
    """`rabitrun tune` in this job; a call of 4 MiB takes a second behind links, and takes the route of 1 MiB."""
    from rabit.bench import tune

    sizes = "1K:1M" if o.servers else "1K:4M"
    kinds = ("--kinds", "allreduce,allgather,alltoall", "--budget", o.budget)
    if tune.main(["-o", o.table, "--bytes", sizes, *kinds]):
        raise SystemExit("rabitrun tune has failed")


@case(
    ranks=4,
    transport=choice("auto", "tcp"),
    traces=words(",".join(TRACES)),
    servers=0,
    rate=rate("100M"),
    budget=Option("1m", help="of the tuning run"),
    rounds=15,
    timeout=600.0,
    table=Option("", help="a file: made where it is not there yet"),
)
def mixed(o: Any) -> bool:
    """Steps of models that mix kinds and sizes: every fixed backend beside the mix that a table makes of them.

    `rabitrun tune` measures a table in the job's own surroundings; then processes of their own run the steps
    (traces.py) on torch tensors, with the table and with each backend alone, in turns, in an order that rotates.
    Without servers the ranks are on one host, and the backends are builtin and mpi: "mpi" chooses by itself between
    the library and rabit's algorithms over its messages, "mpi/library" never does. With servers, every rank and every
    server is in a namespace behind a link (root), and the backends are builtin and ps. Servers only sum: alone, ps
    hands everything else to builtin, which is a mix as well, and so does not count as a single backend. The verdict
    wants a step of the best single backend to take 1.2 times that of the mix.
    """
    with tempfile.TemporaryDirectory() as folder, place(o) as how:
        o.table = o.table or f"{folder}/table.json"
        if not Path(o.table).exists():
            on_ranks(tune_rank, o, o.ranks, **how)
        return show(on_ranks(mixed_rank, o, o.ranks, **how)[0])
