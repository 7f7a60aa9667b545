"""Links that the benchmarks shape: nothing of them may outlive the program that made them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
BUILD = """
import signal
from harness import links as shaped_links
with shaped_links.build(1, 1e9) as lab:
    print(lab.namespaces[0], flush=True)
    signal.pause()
"""


def reason_against() -> str:
    ask = [sys.executable, "-c", "from harness.links import why_not; print(why_not())"]
    done = subprocess.run(ask, cwd=BENCH, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_the_namespaces(number: int) -> None:
    if reason := reason_against():
        pytest.skip(f"links cannot be shaped here: {reason}")
    command = [sys.executable, "-c", BUILD]
    process = subprocess.Popen(
        command, cwd=BENCH, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    namespace = process.stdout.readline().strip()
    assert Path("/run/netns", namespace).exists()

    os.kill(process.pid, number)

    assert process.wait(timeout=60) != 0
    assert not Path("/run/netns", namespace).exists()
