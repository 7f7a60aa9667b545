"""Draws the pictures of the pages: python docs/pictures/draw.py.

Each function below draws one file of this folder.  Figures come from figures.json, with the command that measured them.
tests/repo/test_pictures.py compares the files with what is drawn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from svg import BLUE, GREEN, GREY, INK, LINE, ORANGE, RED, SOFT, Canvas

HERE = Path(__file__).resolve().parent


def step_time() -> Canvas:
    """Step time of three models: DDP on gloo, and two modes of rabit."""
    figures = json.loads((HERE / "figures.json").read_text())["step_time"]
    ways, colours = figures["ways"], (GREY, BLUE, GREEN)
    canvas = Canvas(760, 400, figures["title"])
    canvas.text(28, 36, figures["title"], size=19, bold=True, anchor="start")
    left, scale, y = 140, 1200.0, 100
    for place, (way, colour) in enumerate(zip(ways, colours, strict=True)):
        x = left + (0, 130, 350)[place]
        canvas.bar(x, 56, 14, 14, colour)
        canvas.text(x + 20, 68, way, anchor="start", size=14)
    for row in figures["rows"]:
        canvas.text(left - 12, y + 40, row["model"], anchor="end", size=15, bold=True)
        for seconds, colour in zip(row["seconds"], colours, strict=True):
            canvas.bar(left, y, seconds * scale, 20, colour)
            canvas.text(left + seconds * scale + 8, y + 15, f"{seconds:.2f} s", anchor="start")
            y += 23
        x = left + row["least"] * scale
        canvas.line(x, y - 73, x, y, dashed=True, colour=INK)
        y += 16
    canvas.line(left, 92, left, y - 12, colour=LINE)
    canvas.text(
        28,
        y + 18,
        figures["note"].replace("turns; ", "turns;\n"),
        anchor="start",
        size=13,
        colour=SOFT,
    )
    return canvas


def architecture() -> Canvas:
    """The layers from the script to the wire."""
    canvas = Canvas(860, 560, "Architecture of rabit")
    canvas.box(30, 24, 800, 46, "your training script", colour=GREY, size=16, bold=True)
    names = (
        "rabit_torch\noptimizer, collectives, torch.distributed",
        "rabit\nNumPy, DLPack",
        "rabit_mxnet\nGluon, Module",
    )
    for place, (name, width) in enumerate(zip(names, (330, 220, 220), strict=True)):
        canvas.box(30 + (0, 345, 580)[place], 88, width, 56, name, colour=BLUE)
    canvas.box(30, 162, 385, 56, "gradient methods\nPowerSGD, top-k, Local SGD, …", colour=BLUE)
    canvas.box(430, 162, 400, 56, "elastic jobs, checkpoints, data,\nsharding, tuning", colour=BLUE)
    canvas.line(30, 238, 830, 238, colour=INK, width=2)
    canvas.text(
        430, 258, "C interface (cffi), no callbacks into Python", size=13, colour=SOFT, italic=True
    )
    words = (
        "negotiate\nwhich tensors are ready everywhere",
        "schedule\ncut, order, join",
        "route\nbackend, algorithm",
        "lanes\npack, send, unpack",
    )
    for place, (word, width) in enumerate(zip(words, (275, 155, 165, 175), strict=True)):
        x = 30 + (0, 287, 454, 625)[place]
        canvas.box(x, 276, width, 60, word, colour=ORANGE)
        if place:
            canvas.arrow(x - 11, 306, x - 1, 306)
    canvas.text(
        430,
        362,
        "the engine, in C++: one thread decides, a few lanes move bytes",
        size=13,
        colour=SOFT,
        italic=True,
    )
    for place, word in enumerate(
        (
            "builtin\nring, direct, trees, …",
            "ps\nsummation servers",
            "mpi\nMPI messages",
            "nccl\nuntried on a GPU",
        )
    ):
        canvas.box(30 + 203 * place, 378, 191, 56, word, colour=GREEN)
    for place, word in enumerate(("shared memory, inside a host", "TCP, between hosts")):
        canvas.box(30 + 406 * place, 450, 394, 44, word, colour=GREEN)
    canvas.box(
        30,
        510,
        800,
        34,
        "rabitrun: starts ranks, serves the store where they meet, reports the first failure",
        colour=GREY,
        size=14,
    )
    return canvas


def gradient() -> Canvas:
    """The path of one gradient, by the threads that handle it."""
    canvas = Canvas(900, 410, "The path of one gradient")
    rows = (
        ("autograd thread", BLUE),
        ("engine thread", ORANGE),
        ("lane", GREEN),
        ("training thread", BLUE),
    )
    for place, (name, colour) in enumerate(rows):
        y = 24 + 92 * place
        canvas.line(24, y + 82, 876, y + 82, colour=GREY)
        canvas.text(24, y + 40, name, anchor="start", bold=True, colour=colour, size=13)
    steps = (
        (0, 165, 120, "the hook fires"),
        (0, 310, 130, "its route\nstarts"),
        (0, 465, 120, "submit"),
        (1, 165, 130, "announce:\nready here"),
        (1, 320, 150, "agree: ready\non every rank"),
        (1, 495, 140, "cut, order,\njoin: a bucket"),
        (1, 660, 130, "route: backend\nand algorithm"),
        (2, 395, 110, "pack or\nencode"),
        (2, 530, 120, "exchange"),
        (2, 675, 120, "unpack or\ndecode"),
        (3, 480, 150, "the handle\nis finished"),
        (3, 655, 150, "the optimizer\nupdates"),
    )
    for row, x, width, words in steps:
        canvas.box(x, 34 + 92 * row, width, 52, words, colour=rows[row][1])
    for y, pairs in (
        (60, ((285, 310), (440, 465))),
        (152, ((295, 320), (470, 495), (635, 660))),
        (244, ((505, 530), (650, 675))),
        (336, ((630, 655),)),
    ):
        for x1, x2 in pairs:
            canvas.arrow(x1, y, x2 - 1, y)
    for x1, y1, x2, y2 in ((525, 86, 230, 125), (725, 178, 450, 217), (735, 270, 555, 309)):
        canvas.arrow(x1, y1, x2, y2)
    return canvas


def negotiation() -> Canvas:
    """Two ranks that submit in different orders, and the agreements between them."""
    canvas = Canvas(860, 450, "Negotiation between two ranks")
    left, right = 210, 650
    for x, name in ((left, "rank 0 (coordinates)"), (right, "rank 1")):
        canvas.box(x - 100, 20, 200, 36, name, colour=ORANGE, bold=True)
        canvas.line(x, 56, x, 430, colour=LINE)

    def event(x: int, y: int, words: str) -> None:
        canvas.text(
            x + (-14 if x == left else 14), y + 5, words, anchor="end" if x == left else "start"
        )
        canvas.bar(x - 5, y - 5, 10, 10, ORANGE)

    event(left, 90, "gradient a is ready")
    event(right, 90, "gradient b is ready")
    canvas.arrow(right, 100, left + 4, 140, colour=BLUE)
    canvas.text(430, 108, "announcement: b", colour=BLUE)
    event(left, 180, "gradient b is ready")
    canvas.arrow(left, 190, right - 4, 230, colour=ORANGE)
    canvas.text(430, 198, "agreement: b", colour=ORANGE)
    canvas.line(left + 8, 262, right - 8, 262, colour=GREEN, width=5)
    canvas.text(430, 252, "both ranks exchange b", colour=GREEN, bold=True)
    event(right, 292, "gradient a is ready")
    canvas.arrow(right, 302, left + 4, 336, colour=BLUE)
    canvas.text(430, 308, "announcement: a", colour=BLUE)
    canvas.arrow(left, 344, right - 4, 378, colour=ORANGE)
    canvas.text(430, 352, "agreement: a", colour=ORANGE)
    canvas.line(left + 8, 410, right - 8, 410, colour=GREEN, width=5)
    canvas.text(430, 400, "both ranks exchange a", colour=GREEN, bold=True)
    return canvas


def elastic() -> Canvas:
    """A loss on a time line: three ranks and a spare."""
    canvas = Canvas(900, 400, "Recovery of an elastic job")
    names = ("rank 0", "rank 1", "rank 2", "spare")
    left, lost, back = 110, 390, 640
    for place, name in enumerate(names):
        y = 84 + 62 * place
        canvas.text(24, y + 6, name, anchor="start", bold=True)
        canvas.line(left, y, 876, y, colour=GREY)
    for place in (0, 1, 2):
        y = 72 + 62 * place
        for step, x in ((7, left), (8, left + 92)):
            canvas.box(x, y, 86, 24, f"step {step}", colour=BLUE, size=13)
        canvas.box(
            left + 184,
            y,
            92 if place != 1 else 80,
            24,
            "step 9",
            colour=BLUE if place != 1 else RED,
            size=13,
        )
    canvas.box(left, 258, 240, 24, "waits in init()", colour=GREY, size=13)
    canvas.text(lost - 10, 40, "rank 1 is killed", colour=RED, bold=True)
    canvas.line(lost - 12, 48, lost - 12, 300, colour=RED, dashed=True)
    for place in (0, 2, 3):
        y = 72 + 62 * place
        canvas.box(
            lost + 8,
            y,
            112,
            24,
            "agree: who stays" if place != 3 else "takes the rank",
            colour=ORANGE,
            size=12,
        )
        canvas.box(lost + 126, y, 118, 24, "last commit", colour=GREEN, size=13)
        canvas.box(back, y, 86, 24, "step 9", colour=BLUE, size=13)
        canvas.box(back + 92, y, 86, 24, "step 10", colour=BLUE, size=13)
    for x in (left + 89, left + 181):
        canvas.line(x, 62, x, 218, colour=GREEN, dashed=True)
    canvas.text(left + 135, 52, "commits, in memory", colour=GREEN)
    canvas.line(lost - 12, 318, back, 318, colour=SOFT)
    canvas.text(
        (lost + back) / 2,
        340,
        "about 0.1 s; no process restarts, nothing is read from disk",
        colour=SOFT,
    )
    canvas.text(450, 378, "The spare becomes rank 1. Step 9 runs again with three ranks.", size=15)
    return canvas


def deferred() -> Canvas:
    """The phases of an update that crosses into the next forward pass."""
    canvas = Canvas(900, 330, "Phases of a deferred update")
    canvas.box(40, 120, 150, 62, "PLAIN\nup to date", colour=GREY, bold=True)
    canvas.box(375, 120, 160, 62, "HIDDEN\ngradient travels", colour=ORANGE, bold=True)
    canvas.box(715, 120, 150, 62, "COMMITTED\nupdate waits", colour=BLUE, bold=True)
    canvas.arrow(190, 151, 373, 151)
    canvas.text(282, 140, "backward() sends it")
    canvas.arrow(535, 151, 713, 151)
    canvas.text(624, 140, "step()")
    canvas.line(790, 182, 790, 272)
    canvas.line(790, 272, 115, 272)
    canvas.arrow(115, 272, 115, 184)
    canvas.text(452, 262, "the parameter is read: its reader updates it first", colour=INK)
    canvas.line(455, 120, 455, 62)
    canvas.line(455, 62, 115, 62)
    canvas.arrow(115, 62, 115, 118)
    canvas.text(285, 52, ".grad is read before step(): it is waited for")
    canvas.text(
        450,
        310,
        'The first step waits like overlap="backward" and records the order in which parameters are used.',
        size=13,
        colour=SOFT,
    )
    return canvas


def trace() -> Canvas:
    """Some steps of a job with one slow rank, from its records."""
    figures = json.loads((HERE / "figures.json").read_text())["trace"]
    canvas = Canvas(860, 230, figures["title"])
    canvas.text(28, 36, figures["title"], size=17, bold=True, anchor="start")
    left, width = 100, 730
    scale = width / figures["milliseconds"]
    colours = {"waiting": ORANGE, "allreduce": BLUE}
    for place, (name, colour) in enumerate(colours.items()):
        canvas.bar(left + 140 * place, 54, 14, 14, colour)
        canvas.text(left + 140 * place + 20, 66, name, anchor="start", size=14)
    canvas.bar(left + 280, 54, 14, 14, GREY)
    canvas.text(left + 300, 66, "computation", anchor="start", size=14)
    for row in figures["rows"]:
        y = 86 + 38 * row["rank"]
        canvas.text(left - 12, y + 19, f"rank {row['rank']}", anchor="end", size=15, bold=True)
        canvas.bar(left, y, width, 26, GREY)
        for name, begin, taken in row["spans"]:
            end = min(begin + taken, figures["milliseconds"])
            canvas.bar(left + begin * scale, y, max(1.0, (end - begin) * scale), 26, colours[name])
    canvas.text(left, 216, "0 s", anchor="start", size=13, colour=SOFT)
    canvas.text(
        left + width,
        216,
        f"{figures['milliseconds'] / 1000:.1f} s",
        anchor="end",
        size=13,
        colour=SOFT,
    )
    return canvas


PICTURES: dict[str, Callable[[], Canvas]] = {
    draw.__name__: draw
    for draw in (step_time, architecture, gradient, negotiation, elastic, deferred, trace)
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(draw().svg())
