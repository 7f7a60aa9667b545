"""Steps of methods_text on slow links.

Training by every method through the links would take half an hour.  So each method trains for some steps
behind them, every rank a process in a network namespace, and the time of the whole training follows from
these: `seconds_of` takes every step of the recorded training to last as long as those steps of the same method
that sent nearly as many bytes.  Methods whose steps differ (warm-ups, rare exchanges) take 20 steps of the same
phases, the others 5; the first two, in which ranks learn each other's names, do not count.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import methods_text
from harness import case, lab_or_stop, on_ranks, rate, words
from harness import links as shaped_links
from invented_text import Language
from methods_rows import Rows

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


def text_links_rank(o: Any) -> None:
    import torch

    import rabit_torch as rabit

    torch.set_num_threads(1)
    rabit.init()
    # What counts is in the rows, also if the ranks are ended by the clock.
    Path(o.folder, f"{rabit.rank()}.json").write_text("null")
    language = Language()
    seen, unseen = language.text(200_000, 1), language.text(20_000, 2)
    rows = Rows(Path(o.save) if rabit.rank() == 0 else None)
    settings: dict[str, dict[str, Any]] = o.settings
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
            rows.add(name, settings[name], row, rate=o.rate)
            left = (time.monotonic() - begin) / done * (len(names) - done)
            print(
                f"[{done}/{len(names)}, {left:3.0f} s left] {name:22} {statistics.mean(seconds[FIRST:]):.4f} s a step",
                flush=True,
            )
    rabit.barrier()
    rabit.shutdown()


@case(rate=rate("100M"), methods=words(""), timeout=590.0, save="build/text_links.json")
def methods_text_links(o: Any) -> None:
    """Seconds of the steps of methods_text on slow links, for the loss against time.

    What the file of --save has is not measured again.
    """
    o.save = str(Path(o.save).resolve())
    o.settings = {
        name: {"text": way.text, "lr": way.lr, "steps": steps_of(way), "rate": o.rate}
        for name, way in methods_text.WAYS.items()
        if not o.methods or way.text.partition(":")[0] in o.methods
    }
    with lab_or_stop(methods_text.RANKS, o.rate, segment_bytes=shaped_links.SEGMENT_BYTES) as lab:
        on_ranks(text_links_rank, o, methods_text.RANKS, run=shaped_links.in_lab(lab, o.timeout))
    missing = Rows(Path(o.save)).missing(o.settings)
    if missing:
        sys.exit(f"not measured within {o.timeout:g} s: {', '.join(missing)}. Run it again: it continues.")
