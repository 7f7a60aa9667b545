"""Elastic jobs whose launcher dies: with --store-replicas they continue, and end without it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

# As that of test_elastic.py; at a step the ranks wait until the test has taken the launcher away.
TRAIN = """
import json, os, pathlib, signal, sys, time
import numpy as np
import rabit, rabit.elastic

folder, plan = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
me = int(os.environ["RABIT_RANK"])
(folder / f"pid.{me}").write_text(str(os.getpid()))
if me >= plan["size"]:
    (folder / "spare").touch()

rabit.init()
state = rabit.elastic.ObjectState(step=0, weights=np.zeros(100), sizes=[])

def wait_for(name):
    until = time.monotonic() + 60
    while not (folder / name).exists():
        assert time.monotonic() < until, name
        time.sleep(0.01)

@rabit.elastic.run
def train(state):
    while state.step < 12:
        if state.step == 4:
            (folder / f"ready.{me}").touch()
            wait_for("gone")
            print("rank", me, "continues")
        if [state.step, me] in plan["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if plan["stays"] == state.step:
            time.sleep(600)
        gradient = np.full(100, (rabit.rank() + 1) * (state.step + 1), np.float64)
        state.weights += rabit.allreduce(gradient, op=rabit.Sum, name="gradient")
        state.step += 1
        state.sizes.append(rabit.size())
        state.commit()

train(state)
(folder / f"{me}.json").write_text(json.dumps([float(state.weights[0]), state.sizes]))
print("rank", me, "is done")
"""
# A host that is lost is found to be so after a second; the rest is what processes take to end.


def expected(sizes) -> float:
    """What weights come to when each step has so many ranks: exact in float64."""
    steps = np.arange(1, len(sizes) + 1)
    ranks = np.array([size * (size + 1) // 2 for size in sizes])
    return float((steps * ranks).sum())


def wait_for(found, what):
    until = time.monotonic() + 120
    while not found():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def processes_of(job, module):
    """Of this job those that run `module`, the first started first."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and module in (entry / "cmdline").read_bytes().decode().split("\0")
                and job.mark.encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


STORE, AGENT = "rabit.launch.nodes.store_process", "rabit.launch.nodes.agent"


class Orphans:
    """A job whose launcher is killed when all ranks have come to the middle of their steps."""

    def __init__(self, start, folder, size, flags, plan, environ):
        self.folder = folder
        script = folder / "train.py"
        script.write_text(TRAIN)
        self.job = start(
            "-np", size, "--store-replicas", 3, *flags, sys.executable, script, folder,
            json.dumps({"size": size, "kill": [], "stays": -1, **plan}),
            environ=environ, cwd=folder,
        )  # fmt: skip
        wait_for(lambda: len(list(folder.glob("ready.*"))) == size, "the ranks come")

    def lose_launcher(self):
        self.stores = processes_of(self.job, STORE)
        self.job.send(signal.SIGKILL)
        self.job.wait()

    def lose_stores(self, which):
        for each in which:
            os.kill(self.stores[each], signal.SIGKILL)

    def go_on(self, stores_left=0):
        """stores_left: that end by themselves a minute after the agents, and here at once."""
        (self.folder / "gone").touch()
        if stores_left:
            wait_for(lambda: not processes_of(self.job, AGENT), "the agents end")
            assert len(processes_of(self.job, STORE)) == stores_left
            for each in processes_of(self.job, STORE):
                os.kill(each, signal.SIGKILL)
        self.job.assert_nothing_is_left()
        logs = sorted(self.folder.glob("rabitrun.*.log"))
        self.log = "".join(each.read_text() for each in logs)
        return {int(e.stem): json.loads(e.read_text()) for e in self.folder.glob("*.json")}


@pytest.fixture
def orphans(start, tmp_path):
    def run(size, *flags, environ=None, **plan):
        return Orphans(start, tmp_path, size, flags, plan, environ or {})

    return run


@pytest.mark.parametrize("lost_store", [None, 0, 2])
def test_the_ranks_go_on_without_the_launcher_and_a_store_and_lose_a_rank(orphans, lost_store):
    job = orphans(3, "--min-np", 1, kill=[[6, 1]])
    job.lose_launcher()
    if lost_store is not None:
        job.lose_stores([lost_store])
    results = job.go_on()

    sizes = [3] * 6 + [2] * 6
    assert results == {0: [expected(sizes), sizes], 2: [expected(sizes), sizes]}, job.log
    assert "rabitrun: the launcher is gone." in job.log
    assert "[2] rank 2 is done\n" in job.log
    assert "rabitrun: rank 1 was killed by SIGKILL (signal 9)\n" in job.log
    assert "rabitrun: rank 2 exited with status 0\n" in job.log
    assert job.log.count("rabitrun: the job has ended, as with status 0.\n") >= 1


def test_a_job_without_launcher_and_two_stores_ends_with_its_next_loss(orphans):
    job = orphans(3, "--min-np", 1, kill=[[6, 1]])
    job.lose_launcher()
    job.lose_stores([0, 1])
    results = job.go_on(stores_left=1)

    assert results == {}, job.log
    assert "no 2 of the 3 stores of the job have answered for key 'elastic'" in job.log
    assert "start it again" in job.log


def test_a_job_without_launcher_and_two_stores_ends_after_a_while(orphans):
    job = orphans(3, "--min-np", 1, stays=5)
    job.lose_launcher()
    job.lose_stores([1, 2])
    results = job.go_on(stores_left=1)

    assert results == {}, job.log
    assert "fewer than 2 stores have answered for 20 s: what is left of the job on this host ends." in job.log
    assert job.log.count("was killed by SIGTERM (signal 15)\n") == 3, job.log


@pytest.fixture
def ssh(tmp_path):
    """The variables with which rabitrun finds an ssh that comes to this machine under every name."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ssh"
    program.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nexec sh -c "$3"\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_hosts_go_on_when_that_of_the_launcher_is_lost_with_its_ranks(orphans, ssh):
    hosts = "127.0.0.1:1,127.0.0.2:1,127.0.0.3:1"
    job = orphans(3, "--min-np", 1, "-H", hosts, "--ssh-always", environ=ssh, kill=[[8, 2]])
    store, agent = processes_of(job.job, STORE)[0], processes_of(job.job, AGENT)[0]
    rank = int((job.folder / "pid.0").read_text())
    for each in (job.job.process.pid, store, agent, rank):
        os.kill(each, signal.SIGKILL)
    job.job.wait()
    results = job.go_on()

    (result, sizes), *others = results.values()
    assert (sorted(results), others) == ([1], []), job.log
    # Who has left the fourth step before rank 0 was found to be lost has taken it with three.
    assert sizes[4:] == [2] * 4 + [1] * 4
    assert result == expected(sizes)
    assert "[1] rank 1 is done\n" in job.log
    assert len(list(job.folder.glob("rabitrun.127.0.0.[23].*.log"))) == 2


def test_a_spare_that_waits_comes_in_without_the_launcher(orphans):
    job = orphans(2, "--min-np", 1, "--spares", 1, kill=[[6, 0]])
    wait_for(lambda: (job.folder / "spare").exists(), "the spare comes")
    wait_for(lambda: len(processes_of(job.job, AGENT)) == 2, "the agent of the spare")
    job.lose_launcher()
    results = job.go_on()

    (result, sizes), *others = results.values()
    assert result == expected(sizes)
    assert all(each == [result, sizes] for each in others)
    assert sizes[:6] == [2] * 6 and set(results) <= {1, 2}, job.log


def test_a_job_with_its_launcher_is_as_with_one_store(orphans):
    job = orphans(3, "--min-np", 1, kill=[[6, 1]])
    (job.folder / "gone").touch()

    assert job.job.wait() == 0, job.job.err
    assert "rank 1 was killed by SIGKILL (signal 9); the job continues with 2 of 3 ranks" in job.job.err
    assert "3 of the 3 stores are on localhost: the job survives the loss of this process" in job.job.err
    assert "rank 2 is done" in job.job.out
    job.job.assert_nothing_is_left()
    assert not list(job.folder.glob("*.log"))


def test_a_signal_to_the_launcher_ends_the_job(orphans):
    job = orphans(2, "--min-np", 1)
    job.job.send(signal.SIGTERM)

    assert job.job.wait() == 128 + signal.SIGTERM
    job.job.assert_nothing_is_left()
