"""Adding up the logs of several ranks (the first test: MCR-DL-A 8)."""

from __future__ import annotations

import pytest

from rabit.config.diagnostics import path_of_engine, path_of_rank
from rabit.diagnostics.comm_log import (
    Line,
    add_up,
    find_logs,
    read_log,
    summary_lines,
    table_rows,
)
from rabit.errors import InvalidArgument

HEADER = "name,kind,type,group,bytes,begin_us,us,is_ok\n"


def lines(milliseconds, names=None):
    names = names or ["w"] * len(milliseconds)
    return [
        Line(name, "allreduce", 0, 4096, 1e3 * each)
        for name, each in zip(names, milliseconds, strict=True)
    ]


def test_communication_is_the_shortest_time_and_the_rest_is_waiting():
    log = add_up({0: lines([3, 1, 2, 4, 1.5]), 1: lines([1, 3, 2.5, 2, 4])})

    assert log.microseconds == 7500.0
    assert log.waited(0) == 4000.0
    assert log.waited(1) == 5000.0
    assert log.came_last == {1: 2, 0: 3}
    assert log.waited_for == {1: 4000.0, 0: 5000.0}
    (row,) = table_rows(log)
    assert (row["kind"], row["bytes"], row["count"]) == ("allreduce", 4096, 5)
    assert (row["total_ms"], row["mean_us"], row["p50_us"], row["p95_us"]) == (
        7.5,
        1500,
        1500,
        2000,
    )
    assert row["algbw_gbps"] == pytest.approx(5 * 4096 / 7.5e-3 / 1e9)
    assert (row["waited_ms_rank_0"], row["waited_ms_rank_1"]) == (4.0, 5.0)
    text = "\n".join(summary_lines(log))
    assert "communication 7.500 ms in 5 operations" in text
    assert "rank 0 waited 4.000 ms; it came last 3 times, and others waited 5.000 ms for it" in text


def test_operations_meet_by_name_whatever_the_order_in_which_ranks_finish_them():
    log = add_up({0: lines([1, 2, 9], ["a", "b", "a"]), 1: lines([2, 5, 10], ["b", "a", "a"])})

    assert log.microseconds == 1000 * (1 + 2 + 9)
    assert log.waited(1) == 1000 * (4 + 0 + 1)


def test_ranks_outside_of_a_group_wait_for_nobody():
    member = Line("x", "allreduce", 3, 8, 5.0)

    log = add_up({0: [member], 1: [], 2: [member._replace(microseconds=7.0)]})

    assert (log.microseconds, log.waited(1), log.waited(2)) == (5.0, 0, 2.0)
    assert "rank 1 waited 0.000 ms; it came last 0 times" in "\n".join(summary_lines(log))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("ops.csv", "ops.7.csv"),
        ("out/log", "out/log.7"),
        ("a.b/log", "a.b/log.7"),
        ("out/.hidden", "out/.hidden.7"),
        ("r{rank}/x.csv", "r7/x.csv"),
    ],
)
def test_each_rank_has_a_file_of_its_own(path, expected):
    assert path_of_rank(path, 7) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("ops.csv", "ops.engine3.csv"),
        ("out/log", "out/log.engine3"),
        ("r{rank}/x", "r{rank}/x.engine3"),
    ],
)
def test_a_later_engine_has_files_of_its_own(path, expected):
    assert path_of_engine(path, 1) == path
    assert path_of_engine(path, 3) == expected


def test_a_job_that_is_started_again_has_files_of_its_own():
    assert path_of_engine("ops.csv", 1, restart=2) == "ops.restart2.csv"
    assert path_of_engine("ops.csv", 3, restart=2) == "ops.restart2.engine3.csv"


def test_files_are_found_by_what_the_job_was_given(tmp_path):
    for rank in (0, 1, 10):
        (tmp_path / f"ops.{rank}.csv").write_text(HEADER)
    (tmp_path / "ops.old.csv").touch()

    with pytest.raises(
        InvalidArgument, match=r"ops\.2\.csv is missing, and there is one of rank 10"
    ):
        find_logs(str(tmp_path / "ops.csv"))
    (tmp_path / "ops.10.csv").unlink()
    assert list(find_logs(str(tmp_path / "ops.csv"))) == [0, 1]
    with pytest.raises(InvalidArgument, match=r"there is no file .*none\.N\.csv"):
        find_logs(str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("something else\n", "line 1: this is not a log"),
        (
            HEADER + "# incomplete: the disk did not take the rest\n",
            "line 2: the log is incomplete",
        ),
        (HEADER + '"x",allreduce,float32,0,8\n', "line 2: not enough values"),
        (HEADER + '"x",allreduce,float32,0,8,1.0,many,1\n', "line 2: could not convert"),
    ],
)
def test_a_log_with_a_hole_is_refused(tmp_path, text, said):
    (tmp_path / "log").write_text(text)

    if not said:
        assert read_log(tmp_path / "log") == []
        return
    with pytest.raises(InvalidArgument, match=said):
        read_log(tmp_path / "log")


def test_names_with_commas_and_quotes_are_read_and_failures_left_out(tmp_path):
    (tmp_path / "log").write_text(
        HEADER
        + '"a ""b"",c",broadcast,int8,2,16,1.000,2.500,1\n'
        + '"x",broadcast,int8,2,16,1.000,2.500,0\n'
    )

    assert read_log(tmp_path / "log") == [Line('a "b",c', "broadcast", 2, 16, 2.5)]
