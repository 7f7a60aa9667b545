"""Training loops on networks whose links differ, or change meanwhile.  Needs root, ip and tc."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from harness import case, choice, median, on_ranks, sizes, table, words
from harness import links as shaped_links
from harness.network import build_network
from plans import racks, star


@case(network=choice("star", "racks"), ways=words("auto,kept,off"), hosts=4, mbit=50.0, sizes=sizes("2M"), before=90,
      after=60, slow_host=3, factor=0.5)  # fmt: skip
def plan_change(o: Any) -> bool:
    """A training loop while the link of one host gets slower: steps before and after, with and without a new plan.

    auto: RABIT_PLAN=auto; kept: the same, without the watch, so that the plan of the start stays; off: no plan. A step
    is one allreduce and mark_step(). --factor 1: nothing changes, and the figure is what watching costs.
    """
    if why := shaped_links.why_not():
        print(f"skipped: links cannot be shaped here: {why}")
        return True
    network = {"star": star(*[o.mbit] * o.hosts), "racks": racks(o.hosts, o.mbit, o.mbit / 2)}[o.network]
    rows = []
    for way in o.ways:
        o.way = way
        with tempfile.TemporaryDirectory() as folder, build_network(network) as lab:
            o.signal = str(Path(folder) / "half")
            is_over = threading.Event()
            slows = threading.Thread(target=slow_down, args=(o, lab, is_over))
            slows.start()
            try:
                found = on_ranks(changing_rank, o, o.hosts, run=shaped_links.in_lab(lab, timeout=900))
            finally:
                is_over.set()
                slows.join()
        times = [max(turn) for turn in zip(*(rank[0] for rank in found), strict=True)]
        plan = found[0][1]
        settled = times[o.before + o.after // 2 :]
        replanned = [step - o.before for step in plan.get("replanned_at", [])]
        rows.append([way, f"{median(times[: o.before]):.3f} s", f"{median(settled):.3f} s", f"{sum(times):.1f} s",
                     ", ".join(map(str, replanned)) or "-", str(plan.get("probes", 0))])  # fmt: skip
    table(["", "step before", "step after", "all steps", "new plan after steps", "probes"], rows)
    return True


def slow_down(o: Any, lab: Any, is_over: threading.Event) -> None:
    """Shapes the link when rank 0 has made its file."""
    while not is_over.wait(0.05):
        if Path(o.signal).exists():
            if o.factor != 1:
                lab.reshape(o.slow_host, o.mbit * 1e6 * o.factor, shaped_links.LONG_QUEUE_SECONDS)
            return


def changing_rank(o: Any) -> tuple[list[float], dict[str, Any]]:
    import os

    import numpy as np

    os.environ["RABIT_PLAN"] = "off" if o.way == "off" else "auto"
    import rabit
    from rabit.engine.current import current_engine

    rabit.init()
    if o.way == "kept":
        current_engine().plan_watch = None
    total = rabit.size() * (rabit.size() + 1) / 2
    array = np.full(o.sizes[0] // 4, rabit.rank() + 1, np.float32)
    rabit.barrier()
    taken = []
    for step in range(o.before + o.after):
        if step == o.before and rabit.rank() == 0:
            Path(o.signal).touch()
        began = time.perf_counter()
        out = rabit.allreduce(array, name="gradients", op=rabit.Sum)
        assert out[0] == out[-1] == total
        rabit.mark_step()
        taken.append(time.perf_counter() - began)
    report = current_engine().statistics().get("plan", {})
    rabit.shutdown()
    return taken, json.loads(json.dumps(report))
