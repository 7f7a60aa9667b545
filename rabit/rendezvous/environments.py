"""The marks that launchers leave in the environment of the processes they start.

Each launcher is one function from the environment to `JobMarks`, or None when it has not started
this process.  The first that answers wins: the innermost launcher comes first, because torchrun
may run under srun, and mpirun inside an allocation of Slurm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rabit.errors import InvalidArgument

__all__ = ["JobMarks", "expand_host_list", "expand_task_counts", "read_marks"]

_MOST_RANKS = 65_536


class JobMarks(NamedTuple):
    """What a launcher tells one process.

    job: text that is equal on all ranks of the job and differs between jobs that run at once.
    first_host: address of rank 0's host, or "" when the launcher does not tell.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    job: str = ""
    first_host: str = ""


def read_marks(environ: Mapping[str, str]) -> JobMarks | None:
    """The marks of the innermost launcher, or None.  Raises InvalidArgument if they contradict."""
    is_size_alone = bool(environ.get("RABIT_SIZE")) and not environ.get("RABIT_RANK")
    # In an Indexed Job it counts the pods, in which torchrun may start several ranks each.
    must_agree = is_size_alone and not environ.get("JOB_COMPLETION_INDEX")
    for reader in _READERS[1:] if is_size_alone else _READERS:
        marks = reader(environ)
        if marks is None:
            continue
        if must_agree and str(marks.size) != environ["RABIT_SIZE"].strip():
            raise InvalidArgument(
                f"RABIT_SIZE is {environ['RABIT_SIZE']!r}, but {marks.launcher} has started {marks.size} ranks. "
                "Unset RABIT_SIZE, or start as many ranks as it says."
            )
        return marks
    return _rabitrun(environ) if is_size_alone else None


def _rabitrun(environ: Mapping[str, str]) -> JobMarks | None:
    if not environ.get("RABIT_SIZE") and not environ.get("RABIT_RANK"):
        return None
    return _Reader("rabitrun", environ).marks(
        rank="RABIT_RANK",
        size="RABIT_SIZE",
        local_rank="RABIT_LOCAL_RANK",
        local_size="RABIT_LOCAL_SIZE",
        cross_rank="RABIT_CROSS_RANK",
        cross_size="RABIT_CROSS_SIZE",
        fix="Unset them, or start the job with rabitrun, which sets them all.",
    )


def _torchrun(environ: Mapping[str, str]) -> JobMarks | None:
    # WORLD_SIZE alone is a habit of batch scripts, which start the ranks by other means.
    if not environ.get("RANK") or not environ.get("WORLD_SIZE"):
        return None
    job = " ".join(
        environ.get(name, "")
        for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    )
    return _Reader("torchrun", environ).marks(
        rank="RANK",
        size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_size="LOCAL_WORLD_SIZE",
        cross_rank="GROUP_RANK",
        cross_size="GROUP_WORLD_SIZE",
        job=job,
        first_host=environ.get("MASTER_ADDR", ""),
        fix="Start the ranks with torchrun or rabitrun, which set them all.",
    )


def _open_mpi(environ: Mapping[str, str]) -> JobMarks | None:
    if not environ.get("OMPI_COMM_WORLD_RANK"):
        return None
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or _parent_job()
    return _Reader("mpirun (Open MPI)", environ).marks(
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        job=job,
        fix="Start the job with Open MPI's mpirun, which sets them all.",
    )


def _hydra(environ: Mapping[str, str]) -> JobMarks | None:
    if not environ.get("PMI_RANK") or not environ.get("PMI_SIZE"):
        return None
    if environ.get("SLURM_STEP_ID") and not environ.get("MPI_LOCALRANKID"):
        return None  # Slurm's PMI plug-in: its own variables tell more.
    return _Reader("mpiexec (MPICH)", environ).marks(
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        job=_parent_job(),
        fix="Start the job with MPICH's or Intel MPI's mpiexec, which set them all.",
    )


def _slurm(environ: Mapping[str, str]) -> JobMarks | None:
    # Only a step has tasks; the batch script itself also carries SLURM_PROCID and SLURM_NTASKS.
    if not environ.get("SLURM_STEP_ID") or not environ.get("SLURM_PROCID"):
        return None
    reader = _Reader("srun (Slurm)", environ)
    size_name = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    counts_name = (
        "SLURM_STEP_TASKS_PER_NODE"
        if environ.get("SLURM_STEP_TASKS_PER_NODE")
        else "SLURM_TASKS_PER_NODE"
    )
    size = reader.number(size_name)
    local_rank = reader.number("SLURM_LOCALID")
    node = reader.number("SLURM_NODEID", default=0)
    counts = expand_task_counts(environ.get(counts_name, ""), counts_name) or [size]
    if node >= len(counts) or sum(counts) != size:
        raise InvalidArgument(
            f"the variables of srun contradict each other: {size_name}={size}, "
            f"SLURM_NODEID={node}, {counts_name}={environ.get(counts_name, '')!r}. Start the "
            "ranks as one step: srun -n RANKS python train.py."
        )
    # The launch node of SLURM_LAUNCH_NODE_IPADDR is where srun was typed, not where rank 0 runs.
    hosts_name = "SLURM_STEP_NODELIST" if environ.get("SLURM_STEP_NODELIST") else "SLURM_NODELIST"
    hosts = expand_host_list(environ.get(hosts_name, ""), hosts_name)
    with_my_rank = [ranks for ranks, count in enumerate(counts) if count > local_rank]
    return reader.checked(
        JobMarks(
            launcher="srun (Slurm)",
            rank=reader.number("SLURM_PROCID"),
            size=size,
            local_rank=local_rank,
            local_size=counts[node],
            cross_rank=with_my_rank.index(node) if node in with_my_rank else 0,
            cross_size=max(1, len(with_my_rank)),
            job=f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}",
            first_host=hosts[0] if hosts else "",
        ),
        ("SLURM_PROCID", size_name, "SLURM_LOCALID", counts_name),
        "Start the ranks as one step: srun -n RANKS python train.py.",
    )


def _pals(environ: Mapping[str, str]) -> JobMarks | None:
    # HPE's launcher, of Cray systems.
    if not environ.get("PALS_RANKID"):
        return None
    local_size = "PALS_LOCAL_SIZE" if environ.get("PALS_LOCAL_SIZE") else "PMI_LOCAL_SIZE"
    return _Reader("mpiexec (PALS)", environ).marks(
        rank="PALS_RANKID",
        size="PMI_SIZE",
        local_rank="PALS_LOCAL_RANKID",
        local_size=local_size,
        job=environ.get("PALS_APID") or environ.get("PBS_JOBID", ""),
        fix="Start the job with PALS's mpiexec or aprun, which set them all.",
    )


def _jsm(environ: Mapping[str, str]) -> JobMarks | None:
    # IBM's jsrun.
    if not environ.get("JSM_NAMESPACE_RANK"):
        return None
    return _Reader("jsrun", environ).marks(
        rank="JSM_NAMESPACE_RANK",
        size="JSM_NAMESPACE_SIZE",
        local_rank="JSM_NAMESPACE_LOCAL_RANK",
        local_size="JSM_NAMESPACE_LOCAL_SIZE",
        job=f"{environ.get('LSB_JOBID', '')} {environ.get('JSM_NAMESPACE_ID', '')}",
        fix="Start the job with jsrun, which sets them all.",
    )


def _flux(environ: Mapping[str, str]) -> JobMarks | None:
    if not environ.get("FLUX_TASK_RANK"):
        return None
    reader = _Reader("flux run", environ)
    rank, size = reader.number("FLUX_TASK_RANK"), reader.number("FLUX_JOB_SIZE")
    nodes = max(1, reader.number("FLUX_JOB_NNODES", default=1))
    if size % nodes:
        raise InvalidArgument(
            f"flux run started {size} tasks on {nodes} nodes: FLUX_JOB_SIZE is not a multiple of FLUX_JOB_NNODES, and "
            "Flux does not tell how many are on each. Use the same number on each node."
        )
    here = size // nodes
    return reader.checked(
        JobMarks(
            launcher="flux run",
            rank=rank,
            size=size,
            local_rank=reader.number("FLUX_TASK_LOCAL_ID"),
            local_size=here,
            cross_rank=rank // here,
            cross_size=nodes,
            job=environ.get("FLUX_JOB_ID", ""),
        ),
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"),
        "Start the ranks with flux run.",
    )


def _indexed_job(environ: Mapping[str, str]) -> JobMarks | None:
    """A pod of an Indexed Job of Kubernetes is one rank; its manifest gives RABIT_SIZE and where rank 0 is."""
    if not environ.get("JOB_COMPLETION_INDEX") or not environ.get("RABIT_SIZE"):
        return None
    reader = _Reader("Kubernetes", environ)
    rank, size = reader.number("JOB_COMPLETION_INDEX"), reader.number("RABIT_SIZE")
    marks = JobMarks(
        launcher="Kubernetes",
        rank=rank,
        size=size,
        local_rank=0,
        local_size=1,
        cross_rank=rank,
        cross_size=size,
        job=environ.get("RABIT_JOB_NAME") or environ.get("HOSTNAME", "").rpartition("-")[0],
    )
    fix = "Set RABIT_SIZE to the completions of the Job."
    return reader.checked(marks, ("JOB_COMPLETION_INDEX", "RABIT_SIZE"), fix)


_READERS: tuple[Callable[[Mapping[str, str]], JobMarks | None], ...] = (
    _rabitrun,
    _torchrun,
    _open_mpi,
    _pals,
    _jsm,
    _flux,
    _hydra,
    _slurm,
    _indexed_job,
)


class _Reader:
    """Reads and checks the variables of one launcher."""

    def __init__(self, launcher: str, environ: Mapping[str, str]) -> None:
        self._launcher = launcher
        self._environ = environ

    def number(self, name: str, default: int | None = None, fix: str = "") -> int:
        text = self._environ.get(name, "").strip()
        if not text and default is not None:
            return default
        if not text:
            raise InvalidArgument(
                f"{self._launcher} started this process, as other variables tell, but {name} is "
                f"not set. {fix or 'Start the job with ' + self._launcher + ' or rabitrun.'}"
            )
        if not (text.isascii() and text.isdigit()) or int(text) > _MOST_RANKS:
            raise InvalidArgument(
                f"{name} is {text!r}, which is not valid: expected a number between 0 and "
                f"{_MOST_RANKS}. Unset the variables of {self._launcher} or correct them."
            )
        return int(text)

    def marks(
        self,
        *,
        rank: str,
        size: str,
        local_rank: str,
        local_size: str,
        fix: str,
        cross_rank: str = "",
        cross_size: str = "",
        job: str = "",
        first_host: str = "",
    ) -> JobMarks:
        """Reads the variables of these names and checks them.

        Without variables for them, the cross numbers follow from ranks in blocks of local_size.
        """
        # The names a user would set by hand may lack the local ones only in a job of one rank.
        is_alone = self.number(size, fix=fix) == 1
        here, count = (
            self.number(local_rank, default=0 if is_alone else None, fix=fix),
            self.number(local_size, default=1 if is_alone else None, fix=fix),
        )
        first = self.number(rank, fix=fix)
        total = self.number(size, fix=fix)
        blocks = max(1, -(-total // max(1, count)))
        return self.checked(
            JobMarks(
                launcher=self._launcher,
                rank=first,
                size=total,
                local_rank=here,
                local_size=count,
                cross_rank=self.number(cross_rank, default=first // max(1, count), fix=fix),
                cross_size=self.number(cross_size, default=blocks, fix=fix),
                job=job,
                first_host=first_host,
            ),
            (rank, size, local_rank, local_size, cross_rank, cross_size),
            fix,
        )

    def checked(self, marks: JobMarks, names: tuple[str, ...], fix: str) -> JobMarks:
        """`marks`, if ranks lie below sizes and the local size below the whole.

        Local ranks need not follow the order of ranks: Open MPI permutes them when it has more
        ranks than cores.
        """
        is_consistent = (
            marks.rank < marks.size
            and marks.local_rank < marks.local_size <= marks.size
            and marks.cross_rank < marks.cross_size <= marks.size
        )
        if is_consistent:
            return marks
        shown = ", ".join(f"{name}={self._environ.get(name, '(unset)')}" for name in names if name)
        raise InvalidArgument(
            f"the variables of {self._launcher} contradict each other: {shown}. Every rank must "
            f"lie below its size, and the local size must not exceed the size. {fix}"
        )


def _parent_job() -> str:
    """Names the launcher process above this one: the nearest ancestor that starts MPI ranks."""
    from pathlib import Path

    from rabit.rendezvous.meeting_file import start_time

    pid = os.getppid()
    nearest = pid
    for _ in range(8):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            break
        if name.startswith(("hydra_pmi_proxy", "mpiexec", "mpirun", "orterun", "prte", "orted")):
            nearest = pid
            break
        pid = int(status[1])
        if pid <= 1:
            break
    return f"{nearest} {start_time(nearest)}"


def expand_host_list(text: str, source: str) -> list[str]:
    """The hosts of a Slurm list such as "gpu[01-03,7],login1", in order.

    Raises InvalidArgument for text that is not such a list or names more than 65,536 hosts.
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        names = [""]
        for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part):
            ends = _expand_range(piece[1:-1], source) if piece[0] == "[" else [piece]
            if len(names) * len(ends) > _MOST_RANKS:
                raise InvalidArgument(f"{source} is {text!r}, which names too many hosts.")
            names = [name + end for name in names for end in ends]
        hosts.extend(names)
    is_well_formed = text.count("[") == text.count("]") and len(hosts) <= _MOST_RANKS
    if not is_well_formed or not all(re.fullmatch(r"[A-Za-z0-9._:-]+", host) for host in hosts):
        raise InvalidArgument(
            f"{source} is {text!r}, which is not a list of hosts such as node[01-04]. Correct it, or "
            "set RABIT_STORE_ADDRESS to host:port of rank 0."
        )
    return hosts


def _expand_range(text: str, source: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or high < low or high - low >= _MOST_RANKS:
            raise InvalidArgument(
                f"{source} holds the range {part!r}, which is neither a number nor low-high. Correct it, "
                "or set RABIT_STORE_ADDRESS to host:port of rank 0."
            )
        found.extend(f"{number:0{len(match[1])}d}" for number in range(low, high + 1))
    return found


def expand_task_counts(text: str, source: str) -> list[int]:
    """Tasks of each node from Slurm's "2(x3),1", which is [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(",") if text else []:
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if match is None or len(counts) + int(match[2] or 1) > _MOST_RANKS:
            raise InvalidArgument(
                f"{source} is {text!r}, which is not a list of task counts such as 2(x3),1. "
                "Correct it or start the job with srun."
            )
        counts.extend([int(match[1])] * int(match[2] or 1))
    return counts
