"""Divided optimizers in elastic jobs: a lost rank is a lost part, which a copy on another host replaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)
SCRIPT = Path(__file__).parent / "scripts" / "elastic_shards.py"
PHASES = [
    *("backward", "scattered", "updated", "gathering", "parts backward", "parts scattered", "parts updated"),
    *("stepped", "saved", "replicated"),
]
HOSTS = "localhost slots=2\n127.0.0.2 slots=2\n"


@pytest.fixture
def train(rank_server, tmp_path):
    """train(flags, plan): what the ranks have come to, and the ranks of each step."""

    def run(*flags, **plan):
        (tmp_path / "hosts").write_text(HOSTS)
        command = [
            *(sys.executable, "-m", "rabit.launch", "-np", "4", *flags),
            *(*rank_server.command, str(SCRIPT), str(tmp_path), json.dumps(plan)),
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "RABIT_DETERMINISTIC": "1"}
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = {int(path.stem): json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
        lost = {process for _, process, _ in plan.get("kill", [])}
        assert not lost & set(found), "a process that was to be lost has ended well"
        values = [values for values, _ in found.values()]
        return values, next(sizes for _, sizes in found.values())

    return run


def assert_equal(found, ranks):
    assert len(found) == ranks
    for values in found:
        assert values["whole"] == found[0]["whole"]
        for stage in ("optimizer", "gradients", "parameters"):
            assert values[stage] == values["whole"]


def test_a_job_that_shrinks_keeps_the_parts_of_lost_ranks(train):
    found, sizes = train(
        *("-H", "localhost:2,127.0.0.2:2", "--min-np", "1"),
        steps=9,
        kill=[[0, 3, "parts updated"], [3, 1, "updated"], [6, 2, "stepped"]],
    )

    assert sizes == [3] * 3 + [2] * 3 + [1] * 3
    assert_equal(found, 1)


def test_four_ranks_become_three_and_four_again(train):
    found, sizes = train(
        *("--hostfile", "hosts", "--min-np", "3", "--max-np", "4"),
        *("--host-discovery-interval", "20ms"),
        steps=9,
        hosts={"3": "localhost slots=2\n127.0.0.2 slots=1\n", "6": HOSTS},
        sizes={"3": 3, "6": 4},
    )

    assert sizes == [4] * 3 + [3] * 3 + [4] * 3
    assert_equal(found, 4)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_a_lost_rank_is_replaced_at_any_moment(train, first):
    """Five moments in each job: every phase of a step twice, on all ranks."""
    moments = [PHASES[(5 * first + index + first // 2) % len(PHASES)] for index in range(5)]
    kill = [[2 + 2 * index, (first + index) % 4, moments[index]] for index in range(4)]
    kill.append([10, 4, moments[4]])
    found, _ = train(
        *("-H", "localhost:2,127.0.0.2:2", "--min-np", "2", "--max-np", "4"),
        steps=12,
        kill=kill,
        sizes={str(step): 4 for step in (2, 4, 6, 8, 10, 11)},
    )

    assert_equal(found, 4)


@pytest.mark.parametrize(
    ("size", "flags", "more"),
    [
        (2, ["--min-np", "2"], []),
        (3, ["--min-np", "3", "--spares", "1"], []),
        (2, ["--min-np", "2"], ["fresh"]),
        (2, ["--min-np", "2"], ["fresh", "early"]),
    ],
    ids=["fewer", "replaced", "fresh", "early"],
)
def test_a_loss_before_the_first_commit_leaves_the_state_that_was_loaded(rank_server, tmp_path, size, flags, more):
    done = load_and_lose(rank_server, tmp_path, size, flags, more)

    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert found == [[]] * size


def test_a_loss_before_there_are_copies_ends_a_job_that_has_loaded_a_state(rank_server, tmp_path):
    done = load_and_lose(rank_server, tmp_path, 2, ["--min-np", "2"], ["early"])

    assert done.returncode != 0
    assert "are on no rank. Load on every rank what Checkpoint.restore gave it" in done.stderr


@pytest.mark.parametrize(("case", "left"), [("parts", (0, 1)), ("committed", (0, 1)), ("one", (1, 2))])
def test_a_loss_in_the_last_exchange_of_the_first_meeting_leaves_what_was_loaded(rank_server, tmp_path, case, left):
    script = SCRIPT.with_name("elastic_first_meeting.py")

    done = launched(rank_server, tmp_path, script, ["--min-np", "2"], tmp_path, case)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {int(path.stem): json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert found == {rank: [[], [0.5], 0, True] for rank in left}


def load_and_lose(rank_server, folder, size, flags, more):
    script = SCRIPT.with_name("elastic_loaded.py")
    return launched(rank_server, folder, script, ["-H", "localhost:2,127.0.0.2:1", *flags], folder, size, *more)


def launched(rank_server, folder, script, flags, *words):
    """A job of 3 ranks, which has ended."""
    command = [sys.executable, "-m", "rabit.launch", "-np", "3", *flags]
    return subprocess.run(
        [*command, *rank_server.command, str(script), *map(str, words)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_without_copies_a_lost_part_is_named(rank_server, tmp_path):
    script = tmp_path / "script.py"
    text = SCRIPT.read_text().replace("replicas=1", "replicas=0")
    script.write_text(text)
    plan = json.dumps({"steps": 5, "kill": [[2, 1, "stepped"]]})

    done = launched(rank_server, tmp_path, script, ["--min-np", "2"], tmp_path, plan)

    assert done.returncode != 0
    assert "elements of '0.weight' are on no rank" in done.stderr
    assert "ask for replicas=1" in done.stderr


def test_a_job_that_is_started_again_goes_on_with_the_bits_of_one_that_was_not_killed(
    rank_server, tmp_path
):
    kill = [
        [0, 1, 2, "scattered"],
        [1, 2, 0, "updated"],
        [2, 3, 1, "saving"],
        [3, 4, 3, "saved"],
        [4, 5, 0, "saving"],
        [5, 5, 1, "backward"],
    ]
    results = []
    for name, ends in (("killed", kill), ("whole", [])):
        folder = tmp_path / name
        folder.mkdir()
        script = SCRIPT.with_name("restarted_shards.py")
        plan = json.dumps({"steps": 7, "kill": ends})
        command = [sys.executable, "-m", "rabit.launch", "-np", "4", "--max-restarts", "6"]
        done = subprocess.run(
            [*command, *rank_server.command, str(script), str(folder), plan],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RABIT_DETERMINISTIC": "1"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        results.append(json.loads((folder / "result.json").read_text()))

    (*killed, starts), (*whole, _) = results
    assert killed == whole
    assert starts == len(kill)
