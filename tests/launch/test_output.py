"""What ranks write arrives whole, with its prefix, whatever it is."""

from __future__ import annotations

import hashlib
import io
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rabit.launch.nodes.node import STDERR, STDOUT
from rabit.launch.output.collapse import Collapser, rank_list
from rabit.launch.output.output import Output, Style, tail_text


class Recorder:
    """A sink that keeps everything."""

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


def make_output(size=2, **style):
    sinks = {STDOUT: Recorder(), STDERR: Recorder()}
    return Output(Style({rank: str(rank) for rank in range(size)}, **style), sinks, None), sinks


def test_lines_get_a_prefix_and_streams_stay_apart(rabitrun):
    job = rabitrun("-np", 2, "sh", "-c", "echo out $RABIT_RANK; echo err $RABIT_RANK >&2")

    assert sorted(job.out.splitlines()) == ["[0] out 0", "[1] out 1"]
    assert sorted(job.err.splitlines()) == ["[0] err 0", "[1] err 1"]


def test_several_hosts_are_named_in_the_prefix(rabitrun):
    job = rabitrun("-H", "localhost:1,127.0.0.1:1", "sh", "-c", "echo x")

    assert sorted(job.out.splitlines()) == ["[127.0.0.1:1] x", "[localhost:0] x"]


def test_timestamps_come_before_the_prefix(rabitrun):
    job = rabitrun("-np", 1, "--timestamps", "echo", "x")

    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\] x\n", job.out)


def test_no_colour_outside_a_terminal(rabitrun):
    assert "\x1b" not in rabitrun("-np", 2, "echo", "x").out


def test_a_line_in_pieces_is_one_line():
    output, sinks = make_output()

    for piece in (b"be", b"gin", b"ning\nsec", b"ond\n"):
        output.feed(0, STDOUT, piece)

    assert sinks[STDOUT].data == b"[0] beginning\n[0] second\n"


def test_a_last_line_without_an_end_gets_one(rabitrun):
    job = rabitrun("-np", 2, "printf", "no end")

    assert sorted(job.out.splitlines()) == ["[0] no end", "[1] no end"]


def test_a_prompt_appears_on_a_terminal_before_its_line_ends():
    output, sinks = make_output(is_terminal=True)

    output.feed(0, STDOUT, b"epoch 1: ")
    output.tick(float("inf"))
    assert sinks[STDOUT].data == b"[0] epoch 1: "
    output.feed(0, STDOUT, b"loss 2\n")

    assert sinks[STDOUT].data == b"[0] epoch 1: loss 2\n"


def test_elsewhere_lines_stay_whole_however_long_they_take():
    output, sinks = make_output()

    output.feed(0, STDOUT, b"epoch 1: ")
    output.tick(float("inf"))
    output.feed(1, STDOUT, b"hello\n")
    output.feed(0, STDOUT, b"loss 2\n")

    assert output.due() is None
    assert sinks[STDOUT].data == b"[1] hello\n[0] epoch 1: loss 2\n"


def test_an_open_line_of_one_rank_is_not_mixed_with_another():
    output, sinks = make_output(is_terminal=True)

    output.feed(0, STDOUT, b"epoch 1: ")
    output.tick(float("inf"))
    output.feed(1, STDOUT, b"hello\n")
    output.feed(0, STDOUT, b"loss 2\n")
    output.finish()

    assert sinks[STDOUT].data == b"[0] epoch 1: \n[1] hello\n[0] loss 2\n"


def test_bytes_that_are_no_text_pass(rabitrun):
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) + b'\\n')"
    job = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "1", sys.executable, "-c", code],
        cwd=tempfile.gettempdir(), capture_output=True, timeout=60, check=True,
    )  # fmt: skip

    assert job.stdout == b"[0] " + bytes(range(10)) + b"\n[0] " + bytes(range(11, 256)) + b"\n"


def test_a_line_longer_than_any_buffer_arrives_whole(rabitrun):
    code = "print('x' * 3_000_000)"
    job = rabitrun("-np", 1, sys.executable, "-c", code)

    assert job.out == "[0] " + "x" * 3_000_000 + "\n"


def test_much_output_arrives_whole_and_does_not_stay_in_memory(start):
    lines = 1_000_000
    code = (
        f"import sys; block = ('%063d\\n' * 1000) % tuple(range(1000))\n"
        f"for _ in range({lines} // 1000): sys.stdout.write(block)"
    )
    job = start("-np", 2, sys.executable, "-c", code)
    count, digest = 0, {0: hashlib.sha256(), 1: hashlib.sha256()}
    peak = 0
    for line in io.BufferedReader(job.process.stdout):  # A Job's own reads each byte by itself.
        count += 1
        digest[line[1] - ord("0")].update(line[4:])
        if count % 100_000 == 50_000:  # Never at the end, when the launcher may be gone.
            text = Path(f"/proc/{job.process.pid}/status").read_text()
            peak = max(peak, int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]))

    expected = hashlib.sha256()
    block = "".join(f"{number:063d}\n" for number in range(1000)).encode()
    for _ in range(lines // 1000):
        expected.update(block)
    assert job.process.wait(60) == 0
    assert count == 2 * lines
    assert digest[0].digest() == digest[1].digest() == expected.digest()
    assert peak < 300_000


def test_files_for_each_rank(rabitrun, tmp_path):
    job = rabitrun(
        "-np", 2, "--output-filename", tmp_path / "logs",
        "sh", "-c", "echo out $RABIT_RANK; printf 'err \\0' >&2",
    )  # fmt: skip

    assert job.status == 0
    assert (tmp_path / "logs/rank.0/stdout").read_bytes() == b"out 0\n"
    assert (tmp_path / "logs/rank.1/stdout").read_bytes() == b"out 1\n"
    assert (tmp_path / "logs/rank.1/stderr").read_bytes() == b"err \0"


def test_a_folder_that_cannot_be_made_starts_nothing(rabitrun, tmp_path):
    (tmp_path / "file").touch()

    job = rabitrun("-np", 2, "--output-filename", tmp_path / "file", "echo", "x")

    assert job.status == 2 and job.out == ""
    assert "--output-filename" in job.err and "Choose a folder" in job.err


def test_a_full_disk_is_told_and_does_not_end_the_job(rabitrun, tmp_path):
    place = tmp_path / "rank.0"
    place.mkdir()
    (place / "stdout").symlink_to("/dev/full")

    job = rabitrun("-np", 1, "--output-filename", tmp_path, "echo", "x")

    assert (job.status, job.out) == (0, "[0] x\n")
    assert "cannot be written to its file any more: No space left on device" in job.err


def test_standard_input_is_closed_for_ranks(rabitrun):
    job = rabitrun("-np", 2, "sh", "-c", "cat; echo end")

    assert sorted(job.out.splitlines()) == ["[0] end", "[1] end"]


def test_equal_lines_of_all_ranks_become_one(rabitrun):
    job = rabitrun(
        "-np", 4, "--collapse-output", "sh", "-c", "echo same; echo mine $RABIT_RANK; echo end"
    )

    lines = job.out.splitlines()
    assert lines[0] == "all ranks: same" and lines[-1] == "all ranks: end"
    assert sorted(lines[1:-1]) == [f"rank {rank}: mine {rank}" for rank in range(4)]


def collapse(size, *written):
    collapser = Collapser(size)
    for rank, line in written:
        collapser.add(rank, STDOUT, line.encode(), now=0.0)
    return [(sorted(each.ranks), each.line.decode()) for each in collapser.take(float("inf"))]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([(0, "a"), (1, "a")], [([0, 1], "a")]),
        ([(0, "a"), (0, "a")], [([0], "a"), ([0], "a")]),
        ([(0, "a"), (0, "b"), (1, "b"), (1, "a")], [([0], "a"), ([0, 1], "b"), ([1], "a")]),
        ([(0, "a"), (0, "z"), (1, "b"), (1, "z")], [([0], "a"), ([1], "b"), ([0, 1], "z")]),
    ],
)
def test_collapsing_keeps_the_order_of_each_rank(written, expected):
    assert collapse(3, *written) == expected


def test_a_line_waits_for_the_others_only_for_a_moment():
    collapser = Collapser(2)
    collapser.add(0, STDOUT, b"a", now=10.0)

    assert collapser.take(10.1) == []
    assert collapser.due == 10.25
    assert [each.line for each in collapser.take(10.25)] == [b"a"]


def test_what_is_held_for_collapsing_is_bounded():
    collapser = Collapser(2)
    for number in range(10_000):
        collapser.add(0, STDOUT, b"%d" % number, now=0.0)

    assert len(collapser.take(0.0)) >= 9_000


def test_ranks_are_listed_in_runs():
    assert rank_list({3}, 8) == "rank 3"
    assert rank_list({0, 1, 2, 5}, 8) == "ranks 0-2,5"
    assert rank_list(range(8), 8) == "all ranks"
    assert rank_list({0}, 1) == "rank 0"


def test_the_tail_cannot_steer_a_terminal():
    assert tail_text(b"\x1b[31mred\x1b[0m\x07") == "red\\x07"
    assert tail_text(b"10%\r100%\r") == "100%"
    assert tail_text(b"\xff") == "\\xff"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_job_that_is_started_without_a_standard_stream_runs(tmp_path, closed):
    """Its descriptor is the next one that the launcher or the engine opens."""
    script = tmp_path / "one.py"
    script.write_text(
        "import pathlib, sys, rabit\nrabit.init()\nprint('said')\nprint('told', file=sys.stderr)\n"
        "pathlib.Path(f'{rabit.rank()}.{rabit.size()}').touch()\n"
    )
    python = shlex.quote(sys.executable)

    for command, marks in (
        (f"{python} -m rabit.launch -np 2 {python} one.py", ["0.2", "1.2"]),
        (f"{python} one.py", ["0.1"]),
    ):
        done = subprocess.run(
            ["bash", "-c", f"{command} {closed}"], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

        assert done.returncode == 0, done.stderr
        assert all((tmp_path / each).exists() for each in marks)
        assert ("said" in done.stdout) == (">&-" not in closed.split())
