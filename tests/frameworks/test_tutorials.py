"""The tutorials run as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import run_commands_of

pytestmark = pytest.mark.timeout(400)

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


def output_of(page: str, folder: Path) -> dict[str, str]:
    """What each command of a tutorial has printed; those that end with `# fails` fail, all others do not."""
    done = run_commands_of((TUTORIALS / page).read_text(), folder)
    for command, process in done.items():
        fails = command.endswith("# fails")
        assert (process.returncode != 0) == fails, f"{command}\n{process.stdout}{process.stderr}"
    return {command.split("#")[0].strip(): process.stdout for command, process in done.items()}


def test_a_cnn_learns_on_one_rank_and_on_four(tmp_path):
    output = output_of("cnn.md", tmp_path)

    for command in ("python one.py", "rabitrun -np 4 python four.py"):
        assert float(output[command].split("accuracy ")[1]) > 0.9


def test_a_job_continues_after_its_crash(tmp_path):
    output = output_of("crash.md", tmp_path)

    assert "         1         10      2" in output["rabitrun checkpoint ls run1"]
    again = output["rabitrun -np 2 python train.py 60 0"]
    assert "starts at step 10" in again or "starts at step 20" in again
    assert "ends at step 60" in again
    assert "starts at step 60" in output["rabitrun -np 3 python train.py 80 0"]


def test_an_elastic_job_continues_without_the_lost_rank(tmp_path):
    output = output_of("lost_rank.md", tmp_path)

    lines = output["rabitrun -np 3 --min-np 2 python elastic.py"]
    for part in ("from step 0 with 3 ranks", "from step 20 with 2 ranks", "done with 2 ranks"):
        assert part in lines


def test_remedies_for_a_slow_network_train(tmp_path):
    output = output_of("slow_network.md", tmp_path)

    assert len(output) == 5
    assert all("ms a step, loss 0.0" in text for text in output.values())


def test_three_solvers_solve(tmp_path):
    output = output_of("solvers.md", tmp_path)

    wanted = ["error below 1e-8: True", "heat 60.000000, between 0.", "centres within 0.1: True"]
    assert len(output) == 3
    assert all(text in printed for text, printed in zip(wanted, output.values(), strict=True)), (
        output
    )
