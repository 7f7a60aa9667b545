"""Two nodes of Slurm on this machine, for tests: munged, slurmctld and two slurmd, in a folder of their own.

As a program, `python tests/support/slurm_lab.py COMMAND ...` runs a command in the lab.  Needs root, and the packages
slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol")
_START_S = 60.0
_CONFIG = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={control}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SlurmdTimeout=5
TmpFS={folder}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
"""


def missing() -> str:
    """Why there can be no lab here; "": it can be."""
    if os.getuid() != 0:
        return "the daemons of Slurm need root"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [name for name in NEEDED if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


@contextlib.contextmanager
def slurm_lab() -> Iterator[dict[str, str]]:
    """Inside of the block two nodes run; gives the environment of their clients."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-lab-"))
    folder.chmod(0o755)
    environ = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
    environ["SLURM_CONF"] = str(folder / "slurm.conf")
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        log = (folder / f"{command[0]}-{len(started)}.out").open("wb")
        started.append(
            subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        )

    try:
        _write(folder)
        munge = folder / "munge"
        start("munged", "-F", "-f", f"--key-file={munge}/key", f"--socket={munge}/socket",
              f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log")  # fmt: skip
        _wait_until(lambda: (munge / "socket").exists(), folder)
        start("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            start("slurmd", "-D", "-c", "-N", node)
        _wait_until(lambda: _idle(environ) == 2, folder)
        yield environ
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path) -> None:
    for name in ("munge", "state", "spool-n1", "spool-n2"):
        (folder / name).mkdir(mode=0o755)
    (folder / "munge").chmod(0o755)
    (folder / "munge" / "key").touch(mode=0o600)
    (folder / "munge" / "key").write_bytes(secrets.token_bytes(64))
    base = 20_000 + secrets.randbelow(9_000)
    text = _CONFIG.format(
        host=os.uname().nodename, folder=folder, control=base, first=base + 1, second=base + 2
    )
    (folder / "slurm.conf").write_text(text)


def _idle(environ: dict[str, str]) -> int:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"], env=environ, capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout.split().count("idle")


def _wait_until(is_true: object, folder: Path) -> None:
    assert callable(is_true)
    deadline = time.monotonic() + _START_S
    while not is_true():
        if time.monotonic() > deadline:
            logs = "\n".join(
                f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}"
                for path in [*folder.glob("*.log"), *folder.glob("*.out")]
            )
            raise TimeoutError(f"Slurm's lab has not come up within {_START_S:g} s\n{logs}")
        time.sleep(0.2)


if __name__ == "__main__":
    if reason := missing():
        sys.exit(reason)
    with slurm_lab() as lab:
        sys.exit(subprocess.run(sys.argv[1:], env=lab, check=False).returncode)
