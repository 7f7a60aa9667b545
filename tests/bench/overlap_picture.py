"""Draws what overlaps with what, from the engine's timeline: docs/explain/overlap.svg."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import crossing
import torch
from harness import Option, case, lab_or_stop, on_ranks
from harness.links import in_lab

import rabit
import rabit_torch
from rabit.tuning.step_time import Layer

LAYERS = 6
LAYER_NAME = re.compile(r"(\d+)\.(?:weight|bias)")
MODES = ("backward", "next-forward", "reduce-scatter")
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2")
WIDTH, LEFT, ROW, GAP = 900, 90, 22, 6


def overlap_picture_rank(o: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    rabit_torch.init()
    rank = rabit.rank()
    slope = crossing.measure_link([1 << 18, 1 << 20, 1 << 22])
    unit = o.compute / (3 * LAYERS)
    size = int(o.compute / slope / LAYERS) // 64 * 64
    layers = [Layer(unit, 2 * unit, size) for _ in range(LAYERS)]
    report: dict[str, Any] = {}
    for mode in MODES:
        spans: list[Any] = []
        model = crossing.emulated(layers, spans)
        optimizer = rabit_torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap=mode
        )
        x = torch.zeros(1, requires_grad=True)
        path = o.folder / f"trace.{mode}"
        begins = []
        for step in range(7):
            if step == 3:
                rabit.barrier()
                spans.clear()
                origin = time.perf_counter()
                if rank == 0:
                    rabit.start_timeline(str(path))
            begins.append(time.perf_counter())
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        optimizer.flush()
        if rank == 0:
            rabit.stop_timeline()
            report[mode] = {
                "trace": json.loads(path.read_text()),
                "device": [[*each[:2], each[2] - origin, each[3] - origin] for each in spans],
                "begin": begins[4] - origin,
                "end": begins[6] - origin,
            }
    rabit.shutdown()
    return report


def exchanges(trace: list[dict[str, Any]]) -> list[tuple[int, int, float, float]]:
    """(layer, lane, begin, end) of everything that was on the link, in seconds."""
    rows = {e["tid"]: e["args"]["name"] for e in trace if e.get("name") == "thread_name"}
    found = []
    for event in trace:
        if event.get("name") in ("ALLREDUCE", "REDUCESCATTER", "ALLGATHER"):
            layer = int(LAYER_NAME.findall(rows[event["tid"]])[0])
            begin, length = event["ts"] / 1e6, event["dur"] / 1e6
            found.append((layer, event["args"]["lane"], begin, begin + length))
    return found


def box(x: float, y: float, width: float, height: float, layer: int, look: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.6):.1f}" height="{height:.1f}" '
        f'fill="{COLOURS[layer]}" {look}/>'
    )


def words(x: float, y: float, content: str, look: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" font-family="sans-serif" {look}>{content}</text>'


def draw(report: dict[str, Any]) -> str:
    scale = (WIDTH - LEFT - 10) / max(each["end"] - each["begin"] for each in report.values())
    parts, top = [], 20.0
    for mode, each in report.items():
        begin, end = each["begin"], each["end"]

        def at(moment: float, begin: float = begin) -> float:
            return LEFT + (moment - begin) * scale

        seconds = (end - begin) / 2
        parts.append(words(LEFT, top, f'overlap="{mode}": {seconds * 1e3:.0f} ms a step'))
        parts.append(words(4, top + 22, "device"))
        parts.append(words(4, top + 22 + ROW + GAP, "link"))
        for what, layer, first, last in each["device"]:
            if last > begin and first < end:
                first, last = max(first, begin), min(last, end)
                look = 'fill-opacity="0.55" stroke="#000" stroke-width="0.4"'
                look = look if what == "forward" else 'stroke="#000" stroke-width="0.4"'
                width = (last - first) * scale
                parts.append(box(at(first), top + 7, width, ROW, layer, look))
                if width > 9:
                    parts.append(words(at(first) + 2, top + 22, str(layer + 1), 'fill="#fff"'))
        for layer, lane, first, last in exchanges(each["trace"]):
            if last > begin and first < end:
                first, last = max(first, begin), min(last, end)
                y = top + 7 + ROW + GAP + (ROW / 2) * (lane % 2)
                parts.append(box(at(first), y, (last - first) * scale, ROW / 2 - 1, layer))
        middle = at(begin + seconds)
        for x in (LEFT, middle, at(end)):
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + 4:.1f}" y2="{top + 12 + 2 * ROW + GAP:.1f}" '
                'stroke="#000" stroke-dasharray="3 2" stroke-width="0.8"/>'
            )
        top += 2 * ROW + GAP + 36
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top:.0f}">'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, background, *parts, "</svg>\n"])


@case(output=Option("overlap.svg"), compute=0.3)
def overlap_picture(o: Any) -> None:
    """Draws what overlaps with what, from the engine's timeline: docs/explain/overlap.svg.

    Two ranks on links of 1 Gbit/s train an emulated model of six equal layers with as much communication as
    computation (`compute` seconds), in three modes. Drawn are two steps of rank 0 in each.
    """
    with lab_or_stop(2, 1e9) as lab:
        Path(o.output).write_text(draw(on_ranks(overlap_picture_rank, o, 2, run=in_lab(lab, 300))[0]))
