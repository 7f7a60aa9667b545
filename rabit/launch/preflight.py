"""preflight: `rabitrun doctor -H a,b`: what the hosts of a job lack, before it starts.

A probe runs on every host at the same time, over ssh as ranks would; each then connects to all others.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rabit.diagnostics.doctor.cause import Cause, Found, Row
from rabit.diagnostics.doctor.diagnosis import Diagnosis
from rabit.diagnostics.doctor.host_table import HOST_ROWS, HostsView
from rabit.diagnostics.doctor.picture import Picture
from rabit.launch.hosts import Host, parse_hostfile, parse_hosts
from rabit.launch.nodes.ssh import SshOptions
from rabit.launch.nodes.way import Way
from rabit.launch.resolution import resolved
from rabit.threads import Call

if TYPE_CHECKING:
    import argparse

__all__ = ["preflight"]

_PROBE = "rabit.diagnostics.look.probe"
_START_S = 8.0
_REACH_S = 12.0
_OTHER_NETWORKS = 2  # of a host, which are tried as well
_MOST = 8  # causes that are shown: before a job several faults are there at once


def preflight(parsed: argparse.Namespace) -> Diagnosis:
    """What is wrong with the hosts that the command line names.  Blocks for some seconds, 20 at most."""
    hosts = resolved(parse_hostfile(Path(parsed.hostfile)) if parsed.hostfile else parse_hosts(parsed.hosts))
    ssh = SshOptions(
        parsed.ssh_port,
        parsed.ssh_identity_file,
        tuple(parsed.ssh_option),
        parsed.remote_python,
        parsed.ssh_always,
        connect_timeout_s=5,
    )
    probes = [_Probe(host, ssh) for host in hosts]
    try:
        starting = [(probe, Call(probe.start, f"probe-{probe.host}")) for probe in probes]
        for _, call in starting:
            call.result()
        ready = [probe for probe in probes if probe.found]
        asked = [(probe, Call(_asks(probe, ready), f"reach-{probe.host}")) for probe in ready]
        for _, call in asked:
            call.result()
    finally:
        for probe in probes:
            probe.end()
    return _judged({str(probe.host): probe for probe in probes})


def _asks(probe: _Probe, ready: Sequence[_Probe]) -> Callable[[], None]:
    others = [other for other in ready if other is not probe]
    return lambda: probe.ask(others)


class _Probe:
    """The probe on one host.  One thread at a time."""

    def __init__(self, host: Host, way: Way) -> None:
        self.host = host
        self._way = way
        self._process: subprocess.Popen[bytes] | None = None
        self.found: dict[str, Any] = {}
        self.problem = ""
        self._is_here = host.is_here and not way.is_always
        self.by_hand = "" if self._is_here else way.by_hand(host)
        self.reached: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Starts it and reads what it says of its host."""
        command = [sys.executable, "-m", _PROBE]
        if not self._is_here:
            command = self._way.command(self.host, module=_PROBE)
        began = time.time()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self.problem = f"{shlex.join(command)}: {error.strerror}"
            return
        answer = self._line(_START_S)
        if answer is None:
            self.problem = self.problem or self._complaint()
            return
        self.found = answer
        # The host's clock against the middle of the time in which it said so.
        self.found["clock_s"] = answer["time"] - (began + time.time()) / 2
        self.found["clock_error_s"] = (time.time() - began) / 2

    def ask(self, others: Sequence[_Probe]) -> None:
        """Has it connect to the listeners of the others."""
        assert self._process is not None and self._process.stdin is not None
        targets = [(other.address, other.found["port"]) for other in others]
        networks = [(other, *network) for other in others for network in other.other_networks]
        more = [(address, other.found["port"]) for other, _, address in networks]
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps({"connect": targets, "others": more}).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._line(_REACH_S)
        found = (
            answer["reached"]
            if answer
            else [{"problem": "the probe did not answer", "kind": "probe"}] * len(others)
        )
        self.reached = {str(other.host): each for other, each in zip(others, found, strict=True)}
        for (other, name, _), each in zip(networks, answer.get("others", ()) if answer else (), strict=False):
            self.reached[str(other.host)].setdefault("networks", {})[name] = each

    @property
    def address(self) -> str:
        """At which the others connect to it: as the command line names it."""
        return self.host.address or self.host.name.rpartition("@")[2]

    @property
    def other_networks(self) -> list[tuple[str, str]]:
        """Interfaces and addresses at which nobody has named it."""
        networks = self.found.get("networks", {})
        found = [(name, each[0]) for name, each in networks.items() if self.address not in each]
        is_known = len(found) < len(networks)
        return found[:_OTHER_NETWORKS] if is_known else []

    def _line(self, longest_s: float) -> dict[str, Any] | None:
        """The next line of JSON; what a login script prints is skipped."""
        process = self._process
        assert process is not None and process.stdout is not None
        read = process.stdout.readline

        def lines() -> dict[str, Any] | None:
            while line := read():
                with contextlib.suppress(ValueError):
                    document = json.loads(line)
                    if isinstance(document, dict):
                        return document
            return None

        call = Call(lines, f"read-{self.host}")
        if not call.wait(longest_s):
            self.problem = f"no answer within {longest_s:g} s"
            process.kill()
        found: dict[str, Any] | None = call.result()
        return found

    def _complaint(self) -> str:
        process = self._process
        assert process is not None and process.stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        if process.poll() is None:
            process.kill()
        said = process.stderr.read(1 << 16).decode(errors="replace").strip()
        if self._is_here:
            return f"the probe ended with status {process.wait()}: {said.splitlines()[-1] if said else 'nothing said'}"
        return self._way.explain(self.host, said, process.wait())

    def end(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for file in (process.stdout, process.stderr):
            if file is not None:
                file.close()


def _judged(probes: Mapping[str, _Probe]) -> Diagnosis:
    view = HostsView(
        {name: probe.found for name, probe in probes.items() if probe.found},
        {name: (probe.problem, probe.by_hand) for name, probe in probes.items() if not probe.found},
        {name: probe.reached for name, probe in probes.items()},
    )
    causes = []
    for row in HOST_ROWS:
        found: Sequence[Found] = row.signature(view)
        plain = Row(row.name, row.title, ("before",), lambda picture: None, row.query, row.fix)
        causes += [Cause(plain, each, each.score) for each in found]
    causes.sort(key=lambda each: -each.score)
    checked = (
        f"{len(probes)} hosts: {', '.join(probes)}"
        if len(probes) > 1
        else f"the host {next(iter(probes))}"
    )
    seen = f"{checked}; {len(view.hosts)} answered"
    return Diagnosis(Picture({"is_after": True}), tuple(causes[:_MOST]), seen, "before")
