"""The programs of README, quickstart and the pages of the API run as they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import blocks_of, run_program_of

ROOT = Path(__file__).resolve().parents[2]


def run(rank_server, command: str, folder: Path) -> str:
    """What a documented command line prints; `python` is a rank of the server, which has torch already."""
    words = command.split("#")[0].split()
    launcher = [sys.executable, "-m", "rabit.launch"] if words[0] == "rabitrun" else words[:1]
    given = [word for name in [*launcher, *words[1:]] for word in (rank_server.command if name == "python" else [name])]
    done = subprocess.run(
        given,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_quickstart_runs_as_written(rank_server, tmp_path):
    page = (ROOT / "docs" / "start" / "quickstart.md").read_text()
    for code in blocks_of(page):
        (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)
    commands = [line for shell in blocks_of(page, "sh") for line in shell.strip().splitlines()]
    output = {command: run(rank_server, command, tmp_path) for command in commands}

    assert output["rabitrun -np 2 python hello.py"].count("[3. 3. 3. 3.]") == 2
    assert "[1. 1. 1. 1.]" in output["python hello.py"]
    assert "mean loss over 2 ranks" in output["rabitrun -np 2 python train.py"]
    wrong = output["rabitrun -np 2 python wrong.py"]
    assert wrong.count("weights") >= 2 and "[4]" in wrong and "[5]" in wrong and wrong.count("[2.]") == 2


def test_the_readme_example_runs(rank_server, tmp_path):
    (tmp_path / "train.py").write_text(blocks_of((ROOT / "README.md").read_text())[0])

    run(rank_server, "rabitrun -np 2 python train.py", tmp_path)


@pytest.mark.parametrize("package", ["rabit", "rabit_torch"])
def test_the_program_of_a_page_of_the_api_runs(rank_server, tmp_path, package):
    page = ROOT / "docs" / "reference" / "api" / f"{package}.md"

    run_program_of(page.read_text(), tmp_path, rank_server.command)
