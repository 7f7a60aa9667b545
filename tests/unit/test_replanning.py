"""When a job notices that its exchanges take longer, and which plan it then has."""

import dataclasses

import numpy as np
import pytest
from support.topologies import racks, star

import rabit
from rabit import replanning
from rabit.planned import FollowedPlan, follow_plan
from rabit.planner import Plan
from rabit.planner.document import described, document_of
from rabit.planner.reach import changed_links, reached
from rabit.probe import Probe
from rabit.replanning import ExchangeRates, PlanWatch
from rabit.testing import run_ranks

COUNT = 100_003


def document(topology):
    return document_of(described(Plan(topology)))


def noted(rates, *seconds, step_bytes=1000):
    return [rates.note(5, 5 * step_bytes, taken) for taken in seconds]


def test_two_slow_windows_are_noticed_and_one_is_not():
    assert noted(ExchangeRates(), 1.0, 1.1, 1.0, 2.0, 1.0, 2.0, 2.1) == [1, 1, 1, 1, 1, 1, pytest.approx(2.0, rel=0.1)]


def test_a_slowdown_is_reported_until_the_rates_start_again():
    rates = ExchangeRates()
    assert noted(rates, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0)[-2:] == [2.0, 2.0]

    rates.restart()

    assert noted(rates, 2.0, 2.0, 2.0, 2.0) == [1, 1, 1, 1]


def test_windows_of_another_amount_are_not_compared():
    rates = ExchangeRates()
    noted(rates, 1.0, 1.0, 1.0)

    assert noted(rates, 10.0, step_bytes=100) == [1]


def test_a_window_without_exchanges_counts_for_nothing():
    assert ExchangeRates().note(5, 0, 0.0) == 1


def test_a_plan_reaches_on_its_own_network_what_the_planner_says():
    for topology in (racks(2, 2, 5), star(5, 10, 10, 10), star(*[10] * 4)):
        plan = Plan(topology)
        assert reached(document(topology), topology) == pytest.approx(float(plan.allreduce), rel=0.03)
        assert reached(document(topology), topology, "allgather") == pytest.approx(float(plan.allgather), rel=0.03)


def test_a_ring_loses_more_by_a_slow_host_than_a_new_plan_does():
    slow = star(10, 10, 10, 5)

    assert reached(document(star(*[10] * 4)), slow) == pytest.approx(10 / 3)
    assert reached(document(slow), slow) == pytest.approx(5)


def test_links_that_have_changed_are_named():
    assert changed_links(star(10, 10, 10), star(10, 5, 10)) == ["h1-s 10 -> 5"]
    assert changed_links(star(10, 10, 10), star(10, 9.5, 10)) == []
    assert changed_links(star(10, 10, 10, 10), racks(2, 2, 5)) == ["the hosts stand in other racks"]


@pytest.fixture
def scripted(monkeypatch):
    """Ranks find one network after the other, and rank 0 notices a slowdown in each window from `slow_from` on."""

    def prepare(*topologies, slow_from=1):
        def found(place):
            return Probe(topologies[min(place, len(topologies) - 1)], (("h0", "h1", 10.0),), 0.0, 0)

        turns = {}

        def probe(engine, hosts):
            turns[engine.rank] = turns.get(engine.rank, 0) + 1
            return found(turns[engine.rank])

        windows = []

        def note(rates, steps, sent_bytes, seconds):
            windows.append(sent_bytes)
            return 2.0 if len(windows) >= slow_from else 1.0

        monkeypatch.setattr(replanning, "_WINDOW_S", 0.0)  # of five steps, however fast they are
        monkeypatch.setattr(replanning, "probe", probe)
        monkeypatch.setattr(ExchangeRates, "note", note)

        def follow(engine):
            topology = topologies[0]
            hosts = list(topology.names[: topology.hosts])
            followed = FollowedPlan(hosts, found(0), document(topology))
            engine.plan_watch = PlanWatch(engine, followed)

        return follow

    return prepare


def trained(engine, steps):
    total = engine.size * (engine.size + 1) // 2
    for _ in range(steps):
        out = rabit.allreduce(np.full(COUNT, engine.rank + 1.0), name="sum", op=rabit.Sum)
        assert set(out.tolist()) == {total}
        rabit.mark_step()
    return engine.statistics()


def test_a_job_whose_network_gets_slower_replaces_its_plan_on_all_ranks_at_one_step(scripted, capfd):
    follow = scripted(star(*[10] * 4), star(10, 10, 10, 5))

    def run(engine):
        follow(engine)
        return trained(engine, 40)

    found = run_ranks(4, run)

    steps = {tuple(statistics["plan"]["replanned_at"]) for statistics in found}
    assert len(steps) == 1
    (step,) = steps.pop()
    assert step <= 16
    assert any(route["algorithm"] == "plan" for route in found[0]["routes"])
    text = capfd.readouterr().err
    assert "exchanges take 2.0 times as long as before" in text
    assert "h3-s 10 -> 5; a new plan is in force: an allreduce can reach 5 Mbit/s, 3.333 along the last" in text


def test_a_network_that_is_as_before_keeps_its_plan(scripted, capfd):
    follow = scripted(star(*[10] * 3))

    def run(engine):
        follow(engine)
        return trained(engine, 30)["plan"]

    found = run_ranks(3, run)

    assert {plan["probes"] >= 2 for plan in found} == {True}
    assert {tuple(plan["replanned_at"]) for plan in found} == {()}
    assert "as before; the plan stays" in capfd.readouterr().err


def test_a_probe_waits_until_it_is_two_per_cent_of_the_run(scripted):
    follow = scripted(star(*[10] * 3))

    def run(engine):
        follow(engine)
        followed = engine.plan_watch._followed
        engine.plan_watch._followed = dataclasses.replace(
            followed, found=dataclasses.replace(followed.found, seconds=600.0)
        )
        return "plan" in trained(engine, 30)

    assert run_ranks(3, run) == [False] * 3


def test_ranks_that_have_joined_end_the_watch(scripted):
    follow = scripted(star(*[10] * 3), star(10, 10, 5))

    def run(engine):
        follow(engine)
        trained(engine, 5)
        if engine.rank == 0:
            rabit.join()
            return "joined"
        for _ in range(10):
            rabit.allreduce(np.ones(COUNT), name="sum", op=rabit.Sum)
            rabit.mark_step()
        rabit.join()
        return engine.plan_watch

    assert run_ranks(3, run) == ["joined", None, None]


def test_auto_watches_and_a_file_does_not(tmp_path):
    def run(engine):
        return follow_plan(engine, "auto", f"h{engine.rank}") is not None

    assert run_ranks(2, run) == [True, True]
