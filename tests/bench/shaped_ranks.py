"""The ranks of a job, one in each namespace of a lab."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import shaped_links

from rabit.rendezvous.discovery import StoreServer


def run_task(
    lab: shaped_links.Lab, folder: Path, program: str, task: dict[str, Any], timeout: float
) -> list[Any]:
    """What every rank of `program --task JSON` has written to its file RANK.json in `folder`.

    task: what the ranks are told; "gloo" (a file store in `folder`) and "results" (`folder`) are
    added.  timeout: seconds; ranks that take longer are killed, and what they have written counts.
    Raises SystemExit with the exit codes if a rank fails.
    """
    secret = secrets.token_bytes(32)
    secret_file = folder / "secret"
    secret_file.touch(mode=0o600)
    secret_file.write_text(secret.hex() + "\n")
    task = {**task, "gloo": f"file://{folder}/gloo", "results": str(folder)}
    store = StoreServer(lab.gateway, 0, secret)
    size = len(lab.namespaces)
    processes = []
    try:
        for rank in range(size):
            environ = {
                **os.environ,
                "RABIT_RANK": str(rank),
                "RABIT_SIZE": str(size),
                "RABIT_LOCAL_RANK": "0",
                "RABIT_LOCAL_SIZE": "1",
                "RABIT_CROSS_RANK": str(rank),
                "RABIT_CROSS_SIZE": str(size),
                "RABIT_HOST_KEY": f"lab{rank}",
                "RABIT_BIND_ADDRESS": lab.address(rank),
                "RABIT_STORE_ADDRESS": f"{lab.gateway}:{store.port}",
                "RABIT_SECRET_FILE": str(secret_file),
                "RABIT_TRANSPORT": "tcp",
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            command = [*lab.command(rank), sys.executable, program, "--task", json.dumps(task)]
            processes.append(subprocess.Popen(command, env=environ))
        try:
            shaped_links.finish(processes, timeout)
        except subprocess.TimeoutExpired:  # A hook of a peer may hang: what was measured stays.
            print(f"the ranks have not ended after {timeout:g} s: figures may be missing")
    finally:
        store.close()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
