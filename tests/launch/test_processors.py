"""Processors of the ranks of a host: what there is, --bind-to, and threads for each."""

from __future__ import annotations

import os

import pytest

from rabit.errors import InvalidArgument
from rabit.launch.processors import (
    HostProcessors,
    as_list,
    bind,
    bind_with_servers,
    thread_count,
)

TWO_NODES = HostProcessors(((0, 1, 4, 5), (2, 3, 6, 7)))


def sets(binding, local_size, host):
    return [as_list(each) for each in bind(binding, local_size, host)]


def threads(binding, local_size, host):
    places = bind(binding, local_size, host)
    return [thread_count(index, places, host.quota) for index in range(local_size)]


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def _four_allowed(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def test_unbound_ranks_may_use_all():
    assert sets("none", 3, TWO_NODES) == ["0-7"] * 3
    assert threads("none", 3, TWO_NODES) == [2, 2, 2]
    assert threads("none", 100, TWO_NODES) == [1] * 100


def test_numa_deals_ranks_to_nodes_in_blocks():
    assert sets("numa", 4, TWO_NODES) == ["0-1,4-5", "0-1,4-5", "2-3,6-7", "2-3,6-7"]
    assert sets("numa", 1, TWO_NODES) == ["0-1,4-5"]
    assert threads("numa", 3, TWO_NODES) == [2, 2, 4]


def test_core_gives_equal_shares_node_by_node():
    assert sets("core", 2, TWO_NODES) == ["0-1,4-5", "2-3,6-7"]
    assert sets("core", 3, TWO_NODES) == ["0-1", "2,4-5", "3,6-7"]
    assert threads("core", 8, TWO_NODES) == [1] * 8
    assert threads("core", 3, TWO_NODES) == [2, 3, 3]


@pytest.mark.parametrize(
    ("binding", "ranks", "servers", "of_ranks", "of_servers"),
    [
        ("none", 1, 1, ["0-7"], ["0-7"]),
        ("core", 2, 2, ["0-1", "4-5"], ["2-3", "6-7"]),
        ("core", 8, 1, ["0", "1", "4", "5", "2", "3", "6", "7"], ["0-7"]),
        ("core", 0, 2, [], ["0-1,4-5", "2-3,6-7"]),
        ("numa", 2, 3, ["0-1,4-5", "2-3,6-7"], ["2-3,6-7", "0-1,4-5", "2-3,6-7"]),
        ("numa", 0, 1, [], ["2-3,6-7"]),
    ],
)
def test_servers_keep_away_from_ranks_where_there_is_room(
    binding, ranks, servers, of_ranks, of_servers
):
    places, serving = bind_with_servers(binding, ranks, servers, TWO_NODES)

    assert [as_list(each) for each in places] == of_ranks
    assert [as_list(each) for each in serving] == of_servers


def test_core_needs_a_processor_for_each_rank():
    with pytest.raises(InvalidArgument, match=r"9 ranks have 8 \(0-7\).*--bind-to numa or none"):
        bind("core", 9, TWO_NODES)


def test_a_quota_limits_threads():
    assert threads("none", 2, HostProcessors(TWO_NODES.nodes, quota=3.0)) == [1, 1]
    assert threads("core", 2, HostProcessors(TWO_NODES.nodes, quota=6.0)) == [3, 3]
    assert threads("none", 2, HostProcessors(TWO_NODES.nodes, quota=0.5)) == [1, 1]


@pytest.mark.usefixtures("_four_allowed")
def test_nodes_and_cores_are_those_of_the_kernel(tmp_path):
    devices = "sys/devices/system"
    write(tmp_path, {f"{devices}/node/node{n}/cpulist": text
                     for n, text in enumerate(["1,3", "0,2,8-11", "12-15"])})  # fmt: skip
    # Processors 0 and 2 share a core of the second node with nobody; 3 comes before 1.
    for processor, core in enumerate([0, 9, 0, 4]):
        write(tmp_path, {f"{devices}/cpu/cpu{processor}/topology/core_id": f"{core}\n"})

    assert HostProcessors.here(str(tmp_path)) == HostProcessors(((3, 1), (0, 2)))


@pytest.mark.usefixtures("_four_allowed")
def test_without_a_word_of_the_kernel_there_is_one_node(tmp_path):
    assert HostProcessors.here(str(tmp_path)) == HostProcessors(((0, 1, 2, 3),))


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        (
            {
                "proc/self/cgroup": "0::/batch/job\n",
                "sys/fs/cgroup/batch/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/batch/job/cpu.max": "max 100000\n",
            },
            1.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpuset:/\n2:cpu,cpuacct:/docker/1234\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu:/\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            float("inf"),
        ),
    ],
)
def test_the_quota_is_that_of_the_control_group(tmp_path, files, quota):
    write(tmp_path, files)

    assert HostProcessors.here(str(tmp_path)).quota == quota


def test_ranks_run_where_they_are_bound(rabitrun):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one processor cannot be shared out")
    show = "grep Cpus_allowed_list /proc/self/status; echo threads $OMP_NUM_THREADS"

    bound = rabitrun("-np", 2, "--bind-to", "core", "sh", "-c", show)
    crowded = rabitrun("-np", len(allowed) + 1, "--bind-to", "core", "true")
    shown = rabitrun("-np", 2, "--bind-to", "core", "--dry-run", "true")

    halves = bind("core", 2, HostProcessors.here())
    for rank, half in enumerate(halves):
        assert f"[{rank}] Cpus_allowed_list:\t{as_list(half)}\n" in bound.out
        assert f"[{rank}] threads {len(half)}\n" in bound.out
        assert f"  on processors {as_list(half)}: RABIT_RANK={rank} " in shown.out
    assert crowded.status == 2
    assert "--bind-to core gives every rank a processor of its own" in crowded.err
