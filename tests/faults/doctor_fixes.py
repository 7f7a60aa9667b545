"""Applies the doctor's fixes as they are printed: python tests/faults/doctor_fixes.py [--only NAME,NAME] [--seed 0].

Only of faults whose fix is a command or a setting.  The words of the fix are taken from its text; what they leave to
the user (a number, a host) is what the doctor has filled in.  A fix works if the doctor does not find that fault again.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults import doctor_places as places
from faults.doctor_faults import (
    BEFORE,
    INJECTIONS,
    RANKS,
    Place,
    _wait_until_met,
    doctor,
    job,
)


def _printed(fix: str, pattern: str) -> str:
    """The part of a fix that a user pastes."""
    found = re.search(pattern, fix)
    assert found is not None, f"the fix has no {pattern!r}: {fix}"
    return found[0]


def _in_shell(pattern: str) -> Callable[[Place, str], None]:
    """Runs the command that the fix holds."""
    return lambda place, fix: (
        subprocess.run(["sh", "-c", _printed(fix, pattern)], check=True) and None
    )


def _on_host(pattern: str, more: str = "") -> Callable[[Place, str], None]:
    """The host's shell runs the command that the fix holds, after what made the fault."""

    def apply(place: Place, fix: str) -> None:
        setup = place.folder / f"setup-{place.who}"
        setup.write_text(f"{setup.read_text()}\n{_printed(fix, pattern)}\n{more}\n")

    return apply


def _in_every_host(pattern: str) -> Callable[[Place, str], None]:
    def apply(place: Place, fix: str) -> None:
        assert place.lab is not None
        for host in range(places.HOSTS):
            words = shlex.split(_printed(fix, pattern))
            subprocess.run([*place.lab.command(host), *words], check=True, capture_output=True)

    return apply


def _raise_quota(place: Place, fix: str) -> None:
    assert "raise" in fix, fix
    for folder in Path("/sys/fs/cgroup/cpu").rglob("rabit-doctor-*"):
        (folder / "cpu.cfs_quota_us").write_text("-1")


def _name_in_hosts(place: Place, fix: str) -> None:
    """Adds the host to its /etc/hosts, or corrects its line there."""
    assert "/etc/hosts" in fix, fix
    good = (place.folder / f"hosts-{place.who}").read_text()
    setup = place.folder / f"setup-{place.who}"
    setup.write_text(f"{setup.read_text()}\ncat > /etc/hosts <<'END'\n{good}END\n")


def _open_ports(place: Place, fix: str) -> None:
    assert "open ports above 1024" in fix, fix
    assert place.lab is not None
    subprocess.run(
        [*place.lab.command(place.who), "ip", "rule", "del", "pref", "32765"], check=True
    )


# Those that change the job that runs, or the host; and those that are words for the next start.
APPLY: dict[str, Callable[[Place, str], None]] = {
    "stopped": _in_shell(r"kill -CONT [\d ]+"),
    "throttled": _raise_quota,
    "quota": _raise_quota,
    "left-over": _in_shell(r"kill [\d ]+"),
    "few-files": _on_host(r"ulimit -n \d+"),
    "small-shm": _on_host(r"--shm-size=1g", "mount -t tmpfs -o size=1g tmpfs /dev/shm"),
    "loopback-name": _name_in_hosts,
    "slow-names": _name_in_hosts,
    "unreachable": _open_ports,
    "unreachable/silent": _open_ports,
    "data-stuck": _in_every_host(r"sysctl -w net.ipv4.tcp_mtu_probing=2"),
}
AGAIN = {
    "oversubscribed": r"OMP_NUM_THREADS=(\d+)",
    "one-thread": r"OMP_NUM_THREADS=(\d+)",
}


def works(fault: str, who: int, strength: float) -> str:
    """What the doctor finds of the fault after the fix: "", or why it has not worked."""
    injection = INJECTIONS[fault]
    name = fault.partition("/")[0]
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder, contextlib.ExitStack() as stack:
        place = Place(Path(folder), who % injection.ranks, strength)
        place.environ["RABIT_HEARTBEAT_TIMEOUT"] = (
            "60"  # A job that is repaired has to live so long.
        )
        prefix = stack.enter_context(injection.around(place)) if injection.around else []
        ask = ["-H", places.hosts_of(place)] if injection.when == BEFORE else []
        running = contextlib.ExitStack()
        with running:
            if injection.when != BEFORE:
                running.enter_context(job(place, fault, injection, prefix))
                _wait_until_met(place.folder, injection.ranks, injection.wait_s)
            fix = _fix_of(doctor(place, *ask), name)
            if not fix:
                return "the doctor does not find it"
            if fault in APPLY:
                APPLY[fault](place, fix)
                time.sleep(3.0)
                return _still(place, ask, name)
        threads = re.search(AGAIN[fault], fix)
        assert threads is not None, fix
        with tempfile.TemporaryDirectory(prefix="doctor-") as second:
            place = Place(Path(second), place.who, strength)
            stack.enter_context(job(place, fault, _with_threads(fault, int(threads[1])), prefix))
            _wait_until_met(place.folder, injection.ranks, injection.wait_s)
            return _still(place, ask, name)


def _with_threads(fault: str, threads: int):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(INJECTIONS[fault], threads=threads)


def _fix_of(document: dict, name: str) -> str:  # type: ignore[type-arg]
    return next((cause["fix"] for cause in document["causes"] if cause["class"] == name), "")


def _still(place: Place, ask: list[str], name: str) -> str:
    document = doctor(place, *ask)
    if document["phase"] not in ("running", "before"):
        return f"the job is {document['phase']}"
    return f"found again: {document['causes']}" if _fix_of(document, name) else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--seed", default="0")
    parsed = parser.parse_args()
    if why := places.missing():
        print(f"skipped: {why}")
        return 0
    chosen = parsed.only.split(",") if parsed.only else [*APPLY, *AGAIN]
    bad = 0
    for fault in chosen:
        dice = random.Random(f"{parsed.seed} {fault}")
        why = works(fault, dice.randrange(RANKS), dice.uniform(1.5, 4.0))
        bad += bool(why)
        print(f"{fault}: {why or 'works'}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} fixes work as printed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
