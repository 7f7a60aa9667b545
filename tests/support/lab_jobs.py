"""Jobs of rabitrun whose hosts are the namespaces of a lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.harness.links import Lab

RELAY = Path(__file__).parent / "altering_relay.py"
# A packet of the wire is as long as the kernel makes them, so that a program in Python can keep up.
WIRE_BYTES = 60_000


def call(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def start(
    lab: Lab, folder: Path, flags: list[str], script: str, arguments: list[str], environ: Mapping[str, str]
) -> subprocess.Popen[str]:
    """A job with one rank in each namespace; the launcher is in none."""
    (folder / "train.py").write_text(script)
    # Hosts are reached by no network that can break: what is tested are the links of the ranks.
    prefix = lab.namespaces[0][:-1]
    (folder / "ssh").write_text(
        '#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\n'
        f'exec ip netns exec {prefix}$((${{2##*.}} - 1)) sh -c "$3"\n'
    )
    (folder / "ssh").chmod(0o755)
    ranks = len(lab.namespaces)
    hosts = ",".join(f"{lab.address(rank)}:1" for rank in range(ranks))
    return subprocess.Popen(
        [*(sys.executable, "-m", "rabit.launch", "-np", str(ranks), "-H", hosts, *flags),
         *(sys.executable, str(folder / "train.py"), *arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{folder}:{os.environ['PATH']}", **environ},
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


class Wire:
    """A relay between the namespaces of a lab that alters bytes; see altering_relay.py."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set_on(self, is_on: bool) -> None:
        """Returns when it is so."""
        if is_on:
            (self._folder / "on").touch()
        else:
            (self._folder / "on").unlink()
        while self._said()[0] != is_on:
            time.sleep(0.02)

    def frames(self) -> int:
        """That have passed."""
        return self._said()[1]

    def altered(self) -> dict[str, int]:
        return self._said()[2]

    def _said(self) -> tuple[bool, int, dict[str, int]]:
        is_on, frames, altered = json.loads((self._folder / "altered").read_text())
        return is_on, frames, altered


@contextmanager
def altering_wire(lab: Lab, folder: Path, rate: float, header_share: float, seed: int) -> Iterator[Wire]:
    """All packets between the namespaces pass through it."""
    hosts = range(len(lab.namespaces))
    devices = [f"{lab.bridge}t{host}" for host in hosts]
    named = [f"{devices[host]}={lab.address(host)}" for host in hosts]
    relay = subprocess.Popen(
        [sys.executable, str(RELAY), str(folder), str(rate), str(header_share), str(seed), *named],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not (folder / "altered").exists():
            assert relay.poll() is None, f"the relay has ended: {relay.communicate()[1]}"
            time.sleep(0.01)
        for host in hosts:
            inside = lab.command(host)
            call("ip", "link", "set", devices[host], "netns", lab.namespaces[host])
            call(*inside, "ip", "link", "set", devices[host], "mtu", str(WIRE_BYTES), "txqueuelen", "10000", "up")
            for other in set(hosts) - {host}:
                route = (f"{lab.address(other)}/32", "dev", devices[host], "src", lab.address(host))
                call(*inside, "ip", "route", "add", *route)
        yield Wire(folder)
    finally:
        (folder / "end").touch()
        assert relay.wait(timeout=30) == 0, f"the relay has failed: {relay.communicate()[1]}"
