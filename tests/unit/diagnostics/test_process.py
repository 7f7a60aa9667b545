"""A Ctrl-C that Python would drop is heard."""

from __future__ import annotations

import subprocess
import sys

# Handles of a lone rank end in a `__del__` whose release is where the signal falls.
SCRIPT = """
import sys, time
import numpy as np
import rabit
from rabit.engine.native_engine import NativeEngine

rabit.init()


class Foreign:
    def __del__(self):
        raise KeyboardInterrupt


def release(*_):
    raise KeyboardInterrupt


owner = Foreign() if sys.argv[1] == "foreign" else rabit.allreduce_async(np.ones(1), name="x")
if sys.argv[1] == "own":
    owner.wait()
kept, NativeEngine.release = NativeEngine.release, release
del owner
NativeEngine.release = kept
try:
    time.sleep(float(sys.argv[2]))
    print("slept")
except KeyboardInterrupt:
    print("heard")
"""


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=60, check=True
    )


def test_an_interrupt_in_the_end_of_a_handle_comes_again():
    done = run("own", "30")

    assert (done.stdout, done.stderr) == ("heard\n", "")


def test_what_falls_into_the_end_of_other_objects_stays_with_python():
    done = run("foreign", "0.1")

    assert done.stdout == "slept\n"
    assert "Exception ignored in" in done.stderr and "Foreign" in done.stderr
