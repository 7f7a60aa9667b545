"""`auto` after tuning beside the best single choice of every kind and size: a table is measured and judged."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import Option, case, on_ranks, rate, words
from harness.links import build, in_lab, why_not
from routes import routes_rank

from rabit.bench import tune
from rabit.bench.options import DURATION

SCENES = ("2 ranks", "4 ranks", "4 links")
LINKS_WEIGHT = 3.0
# Of a scene's share; processes have to start, too.
TUNE_SHARE, COMPARE_SHARE = 0.4, 0.5
LEAST, LEAST_MEAN = 0.95, 0.99


@contextlib.contextmanager
def place(scene: str, o: Any) -> Iterator[dict[str, Any]]:
    """What `on_ranks` takes to run on the ranks of the scene."""
    if not scene.endswith("links"):
        yield {"timeout": o.timeout}
        return
    with build(int(scene.split()[0]), o.rate) as lab:
        yield {"run": in_lab(lab, o.timeout)}


def tune_rank(o: Any) -> None:
    if tune.main(["-o", o.table, "--bytes", o.bytes, "--budget", o.budget]):
        raise SystemExit("rabitrun tune has failed")


def measure(scene: str, folder: Path, o: Any, share_s: float) -> Sequence[dict[str, Any]]:
    """The points of a table that is made in the scene, in about `share_s` seconds."""
    print(f"{scene}: about {share_s:.0f} s", flush=True)
    ranks = int(scene.split()[0])
    task = SimpleNamespace(**vars(o))
    task.table = str(Path(o.keep or folder) / f"{scene.replace(' ', '_')}.table.json")
    task.budget, task.limit = f"{TUNE_SHARE * share_s:.0f}s", COMPARE_SHARE * share_s
    with place(scene, o) as how:
        if not Path(task.table).exists():
            on_ranks(tune_rank, task, ranks, **how)
        return on_ranks(routes_rank, task, ranks, **how)[0]


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


@case(
    scenes=words(",".join(SCENES)),
    rate=rate("1G"),
    limit=Option("10m", DURATION, "of all"),
    bytes=Option("1K:64M"),
    rounds=25,
    timeout=1200.0,
    keep=Option("", help="a folder for tables, which are used again"),
)
def tuned(o: Any) -> bool:
    """`auto` after tuning beside the best single choice of every kind and size: a table is measured and judged.

    For each scene `rabitrun tune` writes a table, and in a new job routes.py compares the table with every single
    choice, in turns, at most `rounds` of a point. "4 links" are 4 namespaces of `rate` (root). All scenes together take
    about `limit`, of which the links, where a call of 64 MiB takes a second, have three times the share of the others.
    A point whose route is that of the best single choice is marked: its ratio is noise. The verdict wants 0.95 at every
    point that is not, and a geometric mean of 0.99 over all.
    """
    passes = True
    scenes = {scene: LINKS_WEIGHT if scene.endswith("links") else 1.0 for scene in o.scenes}
    with tempfile.TemporaryDirectory() as scratch:
        for scene, weight in scenes.items():
            if scene.endswith("links") and (why := why_not()):
                print(f"{scene}: left out: {why}")
                continue
            share_s = o.limit * weight / sum(scenes.values())
            passes &= judge(scene, measure(scene, Path(scratch), o, share_s))
    return passes
