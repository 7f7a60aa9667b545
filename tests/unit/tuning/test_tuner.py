"""The autotuner against simulated jobs: it finds what is good, and never ends with what is worse."""

from __future__ import annotations

import csv
import json
import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from rabit import Config, InvalidArgument
from rabit.tuning.knobs import KNOBS, OVERLAPS, describe, parse_knobs
from rabit.tuning.records import Cache, Key, Log, cache_folder
from rabit.tuning.space import Space
from rabit.tuning.tuner import Plan, Tuner, Work, typical

START = {"partition_bytes": 4 << 20, "fusion_bytes": 64 << 20, "credit_bytes": 0, "lanes": 2}
START |= {"overlap": ""}
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
    """A clock, and steps whose time depends on the knobs; noise as a share of the step.

    off: what is in force without proposals.
    """

    def __init__(self, cost, noise=0.0, step_bytes=200 * MIB, model=77, off=START, overlaps=()):
        self.cost, self.noise, self.step_bytes, self.model = cost, noise, step_bytes, model
        self.off, self.choices, self.has_ended, self.ready_after = dict(off), overlaps, False, 0
        self.values, self.is_off = dict(off), True
        self.time, self.steps = 100.0, 0
        self.proposals, self.pauses = [], True
        self.random = random.Random(5)

    def now(self):
        return self.time

    def is_ready(self):
        return self.steps >= self.ready_after

    def overlaps(self):
        return self.choices

    def propose(self, values):
        assert not self.has_ended
        self.proposals.append(dict(values))
        self.values, self.is_off = dict(values), False

    def reset(self):
        assert not self.has_ended
        self.values, self.is_off = dict(self.off), True

    def end(self):
        self.has_ended = True

    def work(self):
        total_hash = (1 << 64) - 3 + self.steps * self.model
        return Work(self.steps * self.step_bytes, total_hash, dict(self.values))

    def step(self):
        self.steps += 1
        factor = 1.0 + self.noise * self.random.gauss(0, 1)
        has_pause = self.pauses and self.random.random() < 0.02  # a checkpoint, an evaluation
        self.time += max(self.cost(self.values) * factor, 1e-4) + 5.0 * has_pause


def run(job, folder=None, log=None, steps=20_000, **plan):
    said = []
    plan.setdefault("window_s", 0.0)
    plan = Plan(START, plan.pop("knobs", KNOBS), 4, "2 ranks", "builtin", **plan)
    cache = Cache(folder, lambda text: said.append(f"warning: {text}"))
    tuner = Tuner(job, plan, cache, Log(log) if log else None, said.append)
    tuner.end_step()
    while not tuner.is_done and job.steps < steps:
        job.step()
        tuner.end_step()
    assert tuner.is_done and job.has_ended
    return tuner, said


def test_it_finds_a_faster_combination_and_says_so_once():
    job = SimulatedJob(steep, noise=0.02)

    tuner, said = run(job)

    assert steep(job.values) < 0.8 * steep(START)
    assert tuner.report["phase"] == "done" and not tuner.report["is_off"]
    assert tuner.report["values"] == job.values
    assert len(said) == 1 and said[0].startswith("autotune chose partition ")
    assert " ms instead of " in said[0]
    assert job.steps < 600


@pytest.mark.parametrize("cost", [flat, start_is_best])
def test_where_nothing_is_faster_nothing_is_changed(cost):
    for noise in (0.0, 0.05):
        job = SimulatedJob(cost, noise)
        tuner, said = run(job)

        assert job.values == START or cost is flat
        assert cost(job.values) <= cost(START)
        if noise == 0.0:
            assert tuner.report["is_off"]
            assert said[0].startswith(
                "autotune changes nothing: partition 4M, credit unlimited, lan"
            )


def test_a_lucky_window_does_not_survive_the_guard():
    class Liar(SimulatedJob):
        """Everything looks fast once, when it is new."""

        def step(self):
            count = self.proposals.count(self.values)
            self.steps += 1
            self.time += (
                0.005
                if self.values != START and count == 1
                else 0.012 - 0.002 * (self.values == START)
            )

    job = Liar(flat)
    tuner, _ = run(job)

    assert job.values == START and tuner.report["is_off"]


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
    assert second.steps < 200 < first.steps
    assert "as remembered" in said[0]
    third = SimulatedJob(start_is_best)
    run(third, tmp_path)
    assert third.values == START  # on this machine it is slower


def test_short_steps_are_measured_for_longer_but_not_for_ever(tmp_path):
    run(SimulatedJob(flat), log=tmp_path / "log", window_s=1e9, samples=4)

    windows = [each for each in Log(tmp_path / "log").earlier if each.phase.startswith(("explore", "guard"))]
    assert windows and {each.steps for each in windows} == {20 * 10}


def test_another_model_is_another_matter(tmp_path):
    run(SimulatedJob(steep), tmp_path)
    run(SimulatedJob(steep, model=78), tmp_path)

    assert len(list(tmp_path.glob("*.json"))) == 2


def test_without_a_gain_the_engine_goes_on_choosing_by_itself(tmp_path):
    chosen = {**START, "partition_bytes": 700_000, "credit_bytes": 1_234_567}
    job = SimulatedJob(lambda values: 0.01 if values == chosen else 0.02, off=chosen)

    tuner, said = run(job, tmp_path)
    assert job.is_off and tuner.report["is_off"] and "partition 700000" in said[0]

    other = SimulatedJob(flat, off={**chosen, "partition_bytes": 700_100})
    _, said = run(other, tmp_path)
    assert not other.proposals and "as remembered" in said[0]


@pytest.mark.parametrize("lead", [0.0, 0.005, 0.01, 0.03])
def test_with_noise_a_job_seldom_ends_slower_than_without_tuning(lead):
    """lead: how much faster than everything else the job is without tuning."""
    ends = []
    for seed in range(12):
        job = SimulatedJob(
            lambda values: 0.01 if values == START else 0.01 * (1 + lead), noise=0.05
        )
        job.random = random.Random(seed)
        run(job)
        ends.append(job.values == START)

    assert sum(ends) >= 10


def test_off_is_one_arm_of_the_guard_and_both_take_turns(tmp_path):
    log = tmp_path / "log.csv"
    run(SimulatedJob(steep, noise=0.01), log=log)

    phases = [each["phase"] for each in csv.DictReader(log.open())]
    guard = [each for each in phases if each.startswith("guard")]
    assert len(guard) in (10, 16, 22)
    for first, second, third, fourth in zip(*(guard[i::4] for i in range(4)), strict=False):
        assert first == fourth != second == third
    assert phases.index("guard-off") > max(i for i, each in enumerate(phases) if "explore" in each)


def test_it_waits_until_the_job_has_settled():
    job = SimulatedJob(flat)
    job.ready_after = 200
    propose, began = job.propose, []
    job.propose = lambda values: (began.append(job.steps), propose(values))

    run(job)

    assert 200 < began[0] < 400


def test_the_overlap_is_a_knob_where_it_may_be_chosen():
    def cost(values):
        return steep(values) * {"backward": 1.3, "next-forward": 1.0}.get(values["overlap"], 1.6)

    job = SimulatedJob(cost, noise=0.01, off={**START, "overlap": "backward"}, overlaps=OVERLAPS)
    _, said = run(job)

    assert job.values["overlap"] == "next-forward" and "overlap next-forward" in said[0]
    assert all(each["fusion_bytes"] == START["fusion_bytes"] for each in job.proposals)
    best = SimulatedJob(lambda values: 0.01 + 0.01 * (values["overlap"] != "backward"))
    best.off, best.choices = {**START, "overlap": "backward"}, OVERLAPS
    best.reset()
    run(best)
    assert best.values["overlap"] == "backward"


def test_an_overlap_that_is_set_by_hand_ends_the_tuning():
    job = SimulatedJob(steep, off={**START, "overlap": "backward"}, overlaps=OVERLAPS)
    step = job.step

    def stepping():
        step()
        if job.steps == 100:
            job.choices = ()

    job.step = stepping
    tuner, said = run(job)

    assert job.steps < 103 and job.values == job.off and tuner.report["is_off"]
    assert said == [
        f"autotune ends after {job.steps + 1} steps and changes nothing: the overlap that it was "
        "choosing has been set by hand"
    ]


def test_off_is_remembered_as_well(tmp_path):
    run(SimulatedJob(start_is_best), tmp_path)
    job = SimulatedJob(start_is_best)

    _, said = run(job, tmp_path)

    assert not job.proposals and job.steps < 60
    assert "changes nothing" in said[0] and "as remembered" in said[0]


def test_other_knobs_are_another_search(tmp_path):
    run(SimulatedJob(start_is_best), tmp_path, knobs=("lanes",))
    job = SimulatedJob(steep)
    run(job, tmp_path)
    assert job.values != START


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda document: "not json", "Expecting value"),
        (lambda document: "", "Expecting value"),
        (lambda document: "[1]", "not a result of format 2"),
        (lambda document: json.dumps({**document, "format": 1}), "not a result of format 2"),
        (lambda document: json.dumps({**document, "key": {}}), "the result of another job"),
        (lambda document: json.dumps({**document, "values": {"lanes": 1}}), "its values are not"),
        (lambda document: _with(document, lanes=-1), "its lanes is -1"),
        (lambda document: _with(document, lanes=65), "its lanes is 65"),
        (lambda document: "[" * 100_000, "recursion"),
        (lambda document: _with(document, overlap="sideways"), "its overlap is 'sideways'"),
        (lambda document: _with(document, credit_bytes=True), "its credit_bytes is True"),
    ],
)
def test_a_damaged_memory_is_no_memory_and_is_replaced(tmp_path, damage, why):
    run(SimulatedJob(steep), tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text(damage(json.loads(path.read_text())))

    job = SimulatedJob(steep)
    _tuner, said = run(job, tmp_path)

    assert len(said) == 2 and "as remembered" not in said[1] and steep(job.values) < steep(START)
    assert said[0].startswith(f"warning: {path} is not used, because ") and why in said[0]
    _, said = run(SimulatedJob(steep), tmp_path)
    assert "as remembered" in said[0]


def _with(document, **values):
    return json.dumps({**document, "values": {**document["values"], **values}})


def test_jobs_that_remember_at_the_same_time_leave_one_whole_result(tmp_path):
    key = Key("w", "t", "b", "s", "k")
    caches = [Cache(tmp_path, pytest.fail) for _ in range(8)]
    values = [{**START, "lanes": lanes} for lanes in range(1, 9)]

    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            list(pool.map(lambda cache, each: cache.save(key, each), caches, values))
            assert caches[0].load(key) in values

    assert [each.suffix for each in tmp_path.iterdir()] == [".json"]


def test_a_folder_that_cannot_be_written_costs_the_memory_only(tmp_path):
    (tmp_path / "file").write_text("")
    _, said = run(SimulatedJob(steep), tmp_path / "file" / "below")
    assert any("cannot be remembered in" in each for each in said)
    assert "remembered in" not in said[-1]


def test_the_log_holds_every_window(tmp_path):
    log = tmp_path / "log.csv"
    run(SimulatedJob(steep), log=log)
    rows = list(csv.DictReader(log.open()))

    assert [each["phase"] for each in rows][-1] == "chosen"
    explored = [each for each in rows if each["phase"].startswith("explore")]
    assert 5 <= len(explored) <= 20
    for each in explored:
        values = {name: int(each[name]) for name in KNOBS if name != "overlap"}
        assert float(each["step_ms"]) == pytest.approx(1e3 * steep(values), rel=1e-3)
        assert int(each["bytes_per_step"]) == 200 * MIB


def explored(log):
    """What the search has measured, in order: the knobs, or that it was off."""
    return [
        row["phase"] == "explore" and tuple(row[name] for name in KNOBS)
        for row in csv.DictReader(log.open())
        if row["phase"].startswith("explore")
    ]


@pytest.mark.parametrize("rows_kept", [1, 3, 6, 7, 12])
def test_a_search_that_was_cut_off_goes_on_with_the_same_proposals(tmp_path, rows_kept):
    log, off = tmp_path / "log.csv", {**START, "partition_bytes": 700_000}
    first = SimulatedJob(steep, off=off)
    first.pauses = False
    run(first, log=log)
    whole = explored(log)
    lines = log.read_text().splitlines()
    ends = [i for i, line in enumerate(lines) if ",explore" in line][rows_kept]
    log.write_text("\n".join(lines[:ends]) + "\n")

    # By now the link is another, and with it what the engine chooses by itself.
    second = SimulatedJob(
        lambda values: steep(off if values["partition_bytes"] == 710_000 else values),
        off={**START, "partition_bytes": 710_000},
    )
    second.pauses = False
    run(second, log=log)

    assert len(whole) > rows_kept + 2
    assert explored(log) == whole


def test_after_a_search_that_ended_the_log_is_measured_anew_where_it_fails(tmp_path):
    log = tmp_path / "log.csv"
    run(SimulatedJob(steep), log=log)
    before = len(explored(log))

    job = SimulatedJob(start_is_best)  # on this machine the result is slower
    run(job, log=log)

    assert job.is_off and len(explored(log)) > before + 4


def test_a_file_that_is_no_log_is_left_alone(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgument, match="is not a log of the autotuner"):
        Log(path)
    assert path.read_text() == "a,b\n1,2\n"
    with pytest.raises(InvalidArgument, match="cannot be used"):
        Log(tmp_path / "missing" / "log.csv")
    Log(tmp_path / "new.csv")
    with (tmp_path / "new.csv").open("a") as file:
        file.write("1.0,explore,k,x,1,1,,1,10,5.0,1,1.0\n")
    with pytest.raises(InvalidArgument, match="line 2 of"):
        Log(tmp_path / "new.csv")
    header, values = ",".join(Log.COLUMNS), "1.0,explore,k,1048576,0,2,,1048576,10"
    for row in (f"{values},nan,1,1.0", f"{values},-5.0,1,1.0", f"{values.replace('0,2,', '0,99,')},5.0,1,1.0", "\0"):
        path.write_text(f"{header}\n{row}\n")
        with pytest.raises(InvalidArgument, match=r"(line 2 of|cannot be used)"):
            Log(path)


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
    assert describe(START) == "partition 4M, credit unlimited, lanes 2, fusion 64M"
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
