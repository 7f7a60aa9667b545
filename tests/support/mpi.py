"""What tests over MPI share with the jobs that they start."""

from __future__ import annotations

import os

__all__ = ["PURE_MPI", "pretend_hosts"]

# Everything goes through MPI, inside a host too; without this, one host needs no MPI at all.
PURE_MPI = {"RABIT_MPI_SHM": "0"}


def pretend_hosts(ranks_per_host: int) -> None:
    """Makes so many neighbouring ranks count as those of one host.  Call it before rabit.init()."""
    from mpi4py import MPI

    os.environ["RABIT_HOST_KEY"] = f"host{MPI.COMM_WORLD.rank // ranks_per_host}"
