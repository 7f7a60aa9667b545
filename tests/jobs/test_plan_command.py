"""`rabitrun -np N -H ... plan` probes the network of a job's hosts, and jobs follow what it writes."""

import json
import socket
import subprocess
import sys

import pytest

from rabit.launch.subcommands import find_subcommand

NAMES = ("localhost", "127.0.0.1", socket.gethostname())
HOSTS = ",".join(f"{name}:1" for name in NAMES)


def rabitrun(*words):
    return subprocess.run(
        [sys.executable, "-m", "rabit.launch", *words], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.skipif(len(set(NAMES)) < 3, reason="the host has no name of its own")
def test_a_probed_plan_is_written_shown_and_followed(tmp_path):
    path = tmp_path / "plan.json"

    probed = rabitrun("-np", "3", "-H", HOSTS, "plan", "-o", str(path))

    assert probed.returncode == 0, probed.stderr
    lines = probed.stdout.splitlines()
    assert lines[0].startswith("probed 3 hosts in ")
    assert any(line.startswith("allreduce, plan") for line in lines)
    assert set(json.loads(path.read_text())["hosts"]) == set(NAMES)
    program = "import rabit; rabit.init(); print(rabit.allreduce([1.0] * 50_000, op=rabit.Sum)[0])"
    done = rabitrun("-np", "3", "-H", HOSTS, "--plan", str(path), sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3.0") == 3


def test_one_host_has_no_network_to_probe():
    done = rabitrun("-np", "2", "plan")

    assert done.returncode != 0
    assert "all 2 ranks are on the host" in done.stderr


@pytest.mark.parametrize(
    ("words", "is_local"), [(["--topology", "x.json"], True), (["--topology=x"], True), (["-h"], True), ([], False)]
)
def test_a_topology_file_needs_no_job(words, is_local):
    found, _ = find_subcommand("plan", {"PATH": ""})

    assert found is not None
    assert found.with_words(words).is_local is is_local
