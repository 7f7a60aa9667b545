"""The doctor, on looks made by hand: what it finds, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from faults import doctor_faults

from rabit.diagnostics.doctor.bound import bound_of
from rabit.diagnostics.doctor.diagnosis import diagnose, report_lines, verdict_lines
from rabit.diagnostics.doctor.host_table import HOST_ROWS, HostsView
from rabit.diagnostics.doctor.picture import Picture
from rabit.diagnostics.doctor.table import ROWS
from rabit.diagnostics.look.stacks import merged, parse, ranks_text
from rabit.diagnostics.metrics import openmetrics
from rabit.diagnostics.top_command import rows_of
from rabit.record import layout
from rabit.record.reader import Record

S = 1_000_000_000
COUNTERS = dict.fromkeys(layout.COUNTER_PLACES, 0)


def operation(name: str, number: int, state: str = "done", at: int = S) -> dict[str, Any]:
    """number: of the agreement; 0: there is none."""
    done = state == "done"
    return {
        "name": name, "kind": "allreduce", "dtype": "float32", "elements": 4, "group": 0, "round": number,
        "submitted_ns": at, "agreed_ns": at + 10 if number else 0, "started_ns": at + 20 if done else 0,
        "finished_ns": at + 30 if done else 0, "state": state, "backend": "", "algorithm": "", "lane": 0, "epoch": 1,
        "root": -1, "priority": 0,
    }  # fmt: skip


def rank(operations, frames=(), state="S", **more) -> dict[str, Any]:
    now = {
        "state": state, "time_ns": 20 * S, "start_ticks": 1, "user_ms": 100, "system_ms": 0, "run_delay_ms": 0,
    }  # fmt: skip
    document = {
        "header": {"size": 2, "boot": "b", "pid": 7, "start_ticks": 1},
        "counters": {**COUNTERS, "submitted": len(operations), "last_progress_ns": 2 * S},
        "operations": operations,
        "marks": [],
        "samples": [],
        "host": "h",
        "before": {**now, "time_ns": 19 * S},
        "now": now,
        "workers": [],
        "stacks": [[{"main": True, "frames": [list(each) for each in frames]}]] * 2
        if frames
        else [],
        "no_stacks": "",
    }
    return {**document, **more}


WAITING = rank([operation("a", 1), operation("grad", 0, "open", 3 * S)], [("train.py", 13, "step")])


def look(*ranks, **more) -> dict[str, Any]:
    return {
        "hosts": {},
        "ranks": dict(zip(map(str, range(len(ranks))), ranks, strict=True)),
        **more,
    }


def test_a_rank_in_another_branch_is_named_with_its_line():
    late = rank([operation("a", 1)], [("train.py", 8, "evaluate")])

    found = diagnose(look(WAITING, late))

    assert found.phase == "hung"
    first = found.causes[0].document()
    assert (first["class"], first["ranks"]) == ("branch", [1])
    assert first["line"] == "train.py:8, in evaluate"
    assert "rank 1 has not submitted" in found.summary


def test_a_job_that_hangs_in_its_first_operation_hangs():
    first = rank([operation("grad", 0, "open", 3 * S)], [("train.py", 13, "step")])
    late = rank([], [("train.py", 8, "evaluate")])
    for document in (first, late):
        document["counters"]["last_progress_ns"] = 0

    found = diagnose(look(first, late))

    assert found.phase == "hung"
    assert found.summary.startswith("the job hangs for 17 s: rank 0 waits for allreduce 'grad'")
    assert found.causes[0].row.name == "branch"


def test_the_table_says_of_a_job_that_hangs_what_it_waits_for_and_not_what_it_is_bound_by():
    rows = rows_of(look(WAITING, rank([operation("a", 1)])), {})

    assert [(row["state"], row["bound by"]) for row in rows] == [("waits for grad", ""), ("S", "")]


def test_calls_in_opposite_order_are_named():
    crossed = rank(
        [operation("a", 1), operation("other", 0, "open", 3 * S)], [("train.py", 9, "g")]
    )

    assert diagnose(look(WAITING, crossed)).causes[0].row.name == "cross-order"


def test_a_stopped_process_is_the_cause_and_not_its_branch():
    late = rank([operation("a", 1)], state="T", no_stacks="is stopped")

    found = diagnose(look(WAITING, late))

    assert [each.row.name for each in found.causes][:1] == ["stopped"]
    assert "kill -CONT 7" in found.causes[0].fix


def test_a_job_that_goes_on_evenly_is_healthy():
    def working() -> dict[str, Any]:
        found = rank([operation("a", number, at=(10 + number) * S) for number in range(1, 9)])
        found["counters"]["last_progress_ns"] = 20 * S - 1000
        return found

    found = diagnose(look(working(), working()))

    assert found.document()["causes"] == []
    assert found.is_healthy


def test_the_first_exception_is_the_cause_and_lost_peers_are_not():
    ended = {
        "0": {"status": 1, "raised": "PeerLost", "lost": 1, "at_s": 2.0},
        "1": {
            "status": 1,
            "raised": "ValueError",
            "message": "sample 7 is bad",
            "lost": -1,
            "at_s": 1.0,
        },
    }

    found = diagnose(look(WAITING, WAITING, ended=ended, is_after=True))

    assert found.causes[0].document()["class"] == "raised"
    assert "rank 1 raised ValueError: sample 7 is bad" in found.causes[0].found.evidence


@pytest.mark.parametrize("events", [0, 1])
def test_a_kill_is_for_want_of_memory_only_where_the_kernel_counted_it(events):
    samples = [
        {
            "rss_bytes": 1 << 30,
            "oom_kills": 0,
            "available_bytes": 8 << 30,
            "memory_bytes": 16 << 30,
        },
        {
            "rss_bytes": 1 << 30,
            "oom_kills": events,
            "available_bytes": 8 << 30,
            "memory_bytes": 16 << 30,
        },
    ]
    dead = rank([operation("a", 1)], samples=samples, now={}, before={})
    ended = {"1": {"status": -9, "at_s": 3.0}}

    found = diagnose(look(WAITING, dead, ended=ended, is_after=True))

    assert found.causes[0].row.name == ("out-of-memory" if events else "killed")


def test_a_slow_loader_is_shown_at_the_line_of_the_users_data_set():
    loading = [
        ("train.py", 9, "__getitem__"),
        ("/site-packages/torch/utils/data/dataloader.py", 785, "_next_data"),
        ("train.py", 17, "main"),
    ]

    found = diagnose(look(WAITING, rank([operation("a", 1)], loading)))

    slow = next(each for each in found.causes if each.row.name == "loader-slow")
    assert "it loads at train.py:9, in __getitem__" in slow.found.evidence


def test_the_verdict_has_at_most_six_lines_and_steers_no_terminal():
    late = rank([operation("a\x1b[2J", 1)], [("train\x1b.py", 8, "f")])

    lines = verdict_lines(diagnose(look(WAITING, late)))

    assert 3 <= len(lines) <= 6
    assert not any(
        "\x1b" in line for line in [*lines, *report_lines(diagnose(look(WAITING, late)))]
    )


def test_a_users_words_weigh_and_never_establish():
    late = rank([operation("a", 1)], [("train.py", 8, "evaluate")])

    quiet, said = (
        diagnose(look(WAITING, late)),
        diagnose(look(WAITING, late), "it is stuck, a hang"),
    )

    assert said.causes[0].score >= quiet.causes[0].score
    assert said.causes[0].confidence != "established"


def test_names_of_rows_are_unique_and_injections_exist():
    names = [row.name for row in ROWS]
    known = {name.partition("/")[0] for name in (*doctor_faults.INJECTIONS, *doctor_faults.BY_HAND)}

    assert len(set(names)) == len(names)
    assert {row.injection for row in ROWS} == {row.name for row in ROWS}
    assert {*names, *(row.name for row in HOST_ROWS)} == known


def test_dumps_of_faulthandler_are_read_and_equal_stacks_are_merged():
    text = (
        'Thread 0x0000000000000010 (most recent call first):\n  File "/x/queue.py", line 3 in get\n'
        'Current thread 0x0000000000000020 (most recent call first):\n  File "/x/a b.py", line 7 in f\n'
    )

    threads = parse(text, 0x20)

    assert threads[0] == {"main": True, "frames": [["/x/a b.py", 7, "f"]]}
    assert [
        ranks for ranks, _ in merged({0: [("a", 1, "f")], 2: [("a", 1, "f")], 1: [("b", 1, "f")]})
    ] == [[0, 2], [1]]
    assert ranks_text([0, 1, 2, 5]) == "ranks 0-2 and 5"


def host(boot: str, torch: str = "2.1", shm: int = 1, address: str = "10.0.0.1") -> dict[str, Any]:
    return {
        "versions": {"rabit": "1", "torch": torch}, "addresses": ["10.0.0.1"], "resolving_s": 0.0, "clock_s": 0.0,
        "clock_error_s": 0.0, "facts": {"processors": 4}, "own": {"boot": boot, "limits": {"open_files": 9999,
        "locked_bytes": -1}}, "flags": "", "left": [], "mtu": {}, "name": "n", "networks": {"eth0": [address]},
        "shm": shm,
    }  # fmt: skip


def of_hosts(reached: dict[str, Any], **hosts: dict[str, Any]) -> dict[str, list[list[str]]]:
    """By row the hosts of each of its findings."""
    view = HostsView(hosts, {}, reached)
    found = {row.name: [list(each.hosts) for each in row.signature(view)] for row in HOST_ROWS}
    return {name: each for name, each in found.items() if each}


def test_hosts_with_other_versions_are_named():
    found = of_hosts({}, a=host("1"), b=host("2"), c=host("3", torch="2.0"))

    assert found == {"versions-differ": [["c"]]}


def test_a_host_without_an_address_of_the_others_family_is_named():
    found = of_hosts({}, a=host("1"), b=host("2", address="fd00::2"), c=host("3"))

    assert found == {"families-differ": [["b"]]}


def test_containers_of_one_machine_with_two_shared_memories_are_named():
    found = of_hosts({}, a=host("1"), b=host("2", shm=3), c=host("2", shm=4))

    assert found == {"apart": [["b", "c"]]}


def test_a_network_that_is_faster_than_the_named_one_is_named():
    def rates(named: float, other: float) -> dict[str, Any]:
        return {"mb_s": named, "networks": {"eth1": {"mb_s": other}}}

    reached = {
        "a": {"b": rates(2, 100), "c": rates(90, 100)},
        "b": {"a": rates(3, 100), "c": rates(2, 100)},
        "c": {"a": rates(90, 100), "b": rates(2, 100)},
    }
    found = of_hosts(reached, a=host("1"), b=host("2"), c=host("3"))

    assert found == {"slow-network": [["b"]], "slow-link": [["b"]]}


def test_a_host_to_which_packets_take_long_is_named_and_its_link_is_not_called_slow():
    def linked(own: int, round_trips_us: dict[int, int]) -> dict[str, Any]:
        operations = [operation("a", number, at=(10 + number) * S) for number in range(1, 9)]
        links = [
            {"local": f"10.0.0.{own}", "peer": f"10.0.0.{peer}", "local_port": 1, "peer_port": own, "min_rtt_us": rtt,
             "acked_bytes": 300_000, "busy_us": rtt}
            for peer, rtt in round_trips_us.items()
        ]  # fmt: skip
        before = [{**link, "acked_bytes": 0, "busy_us": 0} for link in links]
        found = rank(operations, host=f"h{own}", counters_before=dict(COUNTERS), links=links, links_before=before)
        found["counters"].update(waiting_ns=600_000_000, last_progress_ns=20 * S - 1000)
        return found

    far = linked(3, {1: 20_000, 2: 21_000})
    found = diagnose(look(linked(1, {2: 100, 3: 20_000}), linked(2, {1: 100, 3: 20_000}), far))

    assert [(cause.row.name, list(cause.found.hosts)) for cause in found.causes] == [("far-host", ["h3"])]


def test_a_rank_that_lost_one_whose_loss_is_not_finite_is_not_named():
    ended = {
        "0": {"status": 1, "raised": "FloatingPointError", "message": "the loss is not finite"},
        "1": {"status": 1, "raised": "PeerLost", "message": "rank 0 ends: the loss is not finite", "lost": 0},
    }
    found = diagnose(look(rank([operation("a", 1)]), rank([operation("a", 1)]), ended=ended, is_after=True))

    assert (found.causes[0].row.name, list(found.causes[0].found.ranks)) == ("not-finite", [0])
    assert found.causes[0].found.evidence == ["rank 0 reports the loss is not finite"]


@pytest.mark.parametrize(("first_step_s", "expected"), [(1, {"leak", "gc"}), (15, set())])
def test_memory_and_collections_count_from_the_first_step_on(first_step_s, expected):
    """Before it, a program loads modules."""
    samples = [{"time_ns": at * S, "rss_bytes": at * (16 << 20)} for at in range(1, 16)]
    marks = [
        {"text": "gc generation 2", "end_ns": at * S, "duration_ns": S // 2, "step": 0}
        for at in range(3, 15)
    ]
    training = rank([operation("a", 1)], samples=samples, marks=marks)
    training["counters"].update(
        steps=9, last_step_ns=20 * S, step_ns=(20 - first_step_s) * S, last_progress_ns=20 * S - 1000
    )

    found = diagnose(look(training, training))

    assert {cause.row.name for cause in found.causes} == expected


def test_a_process_that_is_alone_in_an_allocation_of_several_tasks_is_told_to_use_srun():
    alone = rank([operation("a", 1)])
    alone["header"].update(size=1, tasks=4, script="/srv/u/train.py")

    found = diagnose({**look(alone), "is_after": True})

    assert found.causes[0].fix.startswith("srun -n 4 python train.py")


def test_openmetrics_has_no_label_of_a_tensor_and_ends_as_it_should():
    counters = {
        **COUNTERS,
        "finished": 3,
        "operations_allreduce": 3,
        "bytes_allreduce": 12,
        "steps": 2,
        "step_ns": S,
    }
    text = openmetrics([(Record({"rank": 0, "host": 'h"', "size": 1}, counters), {})], "job")

    assert text.endswith("# EOF\n")
    assert 'rabit_operations_total{job="job",host="h\\"",rank="0",kind="allreduce"} 3' in text
    assert 'rabit_step_seconds_total{job="job",host="h\\"",rank="0"} 1' in text


def test_a_step_is_bound_by_what_its_ranks_do_in_it():
    def working(waits_ms: int, late_ms: int) -> dict[str, Any]:
        """waits_ms: of a second in which its caller waited.  late_ms: after the others it submits."""
        operations = [
            {**operation("a", number, at=(10 + number) * S + late_ms * 1_000_000),
             "agreed_ns": (10 + number) * S + S // 2,
             "finished_ns": (10 + number) * S + S // 2 + S // 10}
            for number in range(1, 9)
        ]  # fmt: skip
        found = rank(operations, counters_before=dict(COUNTERS))
        found["counters"].update(waiting_ns=waits_ms * 1_000_000, last_progress_ns=20 * S - 1000)
        return found

    found = diagnose(look(working(600, 0), working(600, 0), working(100, 500)))

    bound = found.document()["bound"]
    assert (bound["by"], bound["rank"]) == ("waiting", 2)
    assert bound["shares"]["waiting"] == pytest.approx(0.5)
    assert bound["shares"]["computation"] == pytest.approx(0.4)
    assert bound_of(Picture(look(WAITING))) is not None
    assert "bound by waiting for rank 2 (50%; computation 40%, communication 10%)" in bound_text(
        found
    )


def bound_text(found) -> str:
    bound = bound_of(found.picture)
    assert bound is not None
    return bound.text
