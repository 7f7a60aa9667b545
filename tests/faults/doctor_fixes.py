"""Applies the doctor's fixes as they are printed: python tests/faults/doctor_fixes.py [--only NAME,NAME] [--seed 0].

Only of faults whose fix is a command, a setting, or a call in the program.  The words of the fix are taken from its
text; what they leave to the user (a number, a host) is what the doctor has filled in.  A fix works if the job that
runs, or the next one, has that fault no more and trains.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.links import unwinding
from faults import doctor_places as places
from faults.doctor_faults import (
    AFTER,
    BEFORE,
    INJECTIONS,
    RANKS,
    SCRIPT,
    Injection,
    Place,
    _from_block,
    _wait_until_met,
    doctor,
    job,
)

Apply = Callable[[Place, str], None]


def _printed(fix: str, pattern: str) -> str:
    """The part of a fix that a user takes: the group of the pattern, or all of it."""
    found = re.search(pattern, fix)
    assert found is not None, f"the fix has no {pattern!r}: {fix}"
    return found[found.re.groups]


def _in_shell(pattern: str) -> Apply:
    """Runs the command that the fix holds."""
    return lambda place, fix: (
        subprocess.run(["sh", "-c", _printed(fix, pattern)], check=True) and None
    )


def _on_host(pattern: str, command: str = "") -> Apply:
    """The host's shell runs the command that the fix holds, after what made the fault.

    command: what does here what the fix says, {} for its group.
    """

    def apply(place: Place, fix: str) -> None:
        setup = place.folder / f"setup-{place.who}"
        found = _printed(fix, pattern)
        setup.write_text(f"{setup.read_text()}\n{command.format(found) or found}\n")

    return apply


def _in_every_host(pattern: str) -> Apply:
    def apply(place: Place, fix: str) -> None:
        assert place.lab is not None
        for host in range(places.HOSTS):
            words = shlex.split(_printed(fix, pattern))
            subprocess.run([*place.lab.command(host), *words], check=True, capture_output=True)

    return apply


def _in_group(controller: str, name: str, words: str) -> Apply:
    """Takes away a limit of the control group."""

    def apply(place: Place, fix: str) -> None:
        _printed(fix, words)
        for folder in Path(f"/sys/fs/cgroup/{controller}").rglob(f"rabit-doctor-{os.getpid()}"):
            (folder / name).write_text("-1")

    return apply


def _kill_left_over(place: Place, fix: str) -> None:
    """Ends the rank that this program has left, and none of others."""
    assert place.sign in _printed(fix, r"kill [\d ]+").split(), fix
    os.kill(int(place.sign), signal.SIGTERM)


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


def _add_address(place: Place, fix: str) -> None:
    """Gives the host an address of the family that it lacks."""
    assert place.lab is not None
    _printed(fix, f"give {place.lab.address(place.who)} an IPv4 address")
    words = ["ip", "address", "add", f"{place.lab.address(place.who)}/24", "dev", "eth0"]
    subprocess.run([*place.lab.command(place.who), *words], check=True)


def _name_other_network(place: Place, fix: str) -> None:
    _printed(fix, "the addresses of eth1 with -H")
    place.network = places.SECOND_NETWORK


def _copy_program(place: Place, fix: str) -> None:
    """Gives all ranks the program that most have."""
    shutil.copy(SCRIPT, Path(place.environ["DOCTOR_OTHER"]).parent / _printed(fix, r"copy one (\S+) to all hosts"))


def _copy_data(place: Place, fix: str) -> None:
    """Reads from a local disk what a slow one holds."""
    _printed(fix, "copy the data to a local disk")
    with Path(place.environ["DOCTOR_FILE"]).open("rb") as file:
        _elsewhere(place).write_bytes(file.read(1 << 18))


def _elsewhere(place: Place) -> Path:
    found = Path(place.environ["DOCTOR_FILE"]).parents[1] / "elsewhere"
    place.environ["DOCTOR_FILE"] = str(found)
    return found


def _write_elsewhere(place: Place, fix: str) -> None:
    _printed(fix, "write elsewhere")
    _elsewhere(place)


def _in_program(pattern: str) -> Apply:
    """doctor_ranks.py, or the shell around the job, does what the fix says."""
    return lambda place, fix: place.environ.update(DOCTOR_FIX=_printed(fix, pattern))


def _in_environment(name: str) -> Apply:
    return lambda place, fix: place.environ.update({name: _printed(fix, rf"{name}=(\S+)")})


# Those that change the job that runs, or the hosts of the next one.
NOW: dict[str, Apply] = {
    "stopped": _in_shell(r"kill -CONT [\d ]+"),
    "throttled": _in_group("cpu", "cpu.cfs_quota_us", "raise it"),
    "swapping": _in_group("memory", "memory.limit_in_bytes", "needs more memory"),
    "quota": _in_group("cpu", "cpu.cfs_quota_us", "raise the limit"),
    "left-over": _kill_left_over,
    "few-files": _on_host(r"ulimit -n \d+"),
    "small-shm": _on_host(r"--shm-size=(\w+)", "mount -t tmpfs -o size={} tmpfs /dev/shm"),
    "disk-full/before": _on_host(r"make room on", "mount -o remount,size=1g /tmp"),
    "loopback-name": _name_in_hosts,
    "slow-names": _name_in_hosts,
    "unreachable": _open_ports,
    "unreachable/silent": _open_ports,
    "families-differ": _add_address,
    "slow-network": _name_other_network,
    "apart": _on_host("share one /dev/shm", "umount /dev/shm"),
    "data-stuck": _in_every_host(r"sysctl -w net.ipv4.tcp_mtu_probing=2"),
}
# Those that count from the next start on.
AGAIN: dict[str, Apply] = {
    "oversubscribed": _in_environment("OMP_NUM_THREADS"),
    "one-thread": _in_environment("OMP_NUM_THREADS"),
    "pinned": _in_program(r"remove taskset"),
    "gc": _in_program(r"gc\.freeze\(\)"),
    "gil-held": _in_program(r"ctypes\.(CDLL)"),
    "fork-deadlock": _in_program(r"multiprocessing_context='(\w+)'"),
    "uneven-steps": _in_program(r"rabit\.join\(\)"),
    "left-early": _in_program(r"rabit\.join\(\)"),
    "replicas-differ": _in_program(r"rabit\.broadcast_parameters"),
    "too-many-files": _in_program(r"ulimit -n \d+"),
    "shm-full": _in_program(r"--shm-size=(\w+)"),
    "port-in-use": _in_program(r"use port (\d+)"),
    "ports-exhausted": _in_program(r"sysctl -w .*"),
    "loader-disk": _copy_data,
    "disk-full": _write_elsewhere,
    "program-differs": _copy_program,
    "out-of-memory": _in_group("memory", "memory.limit_in_bytes", "a larger limit"),
}


def works(fault: str, who: int, strength: float) -> str:
    """"": the fault is gone with the fix; else why it has not worked."""
    injection = INJECTIONS[fault]
    name = fault.partition("/")[0]
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder, contextlib.ExitStack() as stack:
        place = Place(Path(folder), who % injection.ranks, strength)
        # A job that is repaired has to live so long.
        place.environ["RABIT_HEARTBEAT_TIMEOUT"] = "60"
        prefix = stack.enter_context(injection.around(place)) if injection.around else []
        with contextlib.ExitStack() as running:
            fix = _fix_of(_asked(place, fault, injection, prefix, running), name)
            if not fix:
                return "the doctor does not find it"
            if fault in NOW:
                NOW[fault](place, fix)
                time.sleep(3.0)
                return _still(place, name, is_before=injection.when == BEFORE)
        AGAIN[fault](place, fix)
        place.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="doctor-")))
        process = stack.enter_context(job(place, fault, injection, prefix))
        _wait_until_met(place, injection.ranks, injection.wait_s)
        if process.poll() is not None:
            return f"the job ended: {(place.folder / 'err').read_text()[-500:]}"
        return _still(place, name)


def _asked(
    place: Place, fault: str, injection: Injection, prefix: list[str], running: contextlib.ExitStack
) -> dict[str, Any]:
    """What the doctor says of the fault; a job that runs with it ends with `running`."""
    if injection.when == BEFORE:
        return doctor(place, "-H", places.hosts_of(place))
    process = running.enter_context(job(place, fault, injection, prefix))
    if injection.when == AFTER:
        process.wait(90)
        return _from_block((place.folder / "err").read_text().splitlines())
    _wait_until_met(place, injection.ranks, injection.wait_s)
    return doctor(place)


def _fix_of(document: dict[str, Any], name: str) -> str:
    return next((str(cause["fix"]) for cause in document["causes"] if cause["class"] == name), "")


def _still(place: Place, name: str, is_before: bool = False) -> str:
    document = doctor(place, *(["-H", places.hosts_of(place)] if is_before else []))
    if document["phase"] not in ("running", "before"):
        return f"the job is {document['phase']}"
    fix = _fix_of(document, name)
    return f"found again: {document['causes']}" if fix and place.sign in fix else ""


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
    chosen = parsed.only.split(",") if parsed.only else [*NOW, *AGAIN]
    bad = 0
    for fault in chosen:
        dice = random.Random(f"{parsed.seed} {fault}")
        why = works(fault, dice.randrange(RANKS), dice.uniform(1.5, 4.0))
        bad += bool(why)
        print(f"{fault}: {why or 'works'}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} fixes work as printed")
    return 1 if bad else 0


if __name__ == "__main__":
    with unwinding():  # What a job's fault has started ends with this program.
        sys.exit(main())
