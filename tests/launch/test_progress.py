"""Progress bars of ranks: redrawn on a terminal, sparse elsewhere."""

from __future__ import annotations

import os
import re
import sys

import pytest

from rabit.launch.nodes.node import STDERR, STDOUT
from rabit.launch.output.output import Output, Style
from rabit.launch.output.progress import SPARSE_S, Bars, last_state, rewritten_lines

PARTS = re.compile(r"\x1b\[(\d*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def screen(written):
    """The lines that a terminal shows after `written`."""
    lines, row, column = [""], 0, 0
    for count, command, control, text in PARTS.findall(written.decode()):
        if command == "A":
            row -= int(count or 1)
            assert row >= 0, "the cursor leaves the top of what was written"
        elif command == "J":
            lines[row] = lines[row][:column]
            del lines[row + 1 :]
        elif control == "\r":
            column = 0
        elif control == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text:
            lines[row] = lines[row][:column] + text + lines[row][column + len(text) :]
            column += len(text)
    return lines


class Terminal:
    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


def make_output(size=2, **style):
    sink = Terminal()
    labels = {rank: str(rank) for rank in range(size)}
    return Output(Style(labels, **style), {STDOUT: sink, STDERR: sink}, None), sink


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (b"", b""),
        (b"\r 10%", b" 10%"),
        (b" 10%\r", b" 10%"),
        (b"\r 10%\r 20%", b" 20%"),
        (b"\r\x1b[2K\x1b[32m 20%\x1b[0m\x1b[K", b"\x1b[32m 20%\x1b[0m"),
    ],
)
def test_the_last_state_is_what_a_line_shows(text, state):
    assert last_state(text) == state


def test_lines_that_were_not_rewritten_stay_as_they_are():
    assert rewritten_lines(b"a\x1b[K\n\x00b\n") == b"a\x1b[K\n\x00b\n"
    assert rewritten_lines(b"one\r\ntw\ro\n") == b"one\r\ntw\ro\n"


def test_complete_lines_that_were_rewritten_show_their_end():
    assert rewritten_lines(b"a\n1\r2\r3\n\r50%\n") == b"a\n3\n50%\n"


def test_each_rank_has_one_line_that_is_redrawn():
    output, sink = make_output(draws_bars=True, is_terminal=True)

    for percent in (10, 20):
        for rank in (0, 1):
            output.feed(rank, STDERR, b"\rrank %d at %d%%" % (rank, percent))
        output.tick(float("inf"))

    assert screen(sink.data) == ["[0] rank 0 at 20%", "[1] rank 1 at 20%"]


def test_lines_appear_above_the_bars():
    output, sink = make_output(draws_bars=True, is_terminal=True)
    for rank in (0, 1):
        output.feed(rank, STDERR, b"\r50%")
    output.tick(float("inf"))

    output.feed(1, STDOUT, b"epoch 1 ends\n")
    output.tick(float("inf"))

    assert screen(sink.data) == ["[1] epoch 1 ends", "[0] 50%", "[1] 50%"]


def test_a_complete_bar_is_a_line_like_others():
    output, sink = make_output(draws_bars=True, is_terminal=True)
    for rank in (0, 1):
        output.feed(rank, STDERR, b"\r50%")
    output.tick(float("inf"))

    output.feed(0, STDERR, b"\r100%\n")
    output.tick(float("inf"))
    assert screen(sink.data) == ["[0] 100%", "[1] 50%"]
    output.close(1, STDERR)
    output.finish()

    assert screen(sink.data) == ["[0] 100%", "[1] 50%", ""]


def test_a_bar_is_cut_at_the_edge_and_bars_at_the_height_of_the_terminal():
    sink = Terminal()
    bars = Bars(sink.write, lambda: (12, 3), lambda rank: (b"[%d] " % rank, 4))

    for rank in range(5):
        bars.show(rank, STDERR, b"\x1b[31m0123456789\x1b[0m", now=0.0)
    bars.tick(1.0)

    assert screen(sink.data) == ["[0] 0123456", "[1] 0123456"]


def test_elsewhere_states_are_written_sparsely():
    sink = Terminal()
    bars = Bars(sink.write, None, lambda rank: (b"[%d] " % rank, 4))

    for second in range(1, 26):
        bars.show(0, STDERR, b"at %d" % second, now=float(second))
        bars.tick(float(second))

    assert SPARSE_S == 10
    assert sink.data == b"[0] at 11\n[0] at 21\n"


def test_a_state_that_stays_is_written_once():
    sink = Terminal()
    bars = Bars(sink.write, None, lambda rank: (b"", 0))
    bars.show(0, STDERR, b"waiting", now=0.0)

    bars.tick(20.0)
    bars.tick(40.0)

    assert sink.data == b"waiting\n" and bars.due() is None


TQDM = "from tqdm import tqdm\nfor _ in tqdm(range(500), mininterval=0): pass\n"


def test_tqdm_gives_one_line_in_a_file(rabitrun):
    pytest.importorskip("tqdm")

    job = rabitrun("-np", 2, sys.executable, "-c", TQDM)

    lines = job.err.splitlines()
    assert len(lines) == 2 and all("500/500" in line for line in lines)


def test_tqdm_is_redrawn_on_a_terminal(start):
    pytest.importorskip("tqdm")
    import pty

    controller, terminal = pty.openpty()
    environ = {"TERM": "xterm", "NO_COLOR": "1"}
    job = start(
        "-np", 2, sys.executable, "-c", TQDM, stdout=terminal, stderr=terminal, environ=environ
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            piece = os.read(controller, 4096)
        except OSError:  # Linux says so when the other side has closed it.
            break
        seen += piece

    assert job.process.wait(30) == 0
    shown = [line for line in screen(seen.replace(b"\r\n", b"\n")) if line]
    assert len(shown) == 2 and all("500/500" in line for line in shown), shown
