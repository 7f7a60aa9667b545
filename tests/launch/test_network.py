"""Where a job listens, in network namespaces of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rabit.errors import InvalidArgument
from rabit.rendezvous import addresses, interfaces

LISTENERS = """
import numpy as np, rabit
from pathlib import Path
rabit.init()
rabit.allreduce(np.ones(3), name="x")
listening = []
for table in ("tcp", "tcp6"):
    path = Path("/proc/net") / table
    for line in path.read_text().splitlines()[1:] if path.exists() else []:
        fields = line.split()
        if fields[3] == "0A":
            listening.append(fields[1].rpartition(":")[0])
print("listening", *sorted(set(listening)))
print("sum", rabit.allreduce(np.ones(3), op=rabit.Sum, name="y")[0])
"""
LOOPBACK_4, LOOPBACK_6 = "0100007F", "00000000000000000000000001000000"


def in_namespace(setup, *arguments):
    """Runs rabitrun where `setup` (a shell text) has made the network."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("unshare or ip is not installed")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    probe = subprocess.run(
        ["unshare", *user, "--net", "ip", "link", "set", "lo", "up"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip(f"no network namespaces here: {probe.stderr.strip()}")
    command = [sys.executable, "-m", "rabit.launch", *map(str, arguments)]
    return subprocess.run(
        ["unshare", *user, "--net", "sh", "-c", f'{setup}; exec "$@"', "sh", *command],
        cwd=tempfile.gettempdir(), capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(LISTENERS)
    return path


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_job_on_one_host_listens_on_the_loopback_only(script, transport):
    setup = "ip link set lo up; ip link add d0 type dummy 2>/dev/null || ip link add d0 type veth"
    setup += "; ip addr add 192.0.2.7/24 dev d0; ip link set d0 up"

    done = in_namespace(setup, "-np", 2, "--transport", transport, sys.executable, script)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0") == 2
    found = {line.partition("listening ")[2] for line in done.stdout.splitlines()} - {""}
    assert {address for each in found for address in each.split()} <= {LOOPBACK_4, LOOPBACK_6}


@pytest.mark.parametrize(
    ("names", "is_told"), [("nope0,nope1", True), ("nope0,lo", False), ("", False)]
)
def test_an_interface_that_is_not_there_is_told_where_none_is_needed(rabitrun, names, is_told):
    job = rabitrun("-np", 2, "true", environ={"RABIT_NETWORK_INTERFACES": names})

    assert job.status == 0
    text = f"rabitrun: the network interface {names.replace(',', ', ')} (--network-interfaces or"
    assert (text in job.err, "This job uses the loopback" in job.err) == (is_told, is_told)


def test_a_host_without_ipv4(script):
    setup = "ip link set lo up; ip addr del 127.0.0.1/8 dev lo"
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")

    done = in_namespace(setup, "-np", 2, "--transport", "tcp", sys.executable, script)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0") == 2


def test_a_chosen_interface_carries_the_traffic(script):
    setup = "ip link set lo up; ip link add d0 type veth; ip addr add 192.0.2.7/24 dev d0"
    setup += "; ip link set d0 up"

    done = in_namespace(
        setup, "-np", 2, "--bind-address", "192.0.2.7", "--transport", "tcp",
        sys.executable, script,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "070200C0" in done.stdout
    assert done.stdout.count("sum 2.0") == 2


def test_an_unknown_interface_is_told():
    with pytest.raises(InvalidArgument, match=r"'nope0' does not exist on .*known are .*lo"):
        interfaces.interface_addresses("nope0")


def test_the_loopback_interface_has_its_address():
    assert "127.0.0.1" in interfaces.interface_addresses("lo")
    assert interfaces.pick_address(["nope0", "lo"]) == "127.0.0.1"


def test_every_address_of_an_interface_is_seen_ipv4_first(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from rabit.rendezvous import interfaces\n"
        "print(*interfaces.interface_addresses('d0'), 'then', interfaces.pick_address(['e0', 'd0']))"
    )
    setup = "ip link set lo up; ip link add d0 type veth peer name d1; ip link set d0 up; ip link set d1 up"
    for address in ("192.0.2.7/24", "198.51.100.7/24 label d0:1", "2001:db8::7/64 nodad"):
        setup += f"; ip addr add {address} dev d0"

    done = in_namespace(setup, "-np", 1, sys.executable, script)

    assert "192.0.2.7 198.51.100.7 2001:db8::7 then 192.0.2.7" in done.stdout, done.stderr


def test_an_interface_that_is_down_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from rabit.rendezvous import interfaces\ninterfaces.interface_addresses('d0')")

    done = in_namespace("ip link set lo up; ip link add d0 type veth", "-np", 1, sys.executable, script)

    assert "'d0' is down" in done.stderr


def test_the_route_to_this_host_leaves_from_it():
    assert addresses.route_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(InvalidArgument, match="does not resolve"):
        addresses.route_address("no-such-host.invalid")


@pytest.mark.parametrize("arguments", [(), ("-H", "localhost:2")])
def test_a_loopback_that_is_down_is_told_before_a_rank_starts(script, arguments):
    done = in_namespace("true", "-np", 2, *arguments, sys.executable, script)

    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and not done.stdout
    assert "the loopback interface of" in done.stderr
    assert "127.0.0.1 is not reached ([Errno 101] Network is unreachable)" in done.stderr
    assert "ip link set lo up" in done.stderr
