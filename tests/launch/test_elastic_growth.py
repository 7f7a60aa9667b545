"""Elastic jobs of real processes that get ranks: spares and new processes for lost ones, and new hosts."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

# Each rank adds what its rank and the step say; the sum tells which ranks took part in which step.
# A rank waits at a step for so many ranks as the plan says, and commits meanwhile: so hosts are updated.
TRAIN = """
import json, os, pathlib, signal, sys, time
import numpy as np
import rabit, rabit.elastic

folder, plan, steps = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
me = int(os.environ["RABIT_RANK"])
names = ("RABIT_LOCAL_RANK", "LOCAL_RANK", "RABIT_LOCAL_SIZE", "LOCAL_WORLD_SIZE")
(folder / f"{me}.local").write_text(" ".join(os.environ[name] for name in names))

def reached():
    return (folder / "reached").read_text() if "reached" in plan and state.step == 8 else plan.get("reached", "")

def wait_for(size, state):
    if "hosts" in plan and rabit.rank() == 0 and str(state.step) in plan["hosts"]:
        hosts = folder / "hosts"
        (folder / "hosts.new").write_text(plan["hosts"].pop(str(state.step)))
        (folder / "hosts.new").rename(hosts)
    until = time.monotonic() + 60
    while rabit.size() != size or plan.get("reached", "") not in reached():
        assert time.monotonic() < until, f"step {state.step} has {rabit.size()} ranks, not {size}"
        state.commit()
        time.sleep(0.01)

rabit.init()
state = rabit.elastic.ObjectState(step=0, weights=np.zeros(1000), sizes=[], killed=[])
resets = []
state.register_reset_callbacks([lambda: resets.append(rabit.size())])

@rabit.elastic.run
def train(state):
    while state.step < steps:
        if str(state.step) in plan.get("sizes", {}):
            wait_for(plan["sizes"][str(state.step)], state)
        if [state.step, me] in plan.get("kill", []):
            os.kill(os.getpid(), signal.SIGKILL)
        if [state.step, me] in plan.get("cut", []):  # its agent, and so the connection to its host
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        gradient = np.full(1000, (rabit.rank() + 1) * (state.step + 1), np.float64)
        state.weights += rabit.allreduce(gradient, op=rabit.Sum, name="gradient")
        state.step += 1
        state.sizes.append(rabit.size())
        state.commit()
    return float(state.weights[0])

result = train(state)
assert (state.weights == state.weights[0]).all()
place = [rabit.rank(), rabit.size(), rabit.local_rank(), rabit.local_size()]
(folder / f"{me}.json").write_text(json.dumps([result, state.sizes, place, resets]))
"""
STEPS = 12


@pytest.fixture
def train(start, tmp_path):
    """train(flags, plan): the Job, ended; its ranks have written what they have come to."""

    def run(*flags, environ=None, **plan):
        script = tmp_path / "train.py"
        script.write_text(TRAIN)
        job = start(
            *flags, sys.executable, script, tmp_path, json.dumps(plan), STEPS, environ=environ or {}
        )
        job.status = job.wait()
        job.results = {
            int(each.stem): json.loads(each.read_text()) for each in tmp_path.glob("*.json")
        }
        return job

    return run


def assert_went_on(job, members, sizes):
    """The members have come to the sum of these ranks in each step."""
    assert job.status == 0, job.out + job.err
    assert sorted(job.results) == sorted(members), job.err
    steps = np.arange(1, len(sizes) + 1)
    ranks = np.array([size * (size + 1) // 2 for size in sizes])
    for result, seen, _, _ in job.results.values():
        assert (result, seen) == (float((steps * ranks).sum()), sizes), job.err
    places = sorted(job.results[member][2][:2] for member in members)
    assert places == [[rank, len(members)] for rank in range(len(members))]
    job.assert_nothing_is_left()


@pytest.mark.parametrize("victim", range(2))
def test_a_spare_takes_the_place_of_a_lost_rank(train, victim):
    job = train("-np", 2, "--min-np", 2, "--spares", 1, kill=[[6, victim]], sizes={"5": 2})

    # The spare may be the one that was started at first, or one that came as late as the loss.
    newcomer = max(job.results)
    assert_went_on(job, [1 - victim, newcomer], [2] * STEPS)
    assert newcomer >= 2
    assert f"process {newcomer} on localhost has joined; the job continues with 2 ranks." in job.err


def test_a_lost_rank_is_replaced_by_a_new_process(train):
    job = train("-np", 3, "--min-np", 2, "--max-np", 3, kill=[[4, 1]], sizes={"8": 3})

    assert job.status == 0, job.err
    assert_went_on(job, [0, 2, 3], job.results[0][1])
    # The others may do the last step before the loss again, if they learn of the loss in it.
    assert job.results[0][1][:3] == [3] * 3 and job.results[0][1][8:] == [3] * 4


def test_a_replacement_finds_the_device_of_the_lost_rank_by_its_environment(train, tmp_path):
    train("-np", 3, "--min-np", 2, "--max-np", 3, kill=[[4, 1]], sizes={"8": 3})

    assert [(tmp_path / f"{member}.local").read_text() for member in (1, 2, 3)] == ["1 1 3 3", "2 2 3 3", "1 1 3 3"]


def test_a_job_grows_into_free_slots(train, tmp_path):
    job = train("-np", 1, "--min-np", 1, "--max-np", 3, "-H", "localhost:8", sizes={"3": 3})

    assert_went_on(job, [0, 1, 2], [*job.results[0][1][:3], *[3] * 9])
    assert [(tmp_path / f"{member}.local").read_text()[:3] for member in range(3)] == ["0 0", "1 1", "2 2"]


def test_a_job_follows_the_host_file(train, tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    job = train(
        *("-np", 2, "--min-np", 1, "--max-np", 4, "--hostfile", tmp_path / "hosts"),
        *("--host-discovery-interval", "20ms"),
        hosts={"3": "localhost slots=2\n127.0.0.2 slots=2\n", "7": "127.0.0.2 slots=2\n"},
        sizes={"3": 4, "7": 2},
    )

    assert_went_on(job, [2, 3], [2] * 3 + [4] * 4 + [2] * 5)
    assert "the hosts are localhost:2, 127.0.0.2:2 from now on: 2 ranks at most before, 4 now." in job.err
    assert "ranks 0, 1 will leave at a commit" in job.err


def test_a_host_that_has_fewer_slots_for_a_while_is_not_set_aside(train, tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    job = train(
        *("-np", 4, "--min-np", 1, "--max-np", 4, "--hostfile", tmp_path / "hosts"),
        *("--host-discovery-interval", "20ms", "--blacklist-cooldown-range", 90, 99),
        hosts={"3": "localhost slots=1\n", "6": "localhost slots=2\n"},
        sizes={"3": 1, "6": 2},
    )

    assert_went_on(job, [0, 4], [4] * 3 + [1] * 3 + [2] * 6)
    assert "ranks 1, 2, 3 will leave at a commit" in job.err and "set aside" not in job.err


def test_a_host_that_does_not_reach_the_store_is_left_out_with_the_reason(train, tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    job = train(
        *("-np", 1, "--min-np", 1, "--max-np", 4, "--hostfile", tmp_path / "hosts"),
        *("--host-discovery-interval", "20ms"),
        hosts={"3": "localhost slots=2\nelsewhere.invalid slots=2\n"},
        sizes={"3": 2},
    )

    assert_went_on(job, [0, 1], [1] * 3 + [2] * 9)
    assert (
        "elsewhere.invalid: no process is started there, since the store of this job listens on 127.0.0.1, "
        "where other machines do not reach it. List such a host from the start" in job.err
    )


@pytest.fixture
def ssh(tmp_path):
    """The variables with which rabitrun finds an ssh that comes to this machine under every name but one."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ssh"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\n'
        f'echo "$2" >> {tmp_path}/reached\n'
        'if [ "$2" = 127.0.0.9 ]; then\n'
        '  echo "ssh: connect to host 127.0.0.9 port 22: Connection refused" >&2; exit 255\n'
        'fi\nexec sh -c "$3"\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_hosts_that_come_while_the_job_runs_are_reached_by_ssh(train, tmp_path, ssh):
    """Also when the connection to one of them breaks, and when one cannot be reached."""
    (tmp_path / "hosts").write_text("127.0.0.1 slots=1\n")
    job = train(
        *("-np", 1, "--min-np", 1, "--max-np", 3, "--hostfile", tmp_path / "hosts", "--ssh-always"),
        *("--host-discovery-interval", "20ms"),
        hosts={
            "2": "127.0.0.1 slots=1\n127.0.0.2 slots=1\n127.0.0.3 slots=1\n",
            "6": "127.0.0.1 slots=1\n127.0.0.2 slots=1\n127.0.0.9 slots=1\n",
        },
        sizes={"2": 3, "5": 3, "6": 2, "8": 2},
        cut=[[4, 2]],
        reached="127.0.0.9",
        environ=ssh,
    )

    sizes = job.results[0][1] if job.results else []
    assert [*sizes[:4], *sizes[5:]] == [1, 1, 3, 3, 3, *[2] * 6], job.err
    assert_went_on(job, [0, 1], sizes)
    reached = (tmp_path / "reached").read_text().split()
    # The second and the third are reached at once, in any order.
    assert reached[0] == "127.0.0.1" and sorted(reached[1:3]) == ["127.0.0.2", "127.0.0.3"]
    assert "127.0.0.9" in reached
    assert "the connection to 127.0.0.3 is lost (ssh ended with status -9" in job.err
    assert "the ranks on 127.0.0.9 cannot be started: no sshd listens there. Start it" in job.err


def test_a_job_follows_a_discovery_script(train, tmp_path):
    (tmp_path / "hosts").write_text("localhost\n")
    script = tmp_path / "discover.sh"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/hosts\n")
    script.chmod(0o755)
    job = train(
        *("-np", 2, "--min-np", 1, "--host-discovery-script", script, "--slots-per-host", 2),
        *("--host-discovery-interval", "20ms"),
        hosts={"4": "localhost:3\n"},
        sizes={"4": 3},
    )

    assert_went_on(job, [0, 1, 2], [2] * 4 + [3] * 8)


def test_what_is_no_host_leaves_the_job_as_it_is(train, tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    job = train(
        *("-np", 2, "--min-np", 1, "--max-np", 4, "--hostfile", tmp_path / "hosts"),
        *("--host-discovery-interval", "5ms"),
        hosts={"2": "local/host\n", "5": "localhost slots=3\n"},
        sizes={"2": 2, "5": 3},
    )

    assert_went_on(job, [0, 1, 2], [2] * 5 + [3] * 7)


def test_a_host_where_processes_fail_again_and_again_is_set_aside(start, tmp_path):
    script = """
import os, pathlib, sys, rabit, rabit.elastic
assert os.environ["RABIT_RANK"] in "01", "no newcomer works here"

@rabit.elastic.run
def train(state):
    if rabit.rank() == 0:
        pathlib.Path(sys.argv[1]).read_text()  # a pipe: until the test has seen what it waits for
    rabit.barrier()
    print("size", rabit.size())

rabit.init()
train(rabit.elastic.ObjectState())
"""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    flags = ["-np", 2, "--min-np", 1, "--max-np", 3, "-H", "localhost:4"]
    job = start(*flags, "--blacklist-cooldown-range", 90, 99, sys.executable, "-c", script, pipe)

    lines = []
    while not any("is set aside" in each for each in lines):
        lines.append(job.process.stderr.readline().decode())
        assert lines[-1], lines
    pipe.write_text("")

    assert job.wait() == 0, job.err
    assert job.out.count("size 2") == 2
    failures = [each for each in lines if "before it joined; the job continues with 2 of 2 ranks" in each]
    assert len(failures) == 2  # the third one comes with the reason why there is no fourth
    assert (
        "the host localhost is set aside for 90 s: processes there fail again and again, process 4 just now "
        "(exited with status 1)." in lines[-1]
    )
    job.assert_nothing_is_left()


def test_spares_need_a_job_that_goes_on(rabitrun):
    job = rabitrun("-np", 2, "--spares", 1, "true")

    assert job.status == 2
    assert "--spares is 1: only elastic jobs continue when a rank is lost. Add --min-np N" in job.err


@pytest.mark.parametrize(("flags", "count"), [([], 1), (["--min-np", 2], 0)], ids=["fixed", "elastic"])
def test_a_bound_that_changes_nothing_is_told(rabitrun, flags, count):
    job = rabitrun("-np", 2, "--max-np", 3, *flags, "--dry-run", "true")

    assert job.status == 0, job.err
    assert job.err.count("--max-np is 3, and the job keeps its 2 ranks: it grows with --min-np N.") == count


def test_a_growing_job_takes_no_process_sets_at_its_start(rabitrun):
    script = "import rabit; rabit.init(process_sets=[rabit.ProcessSet([0])])"

    job = rabitrun("-np", 2, "--min-np", 1, "--max-np", 2, sys.executable, "-c", script)

    assert job.status == 1
    assert "process_sets on rank" in job.err and "Add sets in a reset callback" in job.err
