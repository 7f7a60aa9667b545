"""`auto` after tuning beside the best single choice of every kind and size: a table is measured and judged.

    python tests/bench/tuned.py [--scenes "2 ranks,4 ranks,4 links"] [--limit 10m] [--rounds 25] [--bytes 1K:64M]

For each scene `rabitrun tune` writes a table, and in a new job routes.py compares the table with every
single choice, in turns.  "4 links" are 4 namespaces of --rate (root).  All scenes together take about --limit, of
which the links, where a call of 64 MiB takes a second, have three times the share of the others.  A point whose
route is that of the best single choice is marked: its ratio is noise.  The verdict wants 0.95 at every point
that is not, and a geometric mean of 0.99 over all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import links as shaped_links
from harness import parse_rate

from rabit.bench.options import DURATION

SCENES = ("2 ranks", "4 ranks", "4 links")
LINKS_WEIGHT = 3.0
# Of a scene's share; processes have to start, too.
TUNE_SHARE, COMPARE_SHARE = 0.4, 0.5
LEAST, LEAST_MEAN = 0.95, 0.99
ROUTES = Path(__file__).with_name("routes.py")


def run(scene: str, folder: Path, options: argparse.Namespace, *words: str) -> None:
    """Python with `words` on every rank of the scene."""
    ranks, where = scene.split()
    if where == "links":
        with shaped_links.build(int(ranks), options.rate) as lab:
            shaped_links.run_words(lab, folder, words, options.timeout)
        return
    command = [sys.executable, "-m", "rabit.launch", "-np", ranks, sys.executable, *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environ, timeout=options.timeout)


def weight_of(scene: str) -> float:
    return LINKS_WEIGHT if scene.endswith("links") else 1.0


def measure(
    scene: str, folder: Path, options: argparse.Namespace, share_s: float
) -> Sequence[dict[str, Any]]:
    """The points of a table that is made in the scene, in about `share_s` seconds."""
    name = scene.replace(" ", "_")
    kept = options.keep or folder
    table, figures = kept / f"{name}.table.json", kept / f"{name}.points.json"
    print(f"{scene}: about {share_s:.0f} s", flush=True)
    if not table.exists():
        tune = ("-m", "rabit.bench.tune", "-o", str(table), "--bytes", options.bytes)
        run(scene, folder, options, *tune, "--budget", f"{TUNE_SHARE * share_s:.0f}s")
    compare = (str(ROUTES), str(table), "--bytes", options.bytes, "--json", str(figures))
    limits = ("--rounds", str(options.rounds), "--limit", f"{COMPARE_SHARE * share_s:.0f}s")
    run(scene, folder, options, *compare, *limits)
    return json.loads(figures.read_text())


def mean_of(points: Sequence[dict[str, Any]]) -> float:
    """The geometric mean of their ratios."""
    return math.exp(statistics.fmean(math.log(each["ratio"]) for each in points))


def judge(scene: str, points: Sequence[dict[str, Any]]) -> bool:
    """Prints the points that fall short, and whether the scene passes."""
    mean = mean_of(points)
    same = [each for each in points if each["is_same"]]
    short = [each for each in points if each["ratio"] < LEAST]
    wrong = [each for each in short if not each["is_same"]]
    for each in short:
        noise = ", the same route: noise" if each["is_same"] else ""
        print(
            f"  {each['kind']} {each['bytes']} B: {each['ratio']:.3f}, {each['route']} beside "
            f"{each['best_route']}{noise}"
        )
    passes = not wrong and mean >= LEAST_MEAN
    print(
        f"{scene}: {len(points)} points, geometric mean {mean:.3f} (at least {LEAST_MEAN}), "
        f"{len(wrong)} below {LEAST} by another route, {len(short) - len(wrong)} by the same: "
        f"{'met' if passes else 'missed'}",
        flush=True,
    )
    if same and len(same) < len(points):
        others = [each for each in points if not each["is_same"]]
        spread = statistics.stdev(math.log(each["ratio"]) for each in same) if len(same) > 1 else 0
        print(
            f"  by the same route {mean_of(same):.3f}, which noise spreads by a factor of {math.exp(spread):.2f}; "
            f"by another {mean_of(others):.3f}",
            flush=True,
        )
    return passes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", default=",".join(SCENES), help="with commas (default all)")
    parser.add_argument("--rate", type=parse_rate, default="1G", help="of each link (default 1G)")
    parser.add_argument("--limit", type=DURATION, default=600.0, help="of all (default 10m)")
    parser.add_argument("--bytes", default="1K:64M", help="(default 1K:64M)")
    parser.add_argument("--rounds", type=int, default=25, help="most turns of a point (default 25)")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds of a job")
    parser.add_argument(
        "--keep", type=Path, help="a folder for tables and figures; its tables are used"
    )
    options = parser.parse_args()
    passes = True
    scenes = {each: weight_of(each) for each in options.scenes.split(",")}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for scene, weight in scenes.items():
            if scene.endswith("links") and (why := shaped_links.why_not()):
                print(f"{scene}: left out: {why}")
                continue
            share_s = options.limit * weight / sum(scenes.values())
            passes &= judge(scene, measure(scene, Path(scratch), options, share_s))
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if passes else 1


if __name__ == "__main__":
    sys.exit(main())
