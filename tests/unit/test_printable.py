"""Text that steers no terminal."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path

import pytest

import rabit
from rabit.launch.run import RunFailed
from rabit.printable import printable, printable_lines

NATIVE = Path(__file__).parents[2] / "native/base/printable.cc"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("w\x1b]0;x\x07\x1b[2J", r"w\x1b]0;x\x07\x1b[2J"),
        ("a\nb\r\tc\x7f\0", r"a\nb\r\tc\x7f\x00"),
        ("\x9b31m", r"\x9b31m"),  # an ESC [ of its own
        ("\u202etxt\u2028", r"\u202etxt\u2028"),
        ("\U000e0001", r"\U000e0001"),
        ("\udc9b", r"\udc9b"),  # a byte of a name that is not UTF-8
        ("conv1.weight 'Größe' 層.重み وزن 👩\u200d💻 a\\x1b\xa0\u3000", None),
        ("", None),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_its_code(text, shown):
    assert printable(text) == (text if shown is None else shown)
    assert printable(printable(text)) == printable(text)


def test_the_lines_of_a_traceback_stay():
    assert printable_lines("a\n\tb\x1b[2J\r\n") == "a\n        b\\x1b[2J\\r\n"


def test_native_code_has_the_same_table():
    rows = re.findall(r"\{(0x[0-9a-f]+), (0x[0-9a-f]+)\}", NATIVE.read_text())
    natively = {code for first, last in rows for code in range(int(first, 16), int(last, 16) + 1)}

    assert {code for code in range(sys.maxunicode + 1) if printable(chr(code)) != chr(code)} == natively


def test_errors_are_one_line_whatever_names_they_hold():
    error = rabit.Mismatch("allreduce 'w\x1b[2J\nrabitrun: all is well': shapes differ", 1)

    assert str(error) == r"allreduce 'w\x1b[2J\nrabitrun: all is well': shapes differ"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_report_of_a_job_keeps_its_lines():
    assert str(RunFailed("rank 1 raised\n  At x\x1b[2J", 1, 3)) == "rank 1 raised\n  At x\\x1b[2J"
