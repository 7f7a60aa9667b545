"""Jobs of raw processes: the tests here kill, stop and disturb them, so no launcher is in the way."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rabit.testing import private_store


class Job:
    """`ranks` processes of one script, with their own store.  Output goes to files."""

    def __init__(self, folder: Path, ranks: int, script: str, **variables: str) -> None:
        self.folder = folder
        self.ranks = ranks
        self.secret = secrets.token_bytes(32)
        self._store = private_store(self.secret)
        self.store_address = self._store.address
        path = folder / "script.py"
        path.write_text(script)
        secret_file = folder / "secret"
        secret_file.touch(mode=0o600)
        secret_file.write_text(self.secret.hex())
        self.processes = []
        for rank in range(ranks):
            environment = {
                **os.environ, "OMP_NUM_THREADS": "1", "RABIT_RANK": str(rank), "RABIT_SIZE": str(ranks),
                "RABIT_LOCAL_RANK": str(rank), "RABIT_LOCAL_SIZE": str(ranks), "RABIT_CROSS_RANK": "0",
                "RABIT_CROSS_SIZE": "1", "RABIT_STORE_ADDRESS": self.store_address,
                "RABIT_SECRET_FILE": str(secret_file), **variables,
            }
            with self.output_path(rank).open("wb") as output:
                self.processes.append(subprocess.Popen(
                    [sys.executable, str(path), str(folder)], env=environment, stdout=output,
                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                ))

    def output_path(self, rank: int) -> Path:
        return self.folder / f"output.{rank}"

    def output(self, rank: int) -> str:
        return self.output_path(rank).read_text(errors="replace")

    def wait(self, timeout: float) -> list[int]:
        return [process.wait(timeout) for process in self.processes]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._store.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[type[Job]]:
    """job(ranks, script, **variables) starts a job that ends with the test at the latest."""
    started: list[Job] = []

    def start(ranks: int, script: str, **variables: str) -> Job:
        folder = tmp_path / f"job{len(started)}"
        folder.mkdir()
        started.append(Job(folder, ranks, script, **variables))
        return started[-1]

    yield start  # type: ignore[misc]
    for each in started:
        each.close()
