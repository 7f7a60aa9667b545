"""Steps of models that mix kinds and sizes: every fixed backend beside the mix that a table makes of them.

    python tests/bench/mixed.py [--ranks 4] [--transport tcp] [--traces moe,dlrm] [--budget 1m] [--rounds 15]
    sudo python tests/bench/mixed.py --servers 4 [--rate 100M]

`rabitrun tune` measures a table in the job's own surroundings; then processes of their own run the steps
(traces.py) on torch tensors, with the table and with each backend alone, in turns, in an order that rotates.
Without servers the ranks are on one host, and the backends are builtin and mpi: "mpi" chooses by itself between the
library and rabit's algorithms over its messages, "mpi/library" never does.  With servers, every rank and every
server is in a namespace behind a link of the given rate, and the backends are builtin and ps.  Servers only sum:
alone, ps hands everything else to builtin, which is a mix as well, and so does not count as a single backend.
The verdict wants a step of the best single backend to take 1.2 times that of the mix.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import links as shaped_links
from harness import parse_rate
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
FIXED = {
    "builtin": "*:builtin",
    "mpi": "*:mpi",
    "mpi/library": "*:mpi/library",
    "ps": "*:ps",
}
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
        self._batch = engine.prepare(
            [self._request(number, each) for number, each in enumerate(operations)]
        )

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


def work(options: argparse.Namespace) -> None:
    """One rank: seconds of a step of its slowest rank, by trace, contestant and turn."""
    rabit.init()
    base = rabit.default_engine()
    engines = {"mix": Engine(base.config.replace(route_table=options.table), epoch=EPOCH)}
    for number, name in enumerate(CONTESTANTS[base.config.backend], 1):
        config = base.config.replace(route=FIXED[name])
        engines[name] = Engine(config, epoch=EPOCH + number)
    found: dict[str, dict[str, list[float]]] = {}
    traces, began = options.traces.split(","), time.monotonic()
    for place, trace in enumerate(traces):
        chance = random.Random(SEED)
        times = found[trace] = {name: [] for name in engines}
        for turn in range(options.rounds):
            operations = TRACES[trace](chance)
            steps = {name: Step(engine, operations) for name, engine in engines.items()}
            names = list(steps)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                once = rabit.allreduce(np.array([steps[name].run()]), op=rabit.Max)
                calls = max(1, min(CALLS, int(TURN_S / once[0])))
                mine = np.array([steps[name].run() for _ in range(calls)])
                slowest = rabit.allreduce(mine, op=rabit.Max)
                times[name].append(float(np.median(slowest)))
            share = (place + (turn + 1) / options.rounds) / len(traces)
            tell(f"{trace}, step {turn + 1} of {options.rounds}", share, time.monotonic() - began)
    if rabit.rank() == 0:
        routes = {name: engine.statistics()["routes"] for name, engine in engines.items()}
        Path(options.result).write_text(json.dumps({"times": found, "routes": routes}))
    for engine in engines.values():
        engine.close()
    rabit.shutdown()


def tell(what: str, share: float, seconds: float) -> None:
    """How far the run is: a line of rank 0, which `share` of it took so many `seconds`."""
    if rabit.rank() == 0:
        left = seconds * (1 - share) / share
        print(f"{what}: {seconds:.0f} s, some {left:.0f} s to go", file=sys.stderr, flush=True)


def show(document: dict[str, Any]) -> bool:
    passes = True
    for trace, times in document["times"].items():
        medians = {name: statistics.median(each) for name, each in times.items()}
        best = min(SINGLE & medians.keys(), key=medians.__getitem__)
        for name, each in medians.items():
            ratios = [theirs / ours for theirs, ours in zip(times[name], times["mix"], strict=True)]
            quarters = statistics.quantiles(ratios, n=4)
            print(
                f"{trace:<5} {name:<12} {each * 1e3:9.3f} ms a step, {quarters[1]:.3f} "
                f"({quarters[0]:.2f}-{quarters[2]:.2f}) x the mix's"
            )
        ratio = statistics.median(
            theirs / ours for theirs, ours in zip(times[best], times["mix"], strict=True)
        )
        passes = passes and ratio >= WANTED
        print(f"{trace}: {ratio:.3f} of the best single backend, {best} (at least {WANTED})")
    ran: dict[str, float] = {}
    for row in document["routes"]["mix"]:
        if row["row"] == "route_table":
            name = f"{row['kind']} by {row['backend']}/{row['algorithm']}"
            ran[name] = ran.get(name, 0) + row["exchanges"]
    print("the mix ran", ", ".join(f"{count:.0f} x {name}" for name, count in sorted(ran.items())))
    return passes


def run(options: argparse.Namespace, folder: Path, *words: str) -> None:
    """Python with `words` on every rank."""
    if options.servers:
        os.environ["RABIT_BACKEND"] = "builtin,ps"
        processes = options.ranks + options.servers
        with shaped_links.build(
            processes, options.rate, shaped_links.LONG_QUEUE_SECONDS, shaped_links.SEGMENT_BYTES
        ) as lab:
            shaped_links.run_words(lab, folder, words, options.timeout, options.servers)
        return
    launch = [sys.executable, "-m", "rabit.launch", "--launcher", "mpi"]
    launch += ["-np", str(options.ranks), "--backend", "builtin,mpi", sys.executable]
    subprocess.run(
        [*launch, *words], check=True, env=surroundings(options), timeout=options.timeout
    )


def surroundings(options: argparse.Namespace) -> dict[str, str]:
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RABIT_MPI_SHM": "0",
        "RABIT_TRANSPORT": options.transport,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if options.transport == "tcp":
        environ |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
        environ |= {"OMPI_MCA_btl_tcp_if_include": "lo"}
    return environ


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--transport", choices=("auto", "tcp"), default="auto")
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument("--servers", type=int, default=0, help="with links (default 0)")
    parser.add_argument("--rate", type=parse_rate, default="100M", help="of each link")
    parser.add_argument("--budget", default="1m", help="of the tuning run (default 1m)")
    parser.add_argument("--rounds", type=int, default=15, help="steps (default 15)")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--table", default="", help="a file: made where it is not there yet")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, to show how steps differ")
    if options.result:
        work(options)
        return 0
    if options.servers and (why := shaped_links.why_not()):
        print(f"left out: {why}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        table, result = options.table or f"{folder}/table.json", Path(folder, "result.json")
        if not Path(table).exists():
            # Behind links a call of 4 MiB takes a second, and takes the route of 1 MiB.
            sizes = "1K:1M" if options.servers else "1K:4M"
            tune = ("-m", "rabit.bench.tune", "-o", table, "--bytes", sizes)
            kinds = ("--kinds", "allreduce,allgather,alltoall", "--budget", options.budget)
            run(options, Path(folder), *tune, *kinds)
        run(options, Path(folder), *sys.argv, "--table", table, "--result", str(result))
        where = f"transport {options.transport}"
        if options.servers:
            where = f"links of {options.rate / 1e6:g} Mbit/s, {options.servers} servers"
        print(f"{options.ranks} ranks, {where}, {options.rounds} steps")
        return 0 if show(json.loads(result.read_text())) else 1


if __name__ == "__main__":
    sys.exit(main())
