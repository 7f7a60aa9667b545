"""Collectives on links that the kernel shapes, beside what the links need for the bytes.  Needs root, ip and tc."""

from __future__ import annotations

import json
import select
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import (
    case,
    choice,
    integers,
    lab_or_stop,
    median,
    on_ranks,
    rate,
    seconds_each,
    show_size,
    sizes,
    table,
    words,
)
from harness import links as shaped_links

RING_PORT, RING_SECONDS = 17017, 3.0


@case(ranks=4, rate=rate("1G"), sizes=sizes("16M"), algorithms=words("auto"), rounds=9)
def shaped(o: Any) -> None:
    """Allreduce between namespaces that a token bucket limits, beside what TCP itself carries.

    First a ring of plain TCP flows measures the goodput G of one rank with all of them sending at once; a tensor of S
    bytes on n ranks then needs at least 2 (n - 1) / n S / G. The figure is that bound over the median time.
    """
    times: dict[int, dict[str, float]] = {}
    with lab_or_stop(o.ranks, o.rate, shaped_links.LONG_QUEUE_SECONDS) as lab:
        o.addresses = [lab.address(rank) for rank in range(o.ranks)]
        run = shaped_links.in_lab(lab, timeout=200)
        goodput = min(on_ranks(flow_rank, o, o.ranks, run=run))
        for name in o.algorithms:
            o.algorithm = name
            for size, seconds in on_ranks(shaped_rank, o, o.ranks, run=run)[0]:
                times.setdefault(size, {})[name] = seconds
    print(f"{o.ranks} namespaces, {o.rate / 1e6:g} Mbit/s, goodput {goodput / 1e6:.1f} MB/s")
    rows = [
        [show_size(size), name, f"{seconds * 1e3:.2f} ms",
         2 * (o.ranks - 1) / o.ranks * size / goodput / seconds, min(by_name.values()) / seconds]
        for size, by_name in times.items()
        for name, seconds in by_name.items()
    ]  # fmt: skip
    table(["", "algorithm", "time", "of the bound", "of the fastest"], rows)


def flow_rank(o: Any) -> float:
    """Bytes a second of a ring of flows: sends to the next rank and counts what comes from the one before."""
    import os

    rank = int(os.environ["RABIT_RANK"])
    listener = socket.create_server((o.addresses[rank], RING_PORT))
    deadline = time.monotonic() + 20
    while True:
        try:
            out = socket.create_connection((o.addresses[(rank + 1) % o.ranks], RING_PORT), timeout=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
    incoming, _ = listener.accept()
    out.setblocking(False)
    incoming.setblocking(False)
    data, room = bytes(256 << 10), bytearray(256 << 10)
    began, received, warm = time.perf_counter(), 0, (0.0, 0)
    while (now := time.perf_counter() - began) < RING_SECONDS:
        if not warm[1] and now > RING_SECONDS / 4:
            warm = (now, received)  # slow start is over
        readable, writable, _ = select.select([incoming], [out], [], 0.1)
        try:
            if writable:
                out.send(data)
            if readable:
                received += incoming.recv_into(room)
        except ConnectionError:
            break  # a neighbour's time was up a little earlier
    return (received - warm[1]) / (time.perf_counter() - began - warm[0])


def shaped_rank(o: Any) -> list[tuple[int, float]]:
    import os

    import numpy as np

    os.environ["RABIT_ALLREDUCE_ALGORITHM"] = "" if o.algorithm == "auto" else o.algorithm
    import rabit

    rabit.init()
    found = []
    for size in o.sizes:
        array = np.ones(max(size // 4, 1), np.float32)
        taken = seconds_each(
            lambda x=array: rabit.allreduce_(x, name=f"bench.{x.size}", op=rabit.Max), o.rounds + 3, rabit.barrier
        )
        found.append((size, median(taken[3:])))
    rabit.shutdown()
    return found


CODECS = {"none": 32, "levels": 4, "minmax8": 8}  # bits of an element, without what a block has beside them


@case(
    workers=4, servers=4, rate=rate("200M"), sizes=sizes("16M,64M"), queue_ms=40.0, codec=choice(*CODECS), turns=5,
    timeout=600.0,
)  # fmt: skip
def servers(o: Any) -> None:
    """Allreduce through summation servers, beside the ring of the same build, on shaped links.

    Every worker and every server has a namespace with a link of the given rate. Both ways take turns in one job. In
    bytes of the tensor over the rate, the ring needs at least 2 (n - 1) / n; where n ranks and k servers share the
    sums, it is 2 n (n - 1) / (n^2 + k n - 2 k), and 1 from k = n on; frames and acknowledgements take some percent of
    that. Several workers push to a server at once, and what does not fit in front of its link is dropped: segments
    are of 8 KiB at most, because a switch drops single packets. On a busy machine take a lower rate: 50M. Links are
    measured at the start, unless RABIT_MEASURE_LINKS=0. With a codec, encodings travel; bounds are of their bytes.
    """
    n, k = o.workers, o.servers
    queue = o.queue_ms / 1e3
    with lab_or_stop(n + k, o.rate, queue, shaped_links.SEGMENT_BYTES) as lab:
        reports = on_ranks(servers_rank, o, n, run=shaped_links.in_lab(lab, o.timeout, k))
        dropped = sum(lab.dropped())
    parts = {"ring": 2 * (n - 1) / n, "ps": max(1.0, 2 * n * (n - 1) / (n * n + k * n - 2 * k))}
    print(
        f"{n} workers, {k} servers, {o.rate / 1e6:g} Mbit/s each, codec {o.codec}, {o.turns} turns, "
        f"{dropped} packets dropped"
    )
    rows = []
    for size in o.sizes:
        row, medians = [show_size(size)], {}
        for way, part in parts.items():
            medians[way] = median(max(turn) for turn in zip(*(each[f"{way} {size}"] for each in reports), strict=True))
            row += [f"{medians[way]:.3f} s", part * size / 4 * CODECS[o.codec] / o.rate / medians[way]]
        rows.append([*row, medians["ring"] / medians["ps"]])
    table(["", "ring", "of bound", "ps", "of bound", "ring / ps"], rows)


def servers_rank(o: Any) -> dict[str, list[float]]:
    import os

    import numpy as np

    os.environ |= {"RABIT_BACKEND": "builtin,ps", "RABIT_ALLREDUCE_ALGORITHM": "ring"}
    os.environ.setdefault("RABIT_MEASURE_LINKS", "1")
    import rabit

    rabit.init()
    codec = {} if o.codec == "none" else {"compression": getattr(rabit.Compression, o.codec)(), "seed": 1}
    found: dict[str, list[float]] = {}
    for size in o.sizes:
        tensor = np.ones(size // 4, np.float32)
        for turn in range(o.turns + 1):  # The first one opens connections and memory.
            for way, backend in (("ring", "builtin"), ("ps", "ps")):
                rabit.barrier(name="turn")
                began = time.perf_counter()
                out = rabit.allreduce(tensor, name=f"{way}.{size}", op=rabit.Sum, backend=backend, **codec)
                seconds = time.perf_counter() - began
                assert codec or out[0] == out[-1] == rabit.size()
                if turn:
                    found.setdefault(f"{way} {size}", []).append(seconds)
    rabit.shutdown()
    return found


@case(ranks=integers("4,8"), mbit=integers("100,200"), sizes="256K,1M,4M")
def alltoall_links(o: Any) -> None:
    """Alltoalls over shaped links, beside what the links need for the bytes.

    Of a buffer of S bytes each rank keeps the n-th part, so that the links need (n - 1) / n S / rate. The figure is
    the median time over that bound. Segments of 8 KiB are as a network card would drop them, of 64 KiB what the
    kernel hands over at once.
    """
    rows = []
    for ranks in o.ranks:
        for mbit in o.mbit:
            for segment in (shaped_links.SEGMENT_BYTES, shaped_links.PACKET_BYTES):
                queue = shaped_links.QUEUE_SECONDS
                with lab_or_stop(ranks, mbit * 1e6, queue, segment) as lab, tempfile.TemporaryDirectory() as folder:
                    result = Path(folder, "figures.json")
                    bench = ("-m", "rabit.bench", "alltoall", "--bytes", o.sizes, "--json", str(result))
                    shaped_links.run_words(lab, Path(folder), bench, 300.0)
                    document = json.loads(result.read_text())
                for each in document["rows"]:
                    seconds, bound = (median(each["seconds"]), (ranks - 1) / ranks * each["bytes"] * 8 / (mbit * 1e6))
                    name = f"{ranks} ranks, {mbit} Mbit/s, segments of {show_size(segment)}, {show_size(each['bytes'])}"
                    rows.append([name, f"{seconds * 1e3:.1f} ms", seconds / bound])
    table(["", "time", "of the links' time"], rows)
