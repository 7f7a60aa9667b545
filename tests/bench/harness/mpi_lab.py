"""MPI jobs behind shaped links: a daemon of the library in each namespace, started where others start one by ssh."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from .links import Lab
from .ranks import mpi_environ

__all__ = ["in_mpi_lab"]

# Each namespace has a host name of its own: libraries take ranks of one name for neighbours.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec {base}r${{host#lab}} unshare --uts sh -c "hostname $host; $*"
"""


def in_mpi_lab(lab: Lab, library: str, home: Path, timeout: float) -> Callable[[list[str], Path], None]:
    """The `run` of `on_ranks`: one rank of `library` ("openmpi", "mpich") in each namespace.

    home: the folder of an environment with that library, mpi4py and NumPy.
    """
    hosts = ",".join(f"lab{rank}" for rank in range(len(lab.namespaces)))

    def run(words: list[str], folder: Path) -> None:
        agent = folder / "agent"
        agent.write_text(AGENT.format(base=lab.bridge))
        agent.chmod(0o755)
        words_of = {
            "openmpi": ["--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_if_include", f"{lab.gateway}/24",
                        "--bind-to", "none", "--mca", "btl_tcp_if_include", "eth0", "--host", hosts],
            "mpich": ["-launcher", "ssh", "-launcher-exec", str(agent), "-iface", f"{lab.bridge}b0", "-hosts", hosts],
        }  # fmt: skip
        tcp = {each: value for each, value in mpi_environ("tcp").items() if each != "OMPI_MCA_btl_tcp_if_include"}
        path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environ = {**os.environ, **tcp, "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0", "PATH": path}
        programs = [str(home / "bin" / name) for name in ("mpiexec", "python")]
        command = [programs[0], *words_of[library], "-n", str(len(lab.namespaces)), programs[1], *words]
        done = subprocess.run(command, env=environ, timeout=timeout, check=False)
        if done.returncode:
            raise SystemExit(f"the ranks of {library} ended with {done.returncode}")

    return run
