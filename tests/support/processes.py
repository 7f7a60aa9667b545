"""Starts ranks as real processes, without a launcher."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rabit.rendezvous.discovery import StoreServer

TIMEOUT_S = 150.0


@dataclass
class Finished:
    status: int
    output: str
    errors: str


def run_processes(
    size: int,
    script: str,
    tmp_path: Path,
    environ: dict[str, str] | None = None,
    by_rank: dict[int, dict[str, str]] | None = None,
    command: Sequence[str] = (sys.executable,),
) -> list[Finished]:
    """Runs `script` with Python as `size` ranks of one job; returns how each ended.

    environ: more variables for all; by_rank: for one rank; command: what runs a script, as that of
    a RankServer.
    """
    secret = secrets.token_bytes(32)
    secret_file = tmp_path / "secret"
    secret_file.touch(mode=0o600)
    secret_file.write_text(secret.hex())
    program = tmp_path / "program.py"
    program.write_text(script)
    store = StoreServer("127.0.0.1", 0, secret)
    try:
        processes = [
            subprocess.Popen(
                [*command, str(program)],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "RABIT_RANK": str(rank),
                    "RABIT_SIZE": str(size),
                    "RABIT_LOCAL_RANK": str(rank),
                    "RABIT_LOCAL_SIZE": str(size),
                    "RABIT_CROSS_RANK": "0",
                    "RABIT_CROSS_SIZE": "1",
                    "RABIT_STORE_ADDRESS": f"127.0.0.1:{store.port}",
                    "RABIT_SECRET_FILE": str(secret_file),
                    **(environ or {}),
                    **(by_rank or {}).get(rank, {}),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        deadline = time.monotonic() + TIMEOUT_S
        ended = []
        try:
            for process in processes:
                out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                ended.append(Finished(process.returncode, out, err))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return ended
    finally:
        store.close()


def assert_all_ended_well(ended: list[Finished]) -> None:
    for rank, each in enumerate(ended):
        assert each.status == 0, f"rank {rank}: {each.status}\n{each.output}\n{each.errors}"
