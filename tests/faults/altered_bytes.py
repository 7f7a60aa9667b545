"""Jobs over a wire that alters bytes so that TCP does not notice.

    python tests/faults/altered_bytes.py [--frames 100000] [--rate 0.3] [--headers 0.03] [--seed 0]
    python tests/faults/altered_bytes.py --slow-down [--rate 0.001] [--seconds 60]

Three hosts, each a network namespace, and between them a program that passes their packets on.  Of the frames of data
and of control it alters one bit each in the given share, until so many are altered, and makes the checksums of the
packets fit.  Every result must be right, no rank may see an error, and what the ranks count as corrupt must be what
was altered.  With --slow-down it alters for a second and leaves it for the next, in turns, and the steps of both kinds
of seconds are compared.
Needs root, ip and /dev/net/tun.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.links import build, why_not
from support.lab_jobs import Wire, altering_wire, start

RANKS = 3
LIMIT_S = 60.0
SCRIPT = """
import json, os, pathlib, random, sys, time
import numpy as np
import rabit

folder, fixed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
rabit.init()
me, size = rabit.rank(), rabit.size()
dice = random.Random(7)  # the same on all ranks
ends = []

def step(number):
    count = fixed or dice.choice((10, 100, 1000, 3000, 20_000))
    values = np.arange(count, dtype=np.float64) % 1000 + number % 100
    found = rabit.allreduce(values * (me + 1), op=rabit.Sum, name=f"sum{count}")
    assert (found == values * (size * (size + 1) // 2)).all(), f"sum of step {number}"
    if fixed:
        return
    root = dice.randrange(size)
    found = rabit.broadcast(values * (me + 1), root, name=f"root{count}")
    assert (found == values * (root + 1)).all(), f"broadcast of step {number}"

is_on, number = True, 0
while is_on:
    step(number)
    number += 1
    ends.append(time.clock_gettime(time.CLOCK_MONOTONIC))
    if number == 10:
        (folder / f"ready.{me}").touch()
    if number % 10 == 0:
        is_on = not rabit.any_rank((folder / "enough").exists())
statistics = rabit.statistics()
both = [statistics["backend_details"]["builtin"]["transport"], statistics["controller"]]
counts = [each[name] for each in both for name in ("frames_corrupt", "connections_restored")]
(folder / f"{me}.json").write_text(json.dumps([counts, ends]))
"""


def play(
    rate: float, header_share: float, seed: int, elements: int, meanwhile: Callable[[Wire, Callable[[], None]], None]
) -> tuple[dict[str, int], int, list[list[Any]]]:
    """Lets a job run for as long as `meanwhile` does.

    elements: of each step's array; 0: random ones.  Returns what was altered, frames that have passed, and of each
    rank its counts and the ends of its steps.
    """
    with build(RANKS, 1e10) as lab, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with altering_wire(lab, folder, rate, header_share, seed) as wire:
            process = start(lab, folder, [], SCRIPT, [name, str(elements)], {})

            def look() -> None:
                if process.poll() is not None:
                    out, err = process.communicate()
                    raise AssertionError(f"the job has ended, status {process.returncode}\n{out}{err}")

            try:
                while len(list(folder.glob("ready.*"))) < RANKS:
                    look()
                    time.sleep(0.02)
                meanwhile(wire, look)
                (folder / "enough").touch()
                out, err = process.communicate(timeout=LIMIT_S)
                assert process.returncode == 0, f"status {process.returncode}\n{out}{err}"
            finally:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
            altered, frames = wire.altered(), wire.frames()
        return altered, frames, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def count(frames: int, rate: float, header_share: float, seed: int) -> None:
    """Alters so many frames.  Raises AssertionError."""

    def meanwhile(wire: Wire, look: Callable[[], None]) -> None:
        said = time.monotonic()
        wire.set_on(True)
        while (done := sum(wire.altered().values())) < frames:
            look()
            if time.monotonic() > said + 15:
                said = time.monotonic()
                print(f"[{done}/{frames} frames altered]", flush=True)
            time.sleep(0.1)
        wire.set_on(False)

    began = time.monotonic()
    altered, passed, found = play(rate, header_share, seed, 0, meanwhile)
    data, remade, control, remade_control = np.sum([counts for counts, _ in found], axis=0)
    steps = min(len(ends) for _, ends in found)
    shown = ", ".join(f"{number} {what}" for what, number in sorted(altered.items()))
    print(f"altered {sum(altered.values())} of {passed} frames in {time.monotonic() - began:.0f} s: {shown}")
    print(f"found {data + control}: {data} on connections of data, {control} of control; {steps} steps, all right")
    assert data + control == sum(altered.values()), (
        f"found {data} and {control} frames, altered were {altered}; ends of connections made anew: {remade} of data, "
        f"{remade_control} of control"
    )


def slow_down(seconds: int, rate: float, header_share: float, seed: int) -> None:
    """Compares seconds in which frames are altered with seconds in which none are.  Raises AssertionError."""
    turns: dict[bool, list[tuple[float, float]]] = {True: [], False: []}

    def meanwhile(wire: Wire, look: Callable[[], None]) -> None:
        for turn in range(seconds):
            is_on = turn % 2 == 1
            if turn > 0:
                wire.set_on(is_on)
            begin = time.clock_gettime(time.CLOCK_MONOTONIC)
            time.sleep(1)
            look()
            turns[is_on].append((begin, time.clock_gettime(time.CLOCK_MONOTONIC)))

    altered, passed, found = play(rate, header_share, seed, 131_072, meanwhile)
    ends = np.array(found[0][1])
    off, on = (
        [int(((ends > begin) & (ends <= end)).sum()) / (end - begin) for begin, end in turns[is_on]]
        for is_on in (False, True)
    )
    print(f"altered {sum(altered.values())} of {passed} frames, one of {1 / rate:.0f} in every other second")
    slower = np.mean(off) / np.mean(on)
    print(f"steps of 1 MiB: {np.mean(off):.1f} a second without, {np.mean(on):.1f} with, {slower:.2f} times as slow")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--frames", type=int, default=100_000, help="to be altered")
    parser.add_argument("--rate", type=float, help="share of the frames that are altered")
    parser.add_argument("--headers", type=float, default=0.03, help="share of these of which it is the header")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow-down", action="store_true", help="compare steps with and without")
    parser.add_argument("--seconds", type=int, default=60, help="of the comparison")
    given = parser.parse_args()
    if missing := why_not():
        print(f"there are no namespaces here: {missing}")
        return 1
    try:
        if given.slow_down:
            slow_down(given.seconds, given.rate or 0.001, given.headers, given.seed)
        else:
            count(given.frames, given.rate or 0.3, given.headers, given.seed)
    except AssertionError as error:
        print(f"--seed {given.seed} has failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
