"""Runs a script on several ranks under rabitrun and hands back what each rank reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rank_server import RankServer

PROLOGUE = """
import json, os, sys
from pathlib import Path
import torch
import rabit_torch as rabit

torch.set_num_threads(1)


def report(value):
    Path({folder!r}, f"rank.{{rabit.rank()}}.json").write_text(json.dumps(value))


rabit.init()
"""


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    server = RankServer()
    yield server
    server.close()


@pytest.fixture
def on_ranks(tmp_path: Path, rank_server: RankServer) -> Callable[..., list[Any]]:
    """on_ranks(n, script, **variables): the script calls report(value); returns the values by rank."""

    def run(ranks: int, script: str, timeout: float = 240, **variables: str) -> list[Any]:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        path = folder / "script.py"
        path.write_text(
            PROLOGUE.format(folder=str(folder)) + textwrap.dedent(script) + "\nrabit.shutdown()\n"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        command = [
            sys.executable,
            "-m",
            "rabit.launch",
            "-np",
            str(ranks),
            *rank_server.command,
            str(path),
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            cwd=folder,
            check=False,
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return [json.loads((folder / f"rank.{rank}.json").read_text()) for rank in range(ranks)]

    return run
