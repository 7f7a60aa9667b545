"""Allreduce through summation servers, beside the ring of the same build, on shaped links.

    sudo python tests/bench/servers.py [--workers 4] [--servers 4] [--rate 200M] [--sizes 16M,64M] [--codec levels]

Every worker and every server has a namespace with a link of the given rate.  Both ways take turns in one
job.  In bytes of the tensor over the rate, the ring needs at least 2 (n - 1) / n; where n ranks and k
servers share the sums, it is 2 n (n - 1) / (n^2 + k n - 2 k), and 1 from k = n on; frames and
acknowledgements take some percent of that.  Several workers push to a server at once, and
what does not fit in front of its link is dropped: segments are of 8 KiB at most, because a switch drops
single packets and not 64 KiB at once, and the links hold 40 ms of traffic.  On a busy machine take a lower rate: 50M.
Links are measured at the start, unless RABIT_MEASURE_LINKS=0.
With a codec, encodings travel, which ranks add up in two phases instead of a ring; bounds are of their bytes.
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
from schedule import parse_rate
from shaped import parse_size

WAYS = ("ring", "ps")
# Bits of an element, without what a block has beside them.
CODECS = {"none": 32, "levels": 4, "minmax8": 8}


def work(task: dict[str, Any]) -> None:
    import rabit

    rabit.init()
    name = task["codec"]
    compression = None if name == "none" else getattr(rabit.Compression, name)()
    codec = {} if compression is None else {"compression": compression, "seed": 1}
    found: dict[str, list[float]] = {}
    for size in task["sizes"]:
        tensor = np.ones(size // 4, np.float32)
        for turn in range(task["turns"] + 1):
            for way in WAYS:
                backend = "builtin" if way == "ring" else "ps"
                rabit.barrier(name="turn")
                begin = time.perf_counter()
                out = rabit.allreduce(
                    tensor, name=f"{way}.{size}", op=rabit.Sum, backend=backend, **codec
                )
                seconds = time.perf_counter() - begin
                assert out[0] == out[-1] == rabit.size()
                if turn:  # The first one opens connections and memory.
                    found.setdefault(f"{way} {size}", []).append(seconds)
    Path(task["results"], f"{rabit.rank()}.json").write_text(json.dumps(found))
    rabit.shutdown()


def show(options: argparse.Namespace, reports: list[dict[str, list[float]]]) -> None:
    n, k = options.workers, options.servers
    parts = {"ring": 2 * (n - 1) / n, "ps": max(1.0, 2 * n * (n - 1) / (n * n + k * n - 2 * k))}
    rate = f"{options.rate / 1e6:g} Mbit/s each"
    print(f"{n} workers, {k} servers, {rate}, codec {options.codec}, {options.turns} turns")
    print(f"{'bytes':>12}{'ring s':>10}{'of bound':>10}{'ps s':>10}{'of bound':>10}{'ring/ps':>10}")
    for size in options.sizes:
        line, medians = f"{size:12}", {}
        for way in WAYS:
            turns = zip(*(each[f"{way} {size}"] for each in reports), strict=True)
            medians[way] = statistics.median(max(turn) for turn in turns)
            bound = parts[way] * size / 4 * CODECS[options.codec] / options.rate
            line += f"{medians[way]:10.3f}{bound / medians[way]:10.2f}"
        print(line + f"{medians['ring'] / medians['ps']:10.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--rate", type=parse_rate, default="200M", help="of each link, as 200M")
    parser.add_argument("--sizes", default="16M,64M", help="of the tensor, in bytes")
    parser.add_argument(
        "--queue-ms", type=float, default=40.0, help="what the switch holds for each link"
    )
    parser.add_argument("--codec", choices=CODECS, default="none", help="of all tensors")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for all of it")
    options = shaped_ranks.options_of(parser, work)
    options.sizes = [parse_size(each) for each in options.sizes.split(",")]
    os.environ |= {"RABIT_BACKEND": "builtin,ps", "RABIT_ALLREDUCE_ALGORITHM": "ring"}
    os.environ.setdefault("RABIT_MEASURE_LINKS", "1")
    task = {"sizes": options.sizes, "turns": options.turns, "codec": options.codec}
    processes = options.workers + options.servers
    with (
        shaped_links.build(
            processes, options.rate, options.queue_ms / 1e3, shaped_links.SEGMENT_BYTES
        ) as lab,
        tempfile.TemporaryDirectory() as folder,
    ):
        reports = shaped_ranks.run_task(
            lab, Path(folder), __file__, task, options.timeout, options.servers
        )
        dropped = sum(lab.dropped())
    show(options, reports)
    print(f"{dropped} packets were dropped at the links")
    return 0


if __name__ == "__main__":
    sys.exit(main())
