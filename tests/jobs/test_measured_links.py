"""RABIT_MEASURE_LINKS on links that differ: who sums how much follows from what is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
# The last of four links carries twice as much as the others.
LAB = """
import json, sys, tempfile
from pathlib import Path
from harness.links import build, run_words
servers = int(sys.argv[2])
with build(4, [20e6, 20e6, 20e6, 40e6]) as lab, tempfile.TemporaryDirectory() as folder:
    run_words(lab, Path(folder), [sys.argv[1], folder], 90, servers)
    print(json.dumps([json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(4 - servers)]))
"""
RANK = """
import json, os, sys
from pathlib import Path
import numpy as np
os.environ |= {"RABIT_BACKEND": "ps", "RABIT_MEASURE_LINKS": "1"}
import rabit
rabit.init()
out = rabit.allreduce(np.ones(100_000, np.float32), op=rabit.Sum, name="x")
assert out[0] == out[-1] == rabit.size()
seen = rabit.statistics()["backend_details"]["ps"]
found = {
    "links": seen["link_bandwidths"],
    "summed": seen["bytes_summed"] / (400_000 * rabit.size()),
    "pushed": sum(each["bytes_pushed"] for each in seen["servers"]) / 400_000,
}
Path(sys.argv[1], f"{rabit.rank()}.json").write_text(json.dumps(found))
rabit.shutdown()
"""


@pytest.fixture
def measured(tmp_path):
    """measured(servers): what the ranks of such a job have found; the servers have the last links."""

    def run(servers):
        ask = [sys.executable, "-c", "from harness.links import why_not; print(why_not())"]
        asked = subprocess.run(ask, cwd=BENCH, capture_output=True, text=True, check=True, timeout=60)
        if asked.stdout.strip():
            pytest.skip(f"links cannot be shaped here: {asked.stdout.strip()}")
        script = tmp_path / "rank.py"
        script.write_text(RANK)
        command = [sys.executable, "-c", LAB, str(script), str(servers)]
        done = subprocess.run(
            command, cwd=BENCH, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def most_of(found, slopes):
    """How much each may sum by the links as they were measured, on a busy machine too: in all no less than 1.

    The link of a host with m workers carries m + slope x of all if it sums x, and must be done in the least time.
    slopes: (m, slope) of each host.
    """
    assert all(each["links"] == found[0]["links"] for each in found)
    links = found[0]["links"]
    assert max(links[:3]) < 5e6  # bytes per second, of 20 Mbit/s

    def parts(time):
        return [max(0.0, (time * link - m) / slope) for link, (m, slope) in zip(links, slopes, strict=True)]

    low, high = max(m / link for link, (m, _) in zip(links, slopes, strict=True)), 4 / min(links)
    if sum(parts(low)) >= 1:
        return parts(low)
    for _ in range(60):
        time = (low + high) / 2
        low, high = (low, time) if sum(parts(time)) > 1 else (time, high)
    return parts(high)


def test_the_rank_with_the_faster_link_sums_more(measured):
    """0.7 where the links are as they were made, 0.25 where all are alike."""
    found = measured(0)

    most = most_of(found, [(1, 2)] * 4)
    assert [each["summed"] for each in found] == pytest.approx([part / sum(most) for part in most], abs=0.05)


def test_servers_take_part(measured):
    """8 / 11 where the links are as they were made, 4 / 10 where all are alike."""
    found = measured(1)

    *_, most = most_of(found, [(1, 1)] * 3 + [(0, 3)])
    assert all(each["pushed"] == pytest.approx(min(most, 1), abs=0.05) for each in found)
