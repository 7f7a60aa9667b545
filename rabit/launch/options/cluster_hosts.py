"""The hosts that a cluster has given this job, from what it leaves in the environment; for a job without -H.

Each cluster is one row: its name, the variables that tell of it, and a function from the environment to hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host, parse_host_lines, parse_hostfile
from rabit.rendezvous.environments import expand_host_list, expand_task_counts

__all__ = ["ClusterHosts", "cluster_hosts", "discovery_script"]

_MPI_HOST_FILES = ("OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")


@dataclass(frozen=True)
class ClusterHosts:
    """hosts: with their slots.  source: the cluster and the variable that names them, for the user."""

    hosts: tuple[Host, ...]
    source: str


def cluster_hosts(environ: Mapping[str, str]) -> ClusterHosts | None:
    """What the cluster says; None: there is none.

    Raises InvalidArgument if what it says is malformed, or if two clusters name different hosts.
    """
    found = [each for each in (read(environ) for read in _READERS) if each is not None]
    for other in found[1:]:
        if set(other.hosts) != set(found[0].hosts):
            raise InvalidArgument(
                f"two sources disagree about the hosts of this job: {_described(found[0])}; {_described(other)}. Give "
                "-H or --hostfile, or unset the variables of the one that is wrong."
            )
    return found[0] if found else None


def discovery_script(environ: Mapping[str, str]) -> Path | None:
    """The script by which the MPI Operator lists the pods that run, for an elastic job; None: there is none."""
    if environ.get("K_MPI_JOB_ROLE") != "launcher":
        return None
    for name in _MPI_HOST_FILES:
        if environ.get(name):
            script = Path(environ[name]).with_name("discover_hosts.sh")
            return script if script.exists() else None
    return None


def _described(found: ClusterHosts) -> str:
    hosts = ",".join(f"{host}:{host.slots}" for host in found.hosts)
    return f"{found.source} has {hosts}"


def _slurm(environ: Mapping[str, str]) -> ClusterHosts | None:
    name = "SLURM_JOB_NODELIST"
    if not environ.get("SLURM_JOB_ID") or not environ.get(name):
        return None
    names = expand_host_list(environ[name], name)
    # Tasks where the job asked for tasks, else processors.
    counts_name = next(
        (each for each in ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE") if environ.get(each)), ""
    )
    counts = expand_task_counts(environ[counts_name], counts_name) if counts_name else [1] * len(names)
    if len(counts) != len(names):
        raise InvalidArgument(
            f"the variables of Slurm contradict each other: {name}={environ[name]!r} names {len(names)} hosts, and "
            f"{counts_name}={environ[counts_name]!r} has {len(counts)}. Name the hosts with -H."
        )
    hosts = tuple(Host(host, count) for host, count in zip(names, counts, strict=True))
    return ClusterHosts(hosts, f"Slurm ({name}, {counts_name})" if counts_name else f"Slurm ({name})")


def _mpi_operator(environ: Mapping[str, str]) -> ClusterHosts | None:
    for name in _MPI_HOST_FILES:
        if environ.get(name):
            hosts = parse_hostfile(Path(environ[name]))
            return ClusterHosts(tuple(hosts), f"the host file of {name}")
    return None


def _host_file(cluster: str, name: str) -> Callable[[Mapping[str, str]], ClusterHosts | None]:
    """Of a cluster whose file has a line for each slot."""

    def read(environ: Mapping[str, str]) -> ClusterHosts | None:
        if not environ.get(name):
            return None
        return ClusterHosts(tuple(parse_hostfile(Path(environ[name]))), f"{cluster} ({name})")

    return read


def _lsf(environ: Mapping[str, str]) -> ClusterHosts | None:
    found = _host_file("LSF", "LSB_DJOB_HOSTFILE")(environ)
    name = "LSB_MCPU_HOSTS"
    if found is not None or not environ.get(name):
        return found
    words = environ[name].split()
    if len(words) % 2:
        raise InvalidArgument(f"{name} is {environ[name]!r}: expected 'host slots host slots'. Name the hosts with -H.")
    lines = (f"{host}:{slots}" for host, slots in zip(words[::2], words[1::2], strict=True))
    return ClusterHosts(tuple(parse_host_lines("\n".join(lines), name)), f"LSF ({name})")


def _grid_engine(environ: Mapping[str, str]) -> ClusterHosts | None:
    name = "PE_HOSTFILE"
    if not environ.get(name):
        return None
    try:
        lines = [line.split() for line in Path(environ[name]).read_text().splitlines() if line.strip()]
    except OSError as error:
        raise InvalidArgument(
            f"the host file {environ[name]} ({name} of Grid Engine) cannot be read: {error}. Name the hosts with -H."
        ) from error
    text = "\n".join(f"{line[0]}:{line[1] if len(line) > 1 else 1}" for line in lines)
    return ClusterHosts(tuple(parse_host_lines(text, name)), f"Grid Engine ({name})")


def _skypilot(environ: Mapping[str, str]) -> ClusterHosts | None:
    name = "SKYPILOT_NODE_IPS"
    if not environ.get(name):
        return None
    slots = environ.get("SKYPILOT_NUM_GPUS_PER_NODE", "")
    count = slots if slots.isdigit() and int(slots) else "1"
    text = "\n".join(f"{host}:{count}" for host in environ[name].split())
    return ClusterHosts(tuple(parse_host_lines(text, name)), f"SkyPilot ({name})")


_READERS: tuple[Callable[[Mapping[str, str]], ClusterHosts | None], ...] = (
    _slurm,
    _mpi_operator,
    _host_file("PBS", "PBS_NODEFILE"),
    _lsf,
    _grid_engine,
    _skypilot,
)
