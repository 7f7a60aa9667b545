"""rabitrun bench: a subcommand that starts itself on every rank."""

from __future__ import annotations

import csv
import json
import sys

import pytest

from rabit.launch.subcommands import find_subcommand

QUICK = ("--calls", "3")


def test_bench_prints_one_row_for_each_size_and_writes_the_figures(rabitrun, tmp_path):
    job = rabitrun(
        "bench", "allreduce", "alltoall", "-np", 2, "--bytes", "1K:64K", "--factor", 8, *QUICK,
        "--json", tmp_path / "all.json", "--csv", tmp_path / "all.csv",
    )  # fmt: skip

    assert job.status == 0, job.err
    lines = job.out.splitlines()
    assert lines[0].startswith("# rabit ") and " 2 ranks, " in lines[0]
    assert lines[1].split() == (
        ["kind", "bytes", "count", "type", "op", "root", "p50", "p95", "algbw", "busbw", "wrong",
         "route"]
    )  # fmt: skip
    rows = [line.split() for line in lines[3:]]
    sizes = ["1024", "8192", "65536"]
    assert [row[:2] for row in rows] == [
        [kind, size] for kind in ("allreduce", "alltoall") for size in sizes
    ]
    assert {row[10] for row in rows} == {"0"}
    document = json.loads((tmp_path / "all.json").read_text())
    assert document["ranks"] == 2
    assert [len(row["seconds"]) for row in document["rows"]] == [3] * 6
    with (tmp_path / "all.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["bytes"] for row in table] == sizes * 2
    assert float(table[0]["p50_us"]) == document["rows"][0]["p50_us"] > 0


def test_bench_takes_flags_of_rabitrun_on_both_sides(rabitrun):
    job = rabitrun(
        "-np", 2, "bench", "--bytes", "64K", "--backend", "builtin", *QUICK,
        "--allreduce-algorithm", "ring", "--transport", "tcp",
    )  # fmt: skip

    assert job.status == 0, job.err
    assert job.out.splitlines()[-1].endswith("builtin/ring")


def test_bench_is_a_program_under_any_launcher(rabitrun):
    job = rabitrun("-np", 2, sys.executable, "-m", "rabit.bench", "barrier", *QUICK)

    assert job.status == 0, job.err
    assert job.out.splitlines()[-1].split()[:4] == ["[0]", "barrier", "0", "0"]


def test_mistakes_of_bench_are_told_once_before_anything_starts(rabitrun):
    job = rabitrun("-np", 2, "bench", "alreduce")

    assert job.status == 2
    assert job.err.startswith("rabitrun: 'alreduce' is unknown. Known: allreduce, allgather")
    assert job.err.count("\n") == 1


def test_a_root_that_no_rank_has_is_refused(rabitrun):
    job = rabitrun("-np", 2, "bench", "broadcast", "--root", 2, *QUICK)

    assert job.status == 2
    assert "--root is 2 in a job of 2 ranks. Name one of 0 to 1." in job.err


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_bench_help_is_that_of_bench(rabitrun, flag):
    job = rabitrun("-np", 2, "bench", flag)

    assert job.status == 0
    assert "busbw" in job.out and "--factor" in job.out


def test_a_program_of_that_name_comes_first(rabitrun, tmp_path):
    program = tmp_path / "bench"
    program.write_text("#!/bin/sh\necho mine $1\n")
    program.chmod(0o755)

    path = f"{tmp_path}:/usr/bin:/bin"
    in_path = rabitrun("-np", 1, "bench", "word", environ={"PATH": path})
    by_path = rabitrun("-np", 1, "./bench", "word", cwd=tmp_path)

    assert in_path.out == by_path.out == "[0] mine word\n"
    assert f"'bench' is {program} here; for that of rabit: rabitrun -np N" in in_path.err
    assert "is" not in by_path.err


def test_a_script_and_a_folder_of_that_name_are_no_programs(tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench.py").touch()

    found, notice = find_subcommand("bench", {"PATH": str(tmp_path)})

    assert found is not None and found.module == "rabit.bench" and not notice
    assert find_subcommand("./bench", {"PATH": ""}) == (None, "")
    assert find_subcommand("bench.py", {"PATH": ""}) == (None, "")
