"""Alltoalls over shaped links, beside what the links need for the bytes.

    python tests/bench/alltoall_links.py [--ranks 4,8] [--mbit 100,200] [--sizes 256K,1M,4M]

Every rank has a namespace, joined by a bridge; token buckets limit what each sends and gets, and
have room for 4 ms.  Of a buffer of S bytes each rank keeps the n-th part, so that the links need
(n - 1) / n S / rate.  The figure is the median time over that bound.  Segments of 8 KiB are as a
network card would drop them, of 64 KiB what the kernel hands over at once.  Needs root, ip and tc.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import shaped_links
import shaped_ranks

TIMEOUT = 300.0
SEGMENTS = (shaped_links.SEGMENT_BYTES, shaped_links.PACKET_BYTES)


def measured(ranks: int, rate_bits: float, segment_bytes: int, sizes: str) -> dict[int, float]:
    """Seconds by size, the median of the engine's."""
    queue = shaped_links.QUEUE_SECONDS
    with (
        shaped_links.build(ranks, rate_bits, queue, segment_bytes) as lab,
        tempfile.TemporaryDirectory() as folder,
    ):
        result = Path(folder) / "figures.json"
        words = ("-m", "rabit.bench", "alltoall", "--bytes", sizes, "--json", str(result))
        shaped_ranks.run_words(lab, Path(folder), words, TIMEOUT)
        document = json.loads(result.read_text())
    return {each["bytes"]: statistics.median(each["seconds"]) for each in document["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--ranks", default="4,8", help="numbers of ranks (default 4,8)")
    parser.add_argument("--mbit", default="100,200", help="Mbit/s of each link (default 100,200)")
    parser.add_argument("--sizes", default="256K,1M,4M", help="of the buffer of a rank")
    parsed = parser.parse_args()
    print("ranks  Mbit/s  segment       bytes          ms   of the links' time")
    for ranks in map(int, parsed.ranks.split(",")):
        for mbit in map(float, parsed.mbit.split(",")):
            for segment in SEGMENTS:
                times = measured(ranks, mbit * 1e6, segment, parsed.sizes)
                for size, seconds in times.items():
                    bound = (ranks - 1) / ranks * size * 8 / (mbit * 1e6)
                    print(
                        f"{ranks:5}  {mbit:6g}  {segment:7}  {size:10}  {seconds * 1e3:10.1f}"
                        f"   {seconds / bound:.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    if why := shaped_links.why_not():
        raise SystemExit(f"alltoall_links.py: {why}")
    main()
