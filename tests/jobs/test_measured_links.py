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


def lead_of(found):
    """How much faster the last link was found to be: 2 on an idle machine, less on a busy one."""
    assert all(each["links"] == found[0]["links"] for each in found)
    *slow, fast = found[0]["links"]
    assert 0.2e6 < min(slow) < 5e6  # bytes per second, of 20 Mbit/s
    return fast / (sum(slow) / 3)


def test_the_rank_with_the_faster_link_sums_more(measured):
    """With links of 1, 1, 1 and b it sums (6 b / (3 + b) - 1) / 2: 0.7 for b = 2, 0.25 for b = 1."""
    found = measured(0)

    lead = lead_of(found)
    assert found[3]["summed"] == pytest.approx((6 * lead / (3 + lead) - 1) / 2, abs=0.12)


def test_servers_take_part(measured):
    """Beside three links of 1 a server with b sums 4 b / (9 + b) of all: 8 / 11 for b = 2, 4 / 10 for b = 1."""
    found = measured(1)

    lead = lead_of(found)
    assert all(each["pushed"] == pytest.approx(4 * lead / (9 + lead), abs=0.12) for each in found)
