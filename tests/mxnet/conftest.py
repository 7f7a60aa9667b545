"""Runs a script that uses MXNet on several ranks under rabitrun; skips where MXNet is missing."""

from __future__ import annotations

import importlib.util
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

REASON = "mxnet is not installed: pip install 'mariza-rabit[mxnet]' (make test-mxnet does so)"

PROLOGUE = """
import json, os, sys
from pathlib import Path
import numpy as np
import rabit_mxnet as rabit
import mxnet as mx


def report(value):
    Path({folder!r}, f"rank.{{rabit.rank()}}.json").write_text(json.dumps(value))


rabit.init()
rank, size = rabit.rank(), rabit.size()
"""


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    found = importlib.util.find_spec("mxnet")
    if found is not None and found.origin is not None:  # This folder looks like a package, too.
        return
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    server = RankServer("mxnet")
    yield server
    server.close()


@pytest.fixture
def on_ranks(tmp_path: Path, rank_server: RankServer) -> Callable[..., list[Any]]:
    """on_ranks(n, script, **variables): the script calls report(value); returns the values by rank."""

    def run(ranks: int, script: str, timeout: float = 100, **variables: str) -> list[Any]:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        path = folder / "script.py"
        path.write_text(
            PROLOGUE.format(folder=str(folder)) + textwrap.dedent(script) + "\nrabit.shutdown()\n"
        )
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
            env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder), **variables},
            cwd=folder,
            check=False,
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        values = []
        for rank in range(ranks):
            values.append(json.loads((folder / f"rank.{rank}.json").read_text()))
        return values

    return run
