"""Documentation that is wrong fails here: code that does not run, dead links, missing settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "native" / "README.md"]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.M | re.S)


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a documented command line with this interpreter's rabitrun and python."""
    first, _, rest = command.split("#")[0].strip().partition(" ")
    program = {"rabitrun": [sys.executable, "-m", "rabit.launch"], "python": [sys.executable]}[
        first
    ]
    words = [sys.executable if word == "python" else word for word in rest.split()]
    return subprocess.run(
        program + words,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_the_quickstart_runs_as_written(tmp_path):
    page = ROOT / "docs" / "start" / "quickstart.md"
    for code in blocks(page, "python"):
        name = code.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(code)
    output = {}
    for shell in blocks(page, "sh"):
        for command in shell.strip().splitlines():
            done = run(command, tmp_path)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            output[command] = done.stdout

    assert output["rabitrun -np 2 python hello.py"].count("[3. 3. 3. 3.]") == 2
    assert "[1. 1. 1. 1.]" in output["python hello.py"]
    assert "mean loss over 2 ranks" in output["rabitrun -np 2 python train.py"]
    wrong = output["rabitrun -np 2 python wrong.py"]
    assert (
        wrong.count("weights") >= 2
        and "[4]" in wrong
        and "[5]" in wrong
        and wrong.count("[2.]") == 2
    )


def test_the_readme_example_runs(tmp_path):
    (tmp_path / "train.py").write_text(blocks(ROOT / "README.md", "python")[0])

    done = run("rabitrun -np 2 python train.py", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_example_is_short():
    lines = [line for line in blocks(ROOT / "README.md", "python")[0].splitlines() if line.strip()]

    assert len(lines) <= 16


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_is_dead(page):
    dead = []
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
            dead.append(target)

    assert not dead


def test_every_error_class_is_documented():
    import rabit

    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    classes = [
        name
        for name in rabit.__all__
        if isinstance(getattr(rabit, name), type)
        and issubclass(getattr(rabit, name), rabit.RabitError)
    ]

    assert [name for name in classes if f"`{name}`" not in text and name != "RabitError"] == []


def test_every_decision_record_has_a_number_of_its_own():
    records = sorted((ROOT / "docs" / "contribute" / "decisions").glob("0*.md"))
    numbers = [path.name[:4] for path in records]

    assert [each.name for each in records if numbers.count(each.name[:4]) > 1] == []
    assert all(each.read_text().startswith(f"# {each.name[:4]} ") for each in records)


def test_every_decision_record_has_the_four_parts():
    records = sorted((ROOT / "docs" / "contribute" / "decisions").glob("0*.md"))
    bad = [
        path.name
        for path in records
        if any(
            part not in path.read_text()
            for part in ("Context", "Decision", "Consequences", "Rejected")
        )
    ]

    assert records
    assert not bad
