"""Seconds of the steps of methods_text.py on slow links, for the loss against time.

    sudo python tests/bench/methods_text_links.py [--rate 100M] [--methods qsgd,topk] [--save build/text_links.json]

Training by every method through the links would take half an hour.  So each method trains for some steps
behind them, every rank a process in a network namespace, and the time of the whole training follows from
these: `seconds_of` takes every step of the recorded training to last as long as those steps of the same method
that sent nearly as many bytes.  Methods whose steps differ (warm-ups, rare exchanges) take 20 steps of the same
phases, the others 5; the first two, in which ranks learn each other's names, do not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import methods_text
import shaped_links
import shaped_ranks
from invented_text import Language
from methods_rows import Rows
from schedule import parse_rate

FIRST = 2  # steps that are not counted
STEPS, STEPS_OF_PHASES = 5, 20
PHASES = ("{", "every=", "ramp=", "interval=", "delay=")
ALIKE = 0.02  # of the most bytes of a step: steps that send so much more or less are of one kind


def steps_of(way: methods_text.Way) -> int:
    return STEPS_OF_PHASES if any(each in way.text for each in PHASES) else STEPS


def seconds_of(sent: Sequence[float], measured: dict[str, Any]) -> list[float]:
    """How long each step of a training took, of the bytes of each.

    measured: a row of this bench: bytes and seconds of its steps.
    """
    known = list(zip(measured["sent"], measured["seconds"], strict=True))
    width = ALIKE * max(bytes_ for bytes_, _ in known)

    def one(bytes_: float) -> float:
        nearest = min(abs(each - bytes_) for each, _ in known)
        alike = [seconds for each, seconds in known if abs(each - bytes_) <= nearest + width]
        return statistics.median(alike)

    return [one(each) for each in sent]


def work(task: dict[str, Any]) -> None:
    import torch

    import rabit_torch as rabit

    torch.set_num_threads(1)
    rabit.init()
    # What counts is in the rows, also if the ranks are ended by the clock.
    Path(task["results"], f"{rabit.rank()}.json").write_text("{}")
    language = Language()
    seen, unseen = language.text(200_000, 1), language.text(20_000, 2)
    rows = Rows(Path(task["rows"]) if rabit.rank() == 0 else None)
    settings: dict[str, dict[str, Any]] = task["settings"]
    names = rabit.broadcast_object(rows.missing(settings), root_rank=0, name="methods")
    begin = time.monotonic()
    for done, name in enumerate(names, 1):
        trial = methods_text.Trial(name, settings[name]["steps"], seen, unseen)
        for step in range(settings[name]["steps"]):
            rabit.barrier()
            trial.step(step)
        trial.end()
        sent, seconds = (methods_text.mean_of_ranks(each) for each in (trial.sent, trial.seconds))
        if rabit.rank() == 0:
            row = {"sent": sent[FIRST:], "seconds": seconds[FIRST:]}
            rows.add(name, settings[name], row, rate=task["rate"])
            left = (time.monotonic() - begin) / done * (len(names) - done)
            print(
                f"[{done}/{len(names)}, {left:3.0f} s left] {name:22} {statistics.mean(seconds[FIRST:]):.4f} s a step",
                flush=True,
            )
    rabit.barrier()
    rabit.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", type=parse_rate, default=1e8, help="of each link, as 100M")
    parser.add_argument("--methods", default="", help="some of them, with commas between")
    parser.add_argument("--timeout", type=float, default=590)
    parser.add_argument(
        "--save",
        type=Path,
        default=Path("build/text_links.json"),
        help="a JSON file for methods_curves.py; what it has is not measured again",
    )
    options = shaped_ranks.options_of(parser, work)
    wanted = options.methods.split(",") if options.methods else []
    settings = {
        name: {"text": way.text, "lr": way.lr, "steps": steps_of(way), "rate": options.rate}
        for name, way in methods_text.WAYS.items()
        if not wanted or way.text.partition(":")[0] in wanted
    }
    task = {"settings": settings, "rate": options.rate, "rows": str(options.save.resolve())}
    with (
        shaped_links.build(
            methods_text.RANKS, options.rate, segment_bytes=shaped_links.SEGMENT_BYTES
        ) as lab,
        tempfile.TemporaryDirectory() as at,
    ):
        shaped_ranks.run_task(lab, Path(at), __file__, task, options.timeout)
    missing = Rows(options.save).missing(settings)
    if missing:
        sys.exit(f"not measured within {options.timeout:g} s: {', '.join(missing)}. Run it again: it goes on.")


if __name__ == "__main__":
    main()
