"""The autotuner against simulated jobs: it finds what is good, and never ends with what is worse."""

from __future__ import annotations

import csv
import json
import math
import random

import pytest

from rabit import Config, InvalidArgument
from rabit._autotune import Plan, Tuner, Work, typical
from rabit._knobs import KNOBS, Space, describe, parse_knobs
from rabit._tuning_records import Cache, Log, cache_folder

START = {"partition_bytes": 4 << 20, "fusion_bytes": 64 << 20, "credit_bytes": 0, "lanes": 2}
MIB = 1 << 20


def steep(values):
    """Seconds of a step that likes 1 MiB partitions, much fusion and three lanes."""
    off = 0.06 * abs(math.log2(values["partition_bytes"] / MIB))
    off += 0.05 * abs(math.log2(values["fusion_bytes"] / (32 * MIB)))
    return 0.01 * (1.0 + off + 0.1 * abs(values["lanes"] - 3))


def flat(values):
    return 0.01


def start_is_best(values):
    return 0.01 if values == START else 0.013


class SimulatedJob:
    """A clock, and steps whose time depends on the knobs; noise as a share of the step."""

    def __init__(self, cost, noise=0.0, step_bytes=200 * MIB, model=77):
        self.cost, self.noise, self.step_bytes, self.model = cost, noise, step_bytes, model
        self.values = dict(START)
        self.time, self.steps = 100.0, 0
        self.proposals = []
        self.random = random.Random(5)

    def now(self):
        return self.time

    def propose(self, values):
        self.proposals.append(dict(values))
        self.values = dict(values)

    def work(self):
        total_hash = (1 << 64) - 3 + self.steps * self.model
        return Work(self.steps * self.step_bytes, total_hash, dict(self.values))

    def step(self):
        self.steps += 1
        factor = 1.0 + self.noise * self.random.gauss(0, 1)
        pause = 5.0 if self.random.random() < 0.02 else 0.0  # a checkpoint, an evaluation
        self.time += max(self.cost(self.values) * factor, 1e-4) + pause


def run(job, folder=None, log=None, steps=20_000, **plan):
    said = []
    plan = Plan(START, plan.pop("knobs", KNOBS), 4, "2 ranks", "builtin", window_s=0.0, **plan)
    tuner = Tuner(job, plan, Cache(folder), Log(log) if log else None, said.append)
    tuner.end_step()
    while not tuner.is_done and job.steps < steps:
        job.step()
        tuner.end_step()
    assert tuner.is_done
    return tuner, said


def test_it_finds_a_faster_combination_and_says_so_once():
    job = SimulatedJob(steep, noise=0.02)

    tuner, said = run(job)

    assert steep(job.values) < 0.8 * steep(START)
    assert tuner.report["phase"] == "done" and not tuner.report["is_start"]
    assert tuner.report["values"] == job.values
    assert len(said) == 1 and said[0].startswith("autotune chose partition ")
    assert " ms instead of " in said[0]
    assert job.steps < 600


@pytest.mark.parametrize("cost", [flat, start_is_best])
def test_where_nothing_is_faster_the_start_stays(cost):
    for noise in (0.0, 0.05):
        job = SimulatedJob(cost, noise)
        tuner, said = run(job)

        assert job.values == START or cost is flat
        assert cost(job.values) <= cost(START)
        if noise == 0.0:
            assert tuner.report["is_start"]
            assert said[0].startswith("autotune stays with partition 4M, fusion 64M, credit unlim")


def test_a_lucky_window_does_not_survive_the_guard():
    class Liar(SimulatedJob):
        """Everything looks fast once, when it is new."""

        def step(self):
            count = self.proposals.count(self.values)
            self.steps += 1
            self.time += 0.005 if self.values != START and count == 1 else 0.012 - 0.002 * (
                self.values == START
            )

    job = Liar(flat)
    tuner, _ = run(job)

    assert job.values == START and tuner.report["is_start"]


def test_bad_combinations_are_given_up_after_a_few_steps():
    def cliff(values):
        return 0.01 if values["partition_bytes"] >= MIB else 0.2

    job = SimulatedJob(cliff)
    steps = []
    original = job.step

    def step():
        steps.append(job.values["partition_bytes"] < MIB)
        original()

    job.step = step
    run(job, steps=5000)

    # Two to settle and three to see it, for each of the few that are tried.
    assert sum(steps) <= 5 * 10


def test_what_was_found_is_remembered_and_checked_again(tmp_path):
    first = SimulatedJob(steep)
    run(first, tmp_path)

    second = SimulatedJob(steep)
    _tuner, said = run(second, tmp_path)

    assert second.values == first.values
    assert second.steps < 150 < first.steps
    assert "as remembered" in said[0]
    third = SimulatedJob(start_is_best)
    run(third, tmp_path)
    assert third.values == START  # on this machine it is slower


def test_another_model_is_another_matter(tmp_path):
    run(SimulatedJob(steep), tmp_path)
    run(SimulatedJob(steep, model=78), tmp_path)

    assert len(list(tmp_path.glob("*.json"))) == 2


def test_what_the_engine_chose_by_itself_is_the_start(tmp_path):
    job = SimulatedJob(start_is_best)
    chosen = {**START, "partition_bytes": 700_000, "credit_bytes": 1_234_567}
    job.cost = lambda values: 0.01 if values == chosen else 0.02
    job.values = dict(chosen)

    tuner, said = run(job, tmp_path)

    assert job.values == chosen and tuner.report["is_start"]
    assert "stays with partition 700000" in said[0]
    other = SimulatedJob(flat)  # the next job chooses a little else, and that is kept as well
    other.values = {**chosen, "partition_bytes": 700_100}
    _, said = run(other, tmp_path)
    assert not other.proposals and "as remembered" in said[0]


def test_off_is_remembered_as_well(tmp_path):
    run(SimulatedJob(start_is_best), tmp_path)
    job = SimulatedJob(start_is_best)

    _, said = run(job, tmp_path)

    assert not job.proposals and job.steps < 60
    assert "stays with" in said[0] and "as remembered" in said[0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: "not json",
        lambda document: json.dumps({**document, "format": 99}),
        lambda document: json.dumps({**document, "values": {**document["values"], "lanes": -1}}),
        lambda document: json.dumps({**document, "values": {"lanes": 1}}),
        lambda document: json.dumps({**document, "key": {}}),
    ],
)
def test_a_damaged_memory_is_no_memory(tmp_path, damage):
    run(SimulatedJob(steep), tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text(damage(json.loads(path.read_text())))

    job = SimulatedJob(steep)
    _tuner, said = run(job, tmp_path)

    assert "as remembered" not in said[0] and steep(job.values) < steep(START)


def test_a_folder_that_cannot_be_written_costs_the_memory_only(tmp_path):
    (tmp_path / "file").write_text("")
    _, said = run(SimulatedJob(steep), tmp_path / "file" / "below")
    assert "remembered in" not in said[0]


def test_the_log_holds_every_window_and_warms_the_next_job(tmp_path):
    log = tmp_path / "log.csv"
    first = SimulatedJob(steep)
    run(first, log=log)
    rows = list(csv.DictReader(log.open()))

    assert [each["phase"] for each in rows][-1] == "chosen"
    explored = [each for each in rows if each["phase"] == "explore"]
    assert 5 <= len(explored) <= 20
    for each in explored:
        values = {name: int(each[name]) for name in KNOBS}
        assert float(each["step_ms"]) == pytest.approx(1e3 * steep(values), rel=1e-3)
        assert int(each["bytes_per_step"]) == 200 * MIB

    # Without its end, as of a job that was killed, the rows are replayed and not measured again.
    kept = [line for line in log.read_text().splitlines() if ",chosen," not in line]
    log.write_text("\n".join(line for line in kept if ",guard," not in line) + "\n")
    second = SimulatedJob(steep)
    tuner, _ = run(second, log=log)
    assert second.steps < first.steps / 2
    assert steep(second.values) <= 1.02 * steep(first.values)
    assert tuner.plan.samples == 20


def test_a_file_that_is_no_log_is_left_alone(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgument, match="is not a log of the autotuner"):
        Log(path)
    assert path.read_text() == "a,b\n1,2\n"
    with pytest.raises(InvalidArgument, match="cannot be written"):
        Log(tmp_path / "missing" / "log.csv")
    Log(tmp_path / "new.csv")
    with (tmp_path / "new.csv").open("a") as file:
        file.write("1.0,explore,k,x,1,1,1,10,5.0,1,1.0\n")
    with pytest.raises(InvalidArgument, match="line 2 of"):
        Log(tmp_path / "new.csv")


def test_knobs_that_are_not_named_stay():
    job = SimulatedJob(steep)
    run(job, knobs=("lanes",))
    assert {**job.values, "lanes": 2} == START and job.values["lanes"] == 3


def test_small_steps_leave_few_choices():
    space = Space.around(START, KNOBS, 3 * MIB, 4)

    assert space.choices[space.names.index("partition_bytes")] == (
        262144, 524288, MIB, 2 * MIB, 4 * MIB,
    )  # fmt: skip
    assert space.choices[space.names.index("credit_bytes")] == (MIB, 2 * MIB, 0)
    assert space.values(space.point(START)) == START
    for point in space.candidates():
        assert (space.point(space.values(point)) == point).all()
    assert Space.around(START, KNOBS, 1000, 1).names == ()
    assert Space.around(START, (), 1 << 30, 4).names == ()
    assert space.point({**START, "lanes": 9}) is None


def test_a_pause_and_two_optimizers_do_not_mislead():
    assert typical([1.0, 1.0, 1.0, 90.0]) == 1.0
    assert typical([1.0, 3.0] * 6) == 2.0


def test_the_settings():
    assert describe(START) == "partition 4M, fusion 64M, credit unlimited, lanes 2"
    assert parse_knobs(" lanes, credit_bytes ") == ("lanes", "credit_bytes")
    with pytest.raises(InvalidArgument, match="names 'lane', which cannot be tuned"):
        parse_knobs("lane")
    found = Config.from_environ(
        {
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_LOG": "a.csv",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "2",
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "7",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "9",
            "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.8",
        }
    )
    assert found.autotune and found.autotune_log == "a.csv"
    assert found.autotune_warmup_samples == 2
    assert (found.autotune_steps_per_sample, found.autotune_samples) == (7, 9)
    assert "HOROVOD_AUTOTUNE as RABIT_AUTOTUNE" in found.notices[0]
    assert "GAUSSIAN_PROCESS_NOISE (the noise is estimated" in found.notices[0]


def test_where_results_are_kept():
    assert cache_folder("off", {"HOME": "/h"}) is None
    assert str(cache_folder("/x", {})) == "/x"
    assert str(cache_folder("", {"HOME": "/h"})) == "/h/.cache/rabit/autotune"
    assert str(cache_folder("", {"HOME": "/h", "XDG_CACHE_HOME": "/c"})) == "/c/rabit/autotune"
    assert cache_folder("", {}) is None
