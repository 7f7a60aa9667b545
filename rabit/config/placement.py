"""Settings: where this process stands in its job."""

from __future__ import annotations

from rabit.config.setting import setting
from rabit.config.settings import Settings

__all__ = ["PlacementSettings"]


class PlacementSettings(Settings, group="placement"):
    """Where this process stands in its job.  The launcher sets these."""

    rank: int = setting(
        0, "Rank of this process among all.", native="rank", minimum=0, level="hidden"
    )
    size: int = setting(
        1, "Number of ranks in the job.", is_equal=True, native="size", minimum=1, level="hidden"
    )
    local_rank: int = setting(
        0,
        "Rank among the processes of this host.",
        minimum=0,
        level="hidden",
    )
    local_size: int = setting(1, "Number of ranks on this host.", minimum=1, level="hidden")
    cross_rank: int = setting(
        0,
        "Position of this host among the hosts that have this local rank.",
        minimum=0,
        level="hidden",
    )
    cross_size: int = setting(
        1,
        "Number of hosts that have this local rank.",
        minimum=1,
        level="hidden",
    )
    restart: int = setting(
        0,
        "How often rabitrun has started this job again; see --max-restarts.",
        is_equal=True,
        minimum=0,
        level="hidden",
    )
    min_np: int = setting(
        0,
        "Ranks with which an elastic job continues, at least, when others are lost; 0: the job is not elastic. "
        "rabitrun --min-np sets it.",
        is_equal=True,
        minimum=0,
        level="hidden",
    )
    max_np: int = setting(
        0,
        "Ranks that an elastic job has at most, when hosts come and lost ranks are replaced; 0: the job "
        "does not grow. rabitrun --max-np and --spares set it.",
        is_equal=True,
        minimum=0,
        level="hidden",
    )
    joins: bool = setting(
        False,
        "This process comes to an elastic job that runs: init() waits until the others have taken it in. "
        "rabitrun sets it.",
        level="hidden",
    )
    host_key: str = setting(
        "",
        "Name that is equal for all ranks of one host; empty: the host name.",
        native="host_key",
        level="hidden",
    )
    store_address: str = setting(
        "",
        "Where the rendezvous store listens, as host:port or [v6]:port.",
        native="store",
        level="hidden",
    )
    store_addresses: str = setting(
        "",
        "Where the stores listen that hold the membership of an elastic job together, as host:port,…; empty: it is "
        "in the one store. rabitrun --store-replicas sets it.",
        level="hidden",
    )
    secret_fd: int = setting(
        -1,
        "Open descriptor from which the secret of the job is read once, as 64 hex digits.",
        minimum=-1,
        level="hidden",
    )
    secret_file: str = setting(
        "",
        "File with the secret of the job as 64 hex digits; must be the user's, mode 0600.",
        flag="--secret-file",
    )
    secret_key_file: str = setting(
        "",
        "File from which the secret is derived, with the name of the job: any that all hosts of the job have and "
        "nobody else, such as a mounted Secret of Kubernetes.",
    )
    job_name: str = setting(
        "",
        "Name of the job, for secret_key_file: jobs that share the file and have different names have different "
        "secrets; empty: what the launcher calls it.",
        level="hidden",
    )
    secret: bytes = setting(
        b"", "Secret of the job: 32 bytes.", kind="secret", native="secret", level="hidden"
    )
