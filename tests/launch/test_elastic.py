"""Elastic jobs of real processes: some are lost, the others continue from the last commit."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from support.late_ranks import without_waits

# Each rank adds what its rank and the step say; the sum tells which ranks took part in which step.
TRAIN = """
import json, os, pathlib, signal, sys, time
import numpy as np
import rabit, rabit.elastic

folder, plan, steps = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
me = int(os.environ["RABIT_RANK"])

def event(step):
    for kind, at, member in plan:
        if (at, member) != (step, me):
            continue
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "update" and not resets:
            raise rabit.elastic.HostsUpdatedInterrupt("a program's own")
        if kind == "exit":
            sys.exit(0)
        if kind == "raise":
            raise ValueError("no such sample")
        if kind == "stop":
            (folder / "stopped").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)

rabit.init()
sampler = rabit.elastic.ElasticSampler(range(6000))
state = rabit.elastic.ObjectState(step=0, weights=np.zeros(1000), sizes=[], sampler=sampler)
resets = []
start_over = rabit.elastic.recovery.start_over

def agreed(membership):
    event("agreed")
    start_over(membership)

rabit.elastic.recovery.start_over = agreed
state.register_reset_callbacks([lambda: (resets.append(rabit.size()), event(-len(resets)))])

@rabit.elastic.run
def train(state):
    while state.step < steps:
        event(state.step)
        gradient = np.full(1000, (rabit.rank() + 1) * (state.step + 1), np.float64)
        state.weights += rabit.allreduce(gradient, op=rabit.Sum, name="gradient")
        state.step += 1
        state.sizes.append(rabit.size())
        sampler.record_batch(0, 1)
        state.commit()
        wakes(state.step)
    return float(state.weights[0])

def wakes(step):
    # After the others have gone on for a while, so that it finds an epoch that is over.
    stopped = folder / "stopped"
    if rabit.rank() or step != steps - 2 or not stopped.exists():
        return
    os.kill(int(stopped.read_text()), signal.SIGCONT)
    until = time.monotonic() + 30
    while not (folder / "told").exists():
        assert time.monotonic() < until, "the stopped rank is not told"
        time.sleep(0.01)

try:
    result = train(state)
except rabit.Aborted as error:
    (folder / "told").write_text(str(error))
    raise
assert (state.weights == state.weights[0]).all()
place = [rabit.rank(), rabit.size(), rabit.local_rank(), rabit.local_size()]
(folder / f"{me}.json").write_text(json.dumps([result, state.sizes, place, resets]))
"""
STEPS = 12


@pytest.fixture
def train(start, tmp_path):
    """train(size, least, plan): the Job, ended; its ranks have written what they have come to."""

    def run(size, least, *plan, flags=(), environ=None):
        script = tmp_path / "train.py"
        script.write_text(TRAIN)
        bounds = ["--min-np", least] if least else []
        job = start(
            "-np", size, *bounds, *flags, sys.executable, script, tmp_path, json.dumps(plan), STEPS,
            environ=environ or {},
        )  # fmt: skip
        job.status = job.wait()
        job.results = {
            int(each.stem): json.loads(each.read_text()) for each in tmp_path.glob("*.json")
        }
        return job

    return run


def expected(sizes) -> float:
    """What weights come to when each step has so many ranks: exact in float64."""
    steps = np.arange(1, len(sizes) + 1)
    ranks = np.array([size * (size + 1) // 2 for size in sizes])
    return float((steps * ranks).sum())


def assert_went_on(job, members, sizes):
    assert job.status == 0, job.out + job.err
    assert sorted(job.results) == members
    for rank, member in enumerate(members):
        result, seen, place, _ = job.results[member]
        assert (result, seen) == (expected(sizes), sizes)
        assert place == [rank, len(members)] * 2


@pytest.mark.parametrize("member", range(3))
def test_the_others_go_on_when_one_is_killed(train, member):
    job = train(3, 2, ("kill", 4, member))

    assert_went_on(job, [each for each in range(3) if each != member], [3] * 4 + [2] * 8)
    assert (
        f"rank {member} was killed by SIGKILL (signal 9); the job continues with 2 of 3 ranks "
        "(--min-np 2)." in job.err
    )
    job.assert_nothing_is_left()


def test_the_others_go_on_when_one_raises(train):
    job = train(3, 1, ("raise", 2, 1))

    assert_went_on(job, [0, 2], [3] * 2 + [2] * 10)
    assert "rank 1 raised ValueError: no such sample; the job continues" in job.err


def test_ranks_are_lost_one_after_the_other_until_one_is_left(train):
    job = train(4, 1, ("kill", 3, 0), ("kill", 5, 3), ("kill", 8, 1))

    assert_went_on(job, [2], [4] * 3 + [3] * 2 + [2] * 3 + [1] * 4)


def test_two_are_killed_in_one_step(train):
    job = train(4, 2, ("kill", 6, 1), ("kill", 6, 2))

    assert job.status == 0, job.out + job.err
    assert sorted(job.results) == [0, 3]
    for result, sizes, _, _ in job.results.values():
        # Between the two losses the others may have come together, but no step.
        assert (result, sizes) == (expected(sizes), [4] * 6 + [2] * 6)


def test_one_is_killed_while_the_others_recover(train):
    job = train(4, 2, ("kill", 6, 1), ("kill", -1, 3))

    assert_went_on(job, [0, 2], [4] * 6 + [2] * 6)
    assert job.results[0][3] == [3, 2]


def test_one_is_killed_before_the_others_meet_it_again(train):
    job = train(4, 2, ("kill", 6, 1), ("kill", "agreed", 3), environ={"RABIT_CONNECT_TIMEOUT": "600s"})

    assert_went_on(job, [0, 2], [4] * 6 + [2] * 6)
    assert job.results[0][3] == [2]


def test_reset_callbacks_see_the_new_ranks(train):
    job = train(3, 1, ("kill", 1, 0), ("kill", 9, 1))

    assert_went_on(job, [2], [3] + [2] * 8 + [1] * 3)
    assert job.results[2][3] == [2, 1]


def test_a_rank_that_was_stopped_for_too_long_is_fenced_and_told(train, tmp_path):
    environ = {"RABIT_HEARTBEAT_TIMEOUT": "1s"}

    job = train(3, 2, ("stop", 4, 1), environ=environ)

    assert_went_on(job, [0, 2], [3] * 4 + [2] * 8)
    told = (tmp_path / "told").read_text()
    assert told.startswith("process 1 was given up by the others, which have gone on to epoch 2")
    assert "with 2 ranks" in told and "send nor commit" in told
    assert "the others continue without rank 1 (PeerLost: " in job.err
    assert "it has been silent for" in job.err and "the job continues with 2 of 3 ranks (--min-np 2)" in job.err


def test_a_rank_that_ends_well_before_the_others_is_told(train):
    job = train(3, 2, ("exit", 4, 1))

    assert_went_on(job, [0, 2], [3] * 4 + [2] * 8)
    (line,) = (line for line in job.err.splitlines() if "the others continue without rank 1 (" in line)
    assert "the job continues with 2 of 3 ranks" in line


def test_a_rank_that_never_wakes_does_not_hold_up_the_end(train):
    job = train(3, 2, ("freeze", 4, 0), environ={"RABIT_HEARTBEAT_TIMEOUT": "1s"})

    assert_went_on(job, [1, 2], [3] * 4 + [2] * 8)
    job.assert_nothing_is_left()


@pytest.mark.parametrize("members", [(1,), (0, 1, 2)], ids=["one", "all"])
def test_ranks_come_together_anew_where_a_program_asks_for_it(train, members):
    plan = [("update", 4, each) for each in members]

    job = train(3, 1, *plan, flags=("--elastic-timeout", "5s"))

    assert_went_on(job, [0, 1, 2], [3] * 12)
    assert [resets for *_, resets in job.results.values()] == [[3]] * 3


def test_below_the_least_the_job_ends_with_the_first_cause(train):
    job = train(3, 3, ("kill", 2, 1))

    assert job.status == 137
    assert "rank 1 of 3" in job.err and "was killed by SIGKILL (signal 9)" in job.err
    assert "continues with 2" not in job.err  # survivors may say with how many it would
    job.assert_nothing_is_left()


def test_too_many_losses_end_the_job_with_a_cause(train):
    job = train(4, 3, ("raise", 2, 1), ("raise", 5, 2))

    assert job.status == 1
    assert "rank 1 raised ValueError: no such sample; the job continues with 3 of 4" in job.err
    assert "of 4 (host localhost) raised ValueError: no such sample" in job.err


def test_a_job_that_is_not_elastic_ends_as_ever(train):
    job = train(3, 0, ("kill", 2, 1))

    assert job.status == 137
    assert "rank 1 of 3" in job.err and "continues" not in job.err


def test_a_job_without_losses_is_as_any_other(train):
    job = train(2, 1)

    assert_went_on(job, [0, 1], [2] * STEPS)
    assert without_waits(job.err) == ""


def test_a_program_that_does_not_use_elastic_ends_with_the_first_cause(rabitrun):
    script = (
        "import os, signal, rabit; rabit.init(); "
        "rabit.rank() == 1 and os.kill(os.getpid(), signal.SIGKILL); "
        "rabit.allreduce([1.0], name='x')"
    )

    job = rabitrun("-np", 3, "--min-np", 2, sys.executable, "-c", script)

    assert job.status == 137
    assert "rank 1 of 3" in job.err and "was killed by SIGKILL" in job.err


def test_init_comes_once_in_an_elastic_job(rabitrun):
    script = "import rabit; rabit.init(); rabit.shutdown(); rabit.init()"

    job = rabitrun("-np", 2, "--min-np", 1, sys.executable, "-c", script)

    assert job.status == 1
    assert "rabit.init() is called again on rank" in job.err


@pytest.mark.parametrize("flags", [(), ("--min-np", 1)], ids=["plain", "elastic"])
def test_ranks_that_did_not_meet_in_init_may_call_it_again(start, tmp_path, flags):
    script = """
import os, pathlib, sys, time
import rabit

late, me = pathlib.Path(sys.argv[1], "late"), os.environ["RABIT_RANK"]
while me == "1" and not late.exists():
    time.sleep(0.01)
while not rabit.is_initialized():
    try:
        rabit.init()
    except rabit.TimedOut:
        late.touch()
pathlib.Path(sys.argv[1], me).write_text(str(rabit.allreduce(1.0, op=rabit.Sum)))
"""
    job = start("-np", 2, *flags, sys.executable, "-c", script, tmp_path, environ={"RABIT_CONNECT_TIMEOUT": "2s"})

    assert job.wait() == 0, job.err
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2.0", "2.0"]


def test_a_loss_in_the_block_that_a_break_ends_leaves_the_ranks_together(start, tmp_path):
    script = """
import os, pathlib, signal, sys
import rabit, rabit.elastic

me = int(os.environ["RABIT_RANK"])
rabit.init()
sampler = rabit.elastic.ElasticSampler(range(60))
state = rabit.elastic.ObjectState(sampler=sampler, step=0, own=0, per_rank=["own"])  # whose commits take all ranks
for batch in rabit.elastic.batches(sampler, state, batch_size=2, commit_every=1):
    with batch as rows:
        state.step += 1
        if (me, state.step) == (1, 4):
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step == 4:
            break
found = [state.step, rabit.size(), float(rabit.allreduce(1.0, op=rabit.Sum))]
pathlib.Path(sys.argv[1], str(me)).write_text(str(found))
"""
    job = start("-np", 3, "--min-np", 1, sys.executable, "-c", script, tmp_path)

    assert job.wait() == 0, job.err
    assert [(tmp_path / rank).read_text() for rank in "02"] == ["[4, 2, 2.0]"] * 2


def test_a_request_to_stop_outlives_a_loss(rabitrun):
    script = """
import os, signal, rabit, rabit.elastic

@rabit.elastic.run
def train(state):
    if rabit.size() == 3:
        if rabit.rank() == 0:
            rabit.request_stop()
        if rabit.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    rabit.allreduce([1.0], name="x")
    print("stops:", rabit.should_stop(), flush=True)

rabit.init()
train(rabit.elastic.ObjectState())
"""

    job = rabitrun("-np", 3, "--min-np", 2, sys.executable, "-c", script)

    assert job.status == 0, job.err
    assert job.out.count("stops: True") == 2, job.out


def test_what_a_step_has_begun_is_undone(start, tmp_path):
    """The others have changed their state already when they find that one is lost."""
    script = """
import os, pathlib, signal, sys
import rabit, rabit.elastic

rabit.init()
state = rabit.elastic.ObjectState(step=0, begun=0)

@rabit.elastic.run
def train(state):
    while state.step < 6:
        state.begun += 1
        if (state.step, rabit.rank(), rabit.size()) == (3, 1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        rabit.barrier()
        state.step += 1
        state.commit()

train(state)
pathlib.Path(sys.argv[1], str(rabit.rank())).write_text(str(state.begun))
"""
    job = start("-np", 3, "--min-np", 2, sys.executable, "-c", script, tmp_path)

    assert job.wait() == 0, job.err
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["6", "6"]


@pytest.mark.parametrize(
    ("commit_every", "sizes"),
    [(1, [8] * 3 + [6] * 4 + [4] * 3 + [4] * 15), (3, [8] * 3 + [6] * 3 + [4] * 4 + [2] + [4] * 15)],
    ids=str,
)
def test_batches_deal_every_sample_once_though_ranks_are_lost(start, tmp_path, commit_every, sizes):
    script = """
import json, os, pathlib, signal, sys
import rabit, rabit.elastic

me = int(os.environ["RABIT_RANK"])
rabit.init()
sampler = rabit.elastic.ElasticSampler(range(60), seed=7)
state = rabit.elastic.ObjectState(sampler=sampler, seen=[])
every = int(sys.argv[2])
for batch in rabit.elastic.batches(sampler, state, batch_size=2, epochs=2, commit_every=every):
    with batch as rows:
        if (len(state.seen), me) in [(3, 1), (7, 0)]:
            os.kill(os.getpid(), signal.SIGKILL)
        state.seen.append(sorted(rabit.allgather(rows, name="rows").tolist()))
pathlib.Path(sys.argv[1], f"{me}.json").write_text(json.dumps(state.seen))
"""
    job = start("-np", 4, "--min-np", 2, sys.executable, "-c", script, tmp_path, commit_every)

    assert job.wait() == 0, job.err
    seen = json.loads((tmp_path / "2.json").read_text())
    assert seen == json.loads((tmp_path / "3.json").read_text())
    assert [len(rows) for rows in seen] == sizes
    for epoch in (seen[:-15], seen[-15:]):
        assert sorted(row for rows in epoch for row in rows) == list(range(60))
