"""Hosts that a cluster gives: recorded variables of eight engines."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host
from rabit.launch.options.cluster_hosts import cluster_hosts, discovery_script
from rabit.rendezvous.environments import read_marks


@pytest.fixture
def file(tmp_path):
    def write(text, name="hosts"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[01-02]",
    "SLURM_TASKS_PER_NODE": "4(x2)",
}
WANTED = {Host("node01", 4), Host("node02", 4)}


def found(environ):
    hosts = cluster_hosts(environ)
    assert hosts is not None
    return set(hosts.hosts), hosts.source


def test_slurm():
    assert found(SLURM) == (WANTED, "Slurm (SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE)")
    by_processors = {**SLURM, "SLURM_TASKS_PER_NODE": "", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}
    assert found(by_processors)[0] == WANTED


@pytest.mark.parametrize(
    "name", ["OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE"]
)
def test_the_mpi_operator(file, name):
    assert found({name: file("node01 slots=4\nnode02 slots=4\n")})[0] == WANTED
    assert found({name: file("node01:4\nnode02:4\n")})[0] == WANTED


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_files_with_a_line_for_each_slot(file, name):
    assert found({name: file("node01\n" * 4 + "node02\n" * 4)})[0] == WANTED


def test_lsf_without_its_file():
    assert found({"LSB_MCPU_HOSTS": "node01 4 node02 4 "})[0] == WANTED


def test_grid_engine(file):
    text = "node01 4 all.q@node01 UNDEFINED\nnode02 4 all.q@node02 UNDEFINED\n"
    assert found({"PE_HOSTFILE": file(text)})[0] == WANTED


def test_skypilot():
    environ = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_NUM_GPUS_PER_NODE": "4"}
    assert found(environ)[0] == {Host("10.0.0.1", 4), Host("10.0.0.2", 4)}
    assert found({**environ, "SKYPILOT_NUM_GPUS_PER_NODE": "0"})[0] == {
        Host("10.0.0.1", 1),
        Host("10.0.0.2", 1),
    }


def test_without_a_cluster_there_is_nothing():
    assert cluster_hosts({"SLURM_JOB_ID": "7"}) is None


def test_two_that_agree_are_one(file):
    assert found({**SLURM, "PBS_NODEFILE": file("node01\n" * 4 + "node02\n" * 4)})[0] == WANTED


def test_two_that_disagree_are_an_error(file):
    with pytest.raises(
        InvalidArgument, match=r"two sources disagree .*Slurm .*PBS .*node03:1.*Give -H"
    ):
        cluster_hosts({**SLURM, "PBS_NODEFILE": file("node03\n")})


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        (
            {**SLURM, "SLURM_TASKS_PER_NODE": "4"},
            "names 2 hosts, and SLURM_TASKS_PER_NODE='4' has 1",
        ),
        ({"LSB_MCPU_HOSTS": "node01 4 node02"}, "expected 'host slots host slots'"),
        ({"PE_HOSTFILE": "/nowhere/file"}, "/nowhere/file .*cannot be read"),
    ],
)
def test_malformed_variables_are_refused(environ, text):
    with pytest.raises(InvalidArgument, match=text):
        cluster_hosts(environ)


def test_the_script_of_the_mpi_operator_is_for_the_launcher_alone(file):
    environ = {"OMPI_MCA_orte_default_hostfile": file("a slots=1\n"), "K_MPI_JOB_ROLE": "launcher"}
    assert discovery_script(environ) is None
    script = file("#!/bin/sh\necho a:1\n", "discover_hosts.sh")
    assert str(discovery_script(environ)) == script
    assert discovery_script({**environ, "K_MPI_JOB_ROLE": "worker"}) is None


def test_a_dry_run_shows_the_source():
    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "--dry-run", "python", "train.py"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SKYPILOT_NODE_IPS": "127.0.0.1", "SKYPILOT_NUM_GPUS_PER_NODE": "2"},
        check=True,
    )

    assert done.stdout.startswith("hosts from SkyPilot (SKYPILOT_NODE_IPS)\n2 ranks on 1 host")


RANKS = {
    "flux run": {"FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "8", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "2"},
    "mpiexec (PALS)": {
        "PALS_RANKID": "5", "PMI_RANK": "5", "PMI_SIZE": "8", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "4",
    },
    "jsrun": {
        "JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_SIZE": "8", "JSM_NAMESPACE_LOCAL_RANK": "1",
        "JSM_NAMESPACE_LOCAL_SIZE": "4",
    },
}  # fmt: skip


@pytest.mark.parametrize("launcher", RANKS)
def test_ranks_of(launcher):
    marks = read_marks(RANKS[launcher])

    assert marks is not None and marks.launcher == launcher
    assert marks[1:7] == (5, 8, 1, 4, 1, 2)


def test_flux_with_unequal_nodes_is_an_error():
    with pytest.raises(InvalidArgument, match="8 tasks on 3 nodes"):
        read_marks({**RANKS["flux run"], "FLUX_JOB_NNODES": "3"})


def test_a_pod_of_an_indexed_job_is_a_rank():
    marks = read_marks({"JOB_COMPLETION_INDEX": "2", "RABIT_SIZE": "4", "HOSTNAME": "train-2"})

    assert marks is not None
    assert marks == ("Kubernetes", 2, 4, 0, 1, 2, 4, "train", "")


@pytest.mark.parametrize("launcher", RANKS)
def test_a_size_set_by_hand_must_be_that_of_the_launcher(launcher):
    size = read_marks(RANKS[launcher]).size

    assert read_marks({**RANKS[launcher], "RABIT_SIZE": str(size)}) == read_marks(RANKS[launcher])
    with pytest.raises(
        InvalidArgument,
        match=f"RABIT_SIZE is '9', but {re.escape(launcher)} has started {size} ranks",
    ):
        read_marks({**RANKS[launcher], "RABIT_SIZE": "9"})


def test_in_a_pod_the_size_counts_pods_and_torchrun_may_start_more_ranks():
    environ = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}

    assert read_marks({**environ, "JOB_COMPLETION_INDEX": "2", "RABIT_SIZE": "4"}).size == 8
