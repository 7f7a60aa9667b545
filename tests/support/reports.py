"""Runs a script on several ranks under rabitrun, and reads what each rank reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from support.rank_server import RankServer

# What a script begins with; the imports of its framework come before.
# wait_for_all() waits until all ranks have called it or have died, which frees their locks: of a rank that leaves after
# its error, those that come later hear that it has called shutdown, and not what is wrong.
PROLOGUE = """
import fcntl, json, os, sys
from pathlib import Path
{imports}


def report(value):
    Path({folder!r}, f"rank.{{rabit.rank()}}.json").write_text(json.dumps(value))


def wait_for_all():
    fcntl.flock(wait_for_all.lock, fcntl.LOCK_UN)
    for rank in range({ranks}):
        with Path({folder!r}, f"here.{{rank}}").open() as other:
            fcntl.flock(other, fcntl.LOCK_SH)


wait_for_all.lock = Path({folder!r}, "here." + os.environ["RABIT_RANK"]).open("w")
fcntl.flock(wait_for_all.lock, fcntl.LOCK_EX)
rabit.init()
"""
EPILOGUE = """
wait_for_all()
rabit.shutdown()
"""


def reports_of(
    server: RankServer, ranks: int, imports: str, script: str, tmp_path: Path, timeout: float, **variables: str
) -> list[Any]:
    """What each rank has passed to report(value), by rank; `imports` name the package `rabit`."""
    folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    path = folder / "script.py"
    head = PROLOGUE.format(imports=imports, folder=str(folder), ranks=ranks)
    path.write_text(head + textwrap.dedent(script) + EPILOGUE)
    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", str(ranks), *server.command, str(path)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder), **variables},
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return [json.loads((folder / f"rank.{rank}.json").read_text()) for rank in range(ranks)]
