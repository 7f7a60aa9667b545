"""The ranks of a job, and its summation servers, one in each namespace of a lab."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import shaped_links

from rabit.launch.plan import RankPlace, ServerPlace
from rabit.rendezvous.discovery import StoreServer


def options_of(
    parser: argparse.ArgumentParser, work: Callable[[dict[str, Any]], None]
) -> argparse.Namespace:
    """The options of a program that calls `run_task`; its ranks do `work` and end here.

    Raises SystemExit, with status 0 and a line that says why, where links cannot be shaped.
    """
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        work(json.loads(options.task))
        raise SystemExit(0)
    if why := shaped_links.why_not():
        print(f"skipped: links cannot be shaped here: {why}")
        raise SystemExit(0)
    return options


def run_task(
    lab: shaped_links.Lab,
    folder: Path,
    program: str,
    task: dict[str, Any],
    timeout: float,
    servers: int = 0,
    ranks_per_host: int = 1,
) -> list[Any]:
    """What every rank of `program --task JSON` has written to its file RANK.json in `folder`.

    task: what the ranks are told; "gloo" (a file store in `folder`) and "results" (`folder`) are
    added.  The rest as in `run_words`.
    """
    task = {**task, "gloo": f"file://{folder}/gloo", "results": str(folder)}
    words = (program, "--task", json.dumps(task))
    run_words(lab, folder, words, timeout, servers, ranks_per_host)
    ranks = (len(lab.namespaces) - servers) * ranks_per_host
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def run_words(
    lab: shaped_links.Lab,
    folder: Path,
    words: Sequence[str],
    timeout: float,
    servers: int = 0,
    ranks_per_host: int = 1,
) -> None:
    """Runs Python with `words` on every rank.

    timeout: seconds; ranks that take longer are killed, and what they have written counts.
    servers: so many of the namespaces, the last ones, have a summation server, each of the others
    `ranks_per_host` ranks, which share memory.
    Raises SystemExit with the exit codes if a rank fails.
    """
    secret = secrets.token_bytes(32)
    secret_file = folder / "secret"
    secret_file.touch(mode=0o600)
    secret_file.write_text(secret.hex() + "\n")
    store = StoreServer(lab.gateway, 0, secret)
    hosts = len(lab.namespaces) - servers
    size = hosts * ranks_per_host
    everywhere = {
        **os.environ,
        "RABIT_STORE_ADDRESS": f"{lab.gateway}:{store.port}",
        "RABIT_SECRET_FILE": str(secret_file),
        "RABIT_SERVERS": str(servers),
        "RABIT_TRANSPORT": "tcp" if ranks_per_host == 1 else "auto",
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
            serving.append(start(hosts + server, place, "-m", "rabit.server"))
        ranks = []
        for rank in range(size):
            host, local = divmod(rank, ranks_per_host)
            mine = RankPlace(rank, local, ranks_per_host, host, hosts).environ(size)
            ranks.append(start(host, mine, *words))
        try:
            shaped_links.finish(ranks, timeout)
        except subprocess.TimeoutExpired:  # A hook of a peer may hang: what was measured stays.
            print(f"the ranks have not ended after {timeout:g} s: figures may be missing")
    finally:
        for each in serving:  # They serve one job after the other until they are ended.
            each.kill()
            each.wait()
        store.close()
