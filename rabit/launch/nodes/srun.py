"""srun as the way to the other hosts of an allocation of Slurm, which need no ssh."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass

from rabit.launch.hosts import Host
from rabit.launch.nodes.way import AGENT

__all__ = ["Srun"]

_REASONS = (
    ("Unable to confirm allocation", "this job of Slurm has ended. Run rabitrun inside of sbatch or salloc"),
    ("not in this job", "the host is not of this allocation. Correct -H, or leave it out"),
    ("No module named", "Python there has no rabit. Install mariza-rabit on {host}, or give --remote-python"),
    ("No such file", "there is no {python} over there. Give --remote-python"),
    ("nodes are busy", "the resources of the job are in use by another step. End it"),
)


@dataclass(frozen=True)
class Srun:
    """One step of a single task for each host, next to others of the same allocation."""

    python: str = ""
    program: str = "srun"
    is_always: bool = False

    def command(self, host: Host, python_path: str = "", module: str = AGENT) -> list[str]:
        """See Way.  The task is not bound: the agent divides the processors of its host."""
        agent = [self.python or sys.executable, "-m", module]
        if python_path:
            agent = ["env", f"PYTHONPATH={python_path}", *agent]
        return [
            "srun", "--overlap", "--nodes=1", "--ntasks=1", "--exact", f"--nodelist={host.name}", "--mpi=none",
            "--cpu-bind=none", "--input=all", "--unbuffered", "--quiet", "--kill-on-bad-exit=0",
            "--wait=0", *agent,
        ]  # fmt: skip

    def by_hand(self, host: Host) -> str:
        """See Way."""
        return f"srun --overlap -N 1 -n 1 -w {host.name} hostname"

    def missing(self) -> str:
        """See Way."""
        if shutil.which("srun") is not None:
            return ""
        return "the program srun is not in PATH. Run rabitrun inside of a job of Slurm, or leave out --launcher srun."

    def explain(self, host: Host, said: str, status: int | None) -> str:
        """See Way."""
        shown = " / ".join(said.splitlines()[-3:]) or "nothing"
        for line in reversed(said.splitlines()):
            for symptom, reason in _REASONS:
                if symptom in line:
                    advice = reason.format(host=host, python=self.python or sys.executable)
                    return f"the ranks on {host} cannot be started: {advice}. (srun said: {shown})"
        return (
            f"the ranks on {host} cannot be started: srun ended with status {status}; it said: {shown}. "
            f"Try by hand: {self.by_hand(host)}"
        )
