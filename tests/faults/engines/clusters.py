"""Engines of clusters: Slurm by srun and by sbatch, pods of Kubernetes, pods of the MPI Operator."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from faults.engines.launchers import InNamespaces
from faults.engines.process import (
    LIMIT_S,
    RABITRUN_LOGS,
    RABITRUN_STATUSES,
    SIZE,
    Ended,
    Engine,
    by_command,
    kill,
    parent,
    rabitrun_words,
    rank_words,
)  # fmt: skip
from support import slurm_lab, sshd


class Srun(Engine):
    """A step of two nodes.  A node is lost with its slurmd and all that this has started."""

    name = "Slurm, srun"
    statuses: Mapping[str, int] = {"rank dies": 137}

    def __init__(self) -> None:
        self.lab: dict[str, str] = {}

    def missing(self) -> str:
        return slurm_lab.missing()

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        with slurm_lab.slurm_lab() as lab:
            # The names of its nodes are known to Slurm alone.
            self.lab = {**lab, "RABIT_NETWORK_INTERFACES": "lo", "RABIT_BIND_ADDRESS": "127.0.0.1"}
            yield

    def command(self, case: str, folder: Path) -> list[str]:
        return [
            "srun",
            "--job-name",
            folder.name,
            *self._where(),
            "--mpi=pmi2",
            *rank_words(case, folder),
        ]

    @staticmethod
    def _where() -> list[str]:
        return ["-N2", f"-n{SIZE}", f"--ntasks-per-node={SIZE // 2}"]

    def environ(self, case: str, folder: Path) -> Mapping[str, str]:
        return {**self.lab, **({"RABIT_SIZE": str(SIZE + 1)} if case == "wrong count" else {})}

    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        node = by_command("slurmd", "-N n2")
        kill([*node, *_below(node), *_steps(ranks[SIZE // 2 :]), *ranks[SIZE // 2 :]])

    def stop(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        self._slurm("scancel", "--signal=USR1", self.number())

    def number(self) -> str:
        return self._slurm("squeue", "-h", "-o", "%A").split()[0]

    def _slurm(self, *words: str) -> str:
        environ = {**os.environ, **self.lab}
        return subprocess.run(
            words, env=environ, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def run(self, case: str, folder: Path) -> Ended:
        self._revive()
        return super().run(case, folder)

    def _revive(self) -> None:
        """A node that a case before has lost comes back."""
        if not by_command("slurmd", "-N n2"):
            subprocess.Popen(
                ["slurmd", "-D", "-c", "-N", "n2"], env={**os.environ, **self.lab}, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + LIMIT_S
        while self._slurm("sinfo", "-h", "-N", "-o", "%T").split().count("idle") < 2:
            assert time.monotonic() < deadline, self._slurm("sinfo", "-N", "-l")
            time.sleep(0.2)


class Sbatch(Srun):
    """rabitrun in a batch script starts the ranks by steps of srun.  The status is that of `sbatch --wait`."""

    name = "Slurm, sbatch"
    statuses = RABITRUN_STATUSES
    logs = RABITRUN_LOGS

    def command(self, case: str, folder: Path) -> list[str]:
        size = SIZE + 1 if case == "wrong count" else SIZE
        words = [*rabitrun_words("--launcher", "srun", "-np", str(size)), *rank_words(case, folder)]
        script = folder / "job.sh"
        script.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
        output = f"--output={folder}/job.log"
        return ["sbatch", "--wait", "--no-requeue", *self._where(), output, str(script)]

    def environ(self, case: str, folder: Path) -> Mapping[str, str]:
        return self.lab

    def stop(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        self._slurm("scancel", "--batch", "--signal=USR1", self.number())

    def log(self, folder: Path) -> str:
        path = folder / "job.log"
        return super().log(folder) + (path.read_text(errors="replace") if path.exists() else "")


class IndexedJob(InNamespaces):
    """Pods with the variables of docs/deploy/kubernetes/indexed-job.yaml, each with a network of its own.

    The status is the first of a pod that is not zero, as the Job has it.  Eviction of a pod is SIGTERM.
    """

    name = "Kubernetes, Indexed Job"
    logs: Mapping[str, str] = {"wrong count": r"rank 4 has not appeared"}
    hosts = SIZE

    def command(self, case: str, folder: Path) -> list[str]:
        pods = [[*self.lab.command(rank), *rank_words(case, folder)] for rank in range(SIZE)]
        starts = " ".join(
            f'JOB_COMPLETION_INDEX={rank} {shlex.join(words)} & pods="$pods $!";'
            for rank, words in enumerate(pods)
        )
        return ["sh", "-c", f"{starts} s=0; for p in $pods; do wait $p; r=$?; [ $s != 0 ] || s=$r; done; exit $s"]

    def environ(self, case: str, folder: Path) -> Mapping[str, str]:
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_text("the key of a mounted Secret, which all pods have and nobody else")
        return {
            "RABIT_SIZE": str(SIZE + 1 if case == "wrong count" else SIZE),
            "RABIT_STORE_ADDRESS": f"{self.address(0)}:29400",
            "RABIT_SECRET_KEY_FILE": str(key),
            "RABIT_JOB_NAME": "train",
            **self.network(),
        }

    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        for pod in range(SIZE // 2, SIZE):
            self.cut(pod)

    def stop(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        os.kill(ranks[1], signal.SIGTERM)


class MpiOperator(InNamespaces):
    """rabitrun takes the hosts from the operator's file, and reaches sshd in the pods at port 2222."""

    name = "MPI Operator"
    statuses = RABITRUN_STATUSES
    logs = RABITRUN_LOGS

    def __init__(self) -> None:
        super().__init__()
        self._keys = Path()
        self._daemons: dict[int, subprocess.Popen[bytes]] = {}

    def missing(self) -> str:
        return super().missing() or ("" if sshd.SSHD else "OpenSSH's server is not installed")

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        with super().ready(), tempfile.TemporaryDirectory() as name:
            self._keys = Path(name)
            for key in ("host", "user"):
                command = [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-f",
                    str(self._keys / key),
                ]
                subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=30)
            (self._keys / "sshd").write_text(
                f"Port 2222\nHostKey {name}/host\nPidFile none\nStrictModes no\nUsePAM no\n"
                f"PasswordAuthentication no\nAuthorizedKeysFile {name}/user.pub\nMaxStartups 100\n"
            )
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
            try:
                yield
            finally:
                for daemon in self._daemons.values():
                    daemon.kill()
                    daemon.wait()

    def run(self, case: str, folder: Path) -> Ended:
        for host in range(self.hosts):
            if host not in self._daemons or self._daemons[host].poll() is not None:
                command = [
                    *self.lab.command(host),
                    str(sshd.SSHD),
                    "-D",
                    "-f",
                    str(self._keys / "sshd"),
                ]
                self._daemons[host] = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        return super().run(case, folder)

    def command(self, case: str, folder: Path) -> list[str]:
        ssh = [
            "--ssh-port", "2222", "--ssh-identity-file", str(self._keys / "user"),
            "--ssh-option", "StrictHostKeyChecking=accept-new", "--ssh-option", f"UserKnownHostsFile={folder}/known",
        ]  # fmt: skip
        count = ["-np", str(SIZE + 1)] if case == "wrong count" else []
        return [*rabitrun_words(*ssh, *count), *rank_words(case, folder)]

    def environ(self, case: str, folder: Path) -> Mapping[str, str]:
        hosts = folder / "hostfile"
        hosts.write_text(
            "".join(f"{self.address(host)} slots={SIZE // 2}\n" for host in range(self.hosts))
        )
        return {"OMPI_MCA_orte_default_hostfile": str(hosts), "K_MPI_JOB_ROLE": "launcher"}


def _steps(ranks: Sequence[int]) -> list[int]:
    """What Slurm has started on the node of these ranks, outermost first: its own processes, and those above ranks."""
    found: list[int] = []
    for pid in ranks:
        with contextlib.suppress(OSError):
            above, chain = parent(pid), []
            while above > 1:
                chain.insert(0, above)
                above = parent(above)
            firsts = [place for place, each in enumerate(chain) if "slurmstepd" in _name(each)]
            found += chain[firsts[0] :] if firsts else []
    return found


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def _below(pids: Sequence[int]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if parent(int(entry.name)) in pids:
                found.append(int(entry.name))
    return found
