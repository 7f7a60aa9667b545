"""rabitrun --launcher srun: inside of a job of Slurm, with a step of srun in the place of each ssh.

All else is as with ssh: the output, the first cause, elastic jobs.  The secret goes through srun's standard input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rabit.errors import InvalidArgument
from rabit.launch.job import Job
from rabit.launch.launchers import ssh
from rabit.launch.nodes.srun import Srun
from rabit.launch.outcome import Outcome

__all__ = ["LACKS", "describe", "run"]

LACKS: Mapping[str, str] = ssh.LACKS


def describe(job: Job) -> str:
    """The plan, one line for each rank; starts nothing."""
    return ssh.describe(_by_srun(job))


def run(job: Job) -> Outcome:
    """Runs the job to its end.  Blocks.  Raises InvalidArgument outside of a job of Slurm."""
    if not job.environ.get("SLURM_JOB_ID"):
        raise InvalidArgument(
            "--launcher srun starts ranks in an allocation of Slurm, and SLURM_JOB_ID is not set. Run rabitrun inside "
            "of sbatch or salloc ('rabitrun submit' writes such a script), or leave out --launcher."
        )
    return ssh.run(_by_srun(job))


def _by_srun(job: Job) -> Job:
    return dataclasses.replace(job, ssh=Srun(job.ssh.python))
