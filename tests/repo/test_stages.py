"""What runs `make test` runs every part once, builds before the tests that need them, and hides no failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

STAGES = Path(__file__).resolve().parents[1] / "stages.py"
# Plays make: it notes the target, and fails for the one named in $FAILS, when the one named in $HANGS, which does not
# end, has begun.
MAKE = """#!/bin/sh
for target; do :; done
echo "$target" >> "$NOTES"
echo "what $target prints"
[ "$target" != "$HANGS" ] || sleep 60
[ "$target" != "$FAILS" ] && exit
until [ "$HANGS" = none ] || grep -qx "$HANGS" "$NOTES"; do sleep 0.02; done
exit 1
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "make").write_text(MAKE)
    (tmp_path / "make").chmod(0o755)

    def run(
        kind: str,
        fails: str = "none",
        hangs: str = "none",
        stages: Path = STAGES,
        given: Sequence[str] = (),
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        notes = tmp_path / "notes"
        notes.write_text("")
        done = subprocess.run(
            [sys.executable, str(stages), kind, *given],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={
                **os.environ,
                "MAKE": str(tmp_path / "make"),
                "NOTES": str(notes),
                "FAILS": fails,
                "HANGS": hangs,
            },
        )
        return done, notes.read_text().split()

    return run


def test_with_a_wheel_nothing_is_compiled(run, tmp_path):
    wheel = tmp_path / "mariza_rabit-0.1.0-py3-none-any.whl"
    wheel.touch()

    done, notes = run("short", given=[f"WHEEL={wheel}"])

    assert done.returncode == 0, done.stdout + done.stderr
    assert "test-python-short" in notes
    assert not {"build-native", "test-native"} & set(notes)
    planned = subprocess.run(
        ["make", "-n", "packages", f"WHEEL={wheel}"],
        cwd=STAGES.parents[1],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f'cp "{wheel}"' in planned
    assert not re.search(r"pip wheel|cmake -S|ninja -C", planned)


@pytest.mark.parametrize(
    ("kind", "build", "tests"),
    [
        ("short", "build-native", "test-native"),
        ("full", "build-thread", "test-thread"),
        ("full", "build-address", "test-address"),
        ("full", "ready-mxnet", "test-mxnet"),
    ],
)
def test_every_part_runs_once_and_builds_come_before_their_tests(run, kind, build, tests):
    done, targets = run(kind)

    assert done.returncode == 0, done.stdout
    assert f"all {len(targets)} parts passed" in done.stdout
    assert len(set(targets)) == len(targets)
    assert targets[0] == "packages"
    assert targets.index(build) < targets.index(tests)


def test_parts_with_nothing_to_do_do_not_shorten_the_estimates_of_the_rest(run):
    done, _ = run("full")

    estimates = re.findall(r"about (\d+) (s|min)", done.stdout)
    assert len(estimates) > 3
    assert all(unit == "min" or int(number) > 20 for number, unit in estimates), done.stdout


@pytest.mark.parametrize(
    ("kind", "fails", "tests"),
    [
        ("short", "build-native", "test-native"),
        ("full", "build-thread", "test-thread"),
        ("full", "docs", "none"),
    ],
)
def test_a_build_that_fails_is_shown_and_fails_the_run(run, kind, fails, tests):
    done, targets = run(kind, fails)

    assert done.returncode == 1
    assert f"what {fails} prints" in done.stdout
    assert f"`make {fails}` runs it alone" in done.stdout
    assert tests not in targets


def test_a_part_that_fails_stops_no_part_that_does_not_need_it(run):
    done, targets = run("full", fails="build-thread")

    assert done.returncode == 1
    assert "`make build-thread` runs it alone" in done.stdout
    assert "left out: native tests under TSan, which needs `make build-thread`" in done.stdout
    assert {"build-address", "test-address", "build-bench", "docs", "fuzz"} <= set(targets)


def test_a_test_that_fails_lets_the_others_run_and_is_named_at_the_end(run):
    done, targets = run("short", "check")

    assert done.returncode == 1
    assert "`make check` runs it alone" in done.stdout
    assert {"test-python-short", "build-native", "test-native"} <= set(targets)
    last = done.stdout.splitlines()[-1]
    assert (
        last == "== 1 of 5 parts failed: lint, types and the rules of the repository (make check)"
    )


def test_a_build_that_gave_way_goes_on_with_the_machine_for_itself(run, tmp_path):
    """Here the first try never ends."""
    make = (tmp_path / "make").read_text()
    waits = (
        '[ "$target $(grep -cx build-native "$NOTES")" != "build-native 1" ] || sleep 600\n'
        # The shown tests end when the first try has begun: before that, nothing gives way.
        '[ "$target" != test-python-short ] || until grep -qx build-native "$NOTES"; do sleep 0.02; done\n'
    )
    (tmp_path / "make").write_text(make.replace('echo "what', waits + 'echo "what'))

    done, targets = run("short")

    assert done.returncode == 0, done.stdout
    assert targets.count("build-native") == 2
    assert targets.index("test-python-short") < targets.index("test-native")


def test_nothing_else_runs_without_the_packages(run):
    done, targets = run("short", "packages")

    assert done.returncode == 1
    assert targets == ["packages"]


@pytest.mark.parametrize("hangs", ["test-native", "check"])
def test_a_part_that_hangs_is_shown_and_fails_the_run(run, tmp_path, hangs):
    quick = tmp_path / "stages.py"
    quick.write_text(
        STAGES.read_text().replace(
            "TIMES_MAX, SECONDS_MIN = 5, 900", "TIMES_MAX, SECONDS_MIN = 0, 3"
        )
    )

    done, _ = run("short", hangs=hangs, stages=quick)

    assert done.returncode == 1
    assert f"what {hangs} prints" in done.stdout
    assert "has not ended after 3 s" in done.stdout
    assert f"`make {hangs}` runs it alone" in done.stdout
