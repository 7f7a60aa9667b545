"""The ranks of a job, and its summation servers, one in each namespace of a lab."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import shaped_links

from rabit.launch.plan import RankPlace, ServerPlace
from rabit.rendezvous.discovery import StoreServer


def run_task(
    lab: shaped_links.Lab,
    folder: Path,
    program: str,
    task: dict[str, Any],
    timeout: float,
    servers: int = 0,
) -> list[Any]:
    """What every rank of `program --task JSON` has written to its file RANK.json in `folder`.

    task: what the ranks are told; "gloo" (a file store in `folder`) and "results" (`folder`) are
    added.  timeout: seconds; ranks that take longer are killed, and what they have written counts.
    servers: so many of the namespaces, the last ones, have a summation server.
    Raises SystemExit with the exit codes if a rank fails.
    """
    secret = secrets.token_bytes(32)
    secret_file = folder / "secret"
    secret_file.touch(mode=0o600)
    secret_file.write_text(secret.hex() + "\n")
    task = {**task, "gloo": f"file://{folder}/gloo", "results": str(folder)}
    store = StoreServer(lab.gateway, 0, secret)
    size = len(lab.namespaces) - servers
    everywhere = {
        **os.environ,
        "RABIT_STORE_ADDRESS": f"{lab.gateway}:{store.port}",
        "RABIT_SECRET_FILE": str(secret_file),
        "RABIT_SERVERS": str(servers),
        "RABIT_TRANSPORT": "tcp",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
    }

    def start(where: int, place: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
        here = {"RABIT_HOST_KEY": f"lab{where}", "RABIT_BIND_ADDRESS": lab.address(where)}
        command = [*lab.command(where), sys.executable, *words]
        return subprocess.Popen(command, env={**everywhere, **here, **place})

    serving: list[subprocess.Popen[bytes]] = []
    try:
        for server in range(servers):
            place = ServerPlace(server, size + server).environ(size)
            serving.append(start(size + server, place, "-m", "rabit.server"))
        words = (program, "--task", json.dumps(task))
        ranks = [
            start(rank, RankPlace(rank, 0, 1, rank, size).environ(size), *words)
            for rank in range(size)
        ]
        try:
            shaped_links.finish(ranks, timeout)
        except subprocess.TimeoutExpired:  # A hook of a peer may hang: what was measured stays.
            print(f"the ranks have not ended after {timeout:g} s: figures may be missing")
    finally:
        for each in serving:  # They serve one job after the other until they are ended.
            each.kill()
            each.wait()
        store.close()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
