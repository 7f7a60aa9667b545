"""The programs that pages of the documentation show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def blocks_of(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)


def program_of(page: str) -> str:
    """All blocks of Python of a page, in their order: later ones use names of earlier ones."""
    return "\n".join(blocks_of(page))


def run_program_of(page: str, folder: Path, python: Sequence[str] = (sys.executable,)) -> None:
    """Runs it in `folder` with 2 ranks; fails with what they printed.  python: such as RankServer.command."""
    (folder / "page.py").write_text(program_of(page))

    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "2", *python, "page.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stdout + done.stderr


def run_command(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a documented command line with this interpreter's rabitrun and python."""
    first, _, rest = command.split("#")[0].strip().partition(" ")
    module = {"rabitrun": ["-m", "rabit.launch"], "python": []}[first]
    words = [sys.executable if word == "python" else word for word in rest.split()]
    return subprocess.run(
        [sys.executable, *module, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run_commands_of(page: str, folder: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """Writes the programs of a page under the names in their first lines, and runs its commands."""
    for code in blocks_of(page):
        (folder / code.splitlines()[0].removeprefix("# ")).write_text(code)
    commands = "".join(blocks_of(page, "sh")).strip().splitlines()
    return {command: run_command(command, folder) for command in commands}
