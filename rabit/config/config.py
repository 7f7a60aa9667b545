"""Config: every setting of rabit, typed, in one place; the only reader of the environment.

A value comes from, in this order: an explicit argument, RABIT_<NAME>, the variable of Horovod that
means the same, the configuration file, the default.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rabit.config.environment import from_environment
from rabit.config.setting import Setting, nearest, setting
from rabit.errors import InvalidArgument

__all__ = ["Config", "process_environment"]

_LEVELS = ("debug", "info", "warning", "error", "off")


def process_environment() -> Mapping[str, str]:
    """The environment of this process, as it is now.  Nothing else in the package reads it."""
    return dict(os.environ)


@dataclass(frozen=True)
class Config:
    """Every setting.  Durations are seconds, sizes are bytes.  Values are checked on creation."""

    # Where this process stands in the job.  The launcher sets these.
    rank: int = setting(
        0, "Rank of this process among all.", native="rank", minimum=0, group="placement"
    )
    size: int = setting(
        1, "Number of ranks in the job.", native="size", minimum=1, group="placement"
    )
    local_rank: int = setting(
        0,
        "Rank among the processes of this host.",
        minimum=0,
        group="placement",
    )
    local_size: int = setting(
        1, "Number of ranks on this host.", native="local_size", minimum=1, group="placement"
    )
    cross_rank: int = setting(
        0,
        "Position of this host among the hosts that have this local rank.",
        minimum=0,
        group="placement",
    )
    cross_size: int = setting(
        1,
        "Number of hosts that have this local rank.",
        minimum=1,
        group="placement",
    )
    host_key: str = setting(
        "",
        "Name that is equal for all ranks of one host; empty: the host name.",
        native="host_key",
        group="placement",
    )
    store_address: str = setting(
        "",
        "Where the rendezvous store listens, as host:port or [v6]:port.",
        native="store",
        group="placement",
    )
    secret_fd: int = setting(
        -1,
        "Open descriptor from which the secret of the job is read once, as 64 hex digits.",
        minimum=-1,
        group="placement",
    )
    secret_file: str = setting(
        "",
        "File with the secret of the job as 64 hex digits; must be the user's, mode 0600.",
        flag="--secret-file",
        group="placement",
    )
    secret: bytes = setting(
        b"", "Secret of the job: 32 bytes.", kind="secret", native="secret", group="placement"
    )
    bind_address: str = setting(
        "",
        "Address on which this rank listens; empty: loopback for a job on one host, else the "
        "address of the route to the store.",
        native="bind_address",
        flag="--bind-address",
        group="network",
    )
    network_interfaces: str = setting(
        "",
        "Comma-separated interfaces that may carry traffic; empty: any.",
        flag="--network-interfaces",
        horovod="HOROVOD_GLOO_IFACE",
        group="network",
    )

    # How bytes move.
    backend: str = setting(
        "builtin",
        "Who executes collectives: builtin, mpi, or both with a comma; operations that name none "
        "use the first.",
        native="backend",
        flag="--backend",
        group="network",
    )
    mpi_collectives: str = setting(
        "auto",
        "Backend mpi: the MPI library's collectives, rabit's algorithms over its messages, or "
        "whichever is faster.",
        kind="choice",
        choices=("auto", "library", "messages"),
        native="mpi_collectives",
        flag="--mpi-collectives",
        group="network",
    )
    mpi_shm: bool = setting(
        True,
        "Backend mpi with RABIT_MPI_COLLECTIVES=auto: ranks of one host use rabit's shared memory, "
        "where it works; 0: everything goes through MPI. Ranks that differ: as 0.",
        native="mpi_shm",
        flag="--mpi-shm",
        group="network",
    )
    mpi_message_bytes: int = setting(
        1 << 30,
        "Backend mpi: longer messages are cut into pieces of this size.",
        kind="bytes",
        flag="--mpi-message-bytes",
        minimum=64,
        maximum=(1 << 31) - 1,
        unit="bytes",
        group="network",
    )
    transport: str = setting(
        "auto",
        "Transport between ranks; auto: shared memory inside a host, TCP between hosts.",
        kind="choice",
        choices=("auto", "tcp", "shm"),
        native="transport",
        flag="--transport",
        group="network",
    )
    tcp_connections: int = setting(
        1,
        "TCP connections for each pair of ranks and lane.",
        native="tcp_connections",
        flag="--tcp-connections",
        minimum=1,
        maximum=16,
        group="network",
    )
    tcp_checksum: str = setting(
        "auto",
        "Whether the data that this rank sends over TCP carries checksums; auto: where it leaves "
        "the host. Frame headers always carry one.",
        kind="choice",
        choices=("auto", "on", "off"),
        native="tcp_checksum",
        flag="--tcp-checksum",
        group="network",
    )
    shm_single_copy: bool = setting(
        True,
        "Large shared-memory messages are copied once, from process to process, where the "
        "kernel allows it.",
        native="shm_single_copy",
        flag="--shm-single-copy",
        group="network",
    )
    shm_ring_bytes: int = setting(
        1 << 20,
        "Shared-memory ring for each pair of ranks, lane and direction.",
        kind="bytes",
        native="shm_ring_bytes",
        flag="--shm-ring-bytes",
        minimum=4096,
        maximum=1 << 30,
        unit="bytes",
        group="network",
    )
    connect_timeout: float = setting(
        60.0,
        "How long ranks wait for one another to start and connect.",
        kind="duration",
        native="connect_timeout_ms",
        flag="--connect-timeout",
        minimum=0.1,
        maximum=86400,
        unit="seconds",
        horovod="HOROVOD_GLOO_TIMEOUT_SECONDS",
        group="network",
    )

    # What runs when.
    scheduler: str = setting(
        "priority",
        "Order of communication: by priority, or first come first served.",
        kind="choice",
        choices=("priority", "fifo"),
        native="scheduler",
        flag="--scheduler",
    )
    lanes: int = setting(
        0,
        "Worker threads; each runs one bucket at a time. 0: two, of which only one is used where all "
        "ranks share one host with fewer cores, or with fewer than two for each and backend mpi.",
        native="lanes",
        flag="--lanes",
        minimum=0,
        maximum=64,
    )
    partition_bytes: int = setting(
        4 << 20,
        "Larger tensors are cut into parts of this size.",
        kind="bytes",
        native="partition_bytes",
        flag="--partition-bytes",
        minimum=1,
        maximum=1 << 40,
        unit="bytes",
    )
    fusion_bytes: int = setting(
        64 << 20,
        "Small tensors are sent together up to this size; 0: each alone.",
        kind="bytes",
        native="fusion_bytes",
        flag="--fusion-bytes",
        minimum=0,
        maximum=1 << 40,
        unit="bytes",
        horovod="HOROVOD_FUSION_THRESHOLD",
    )
    credit_bytes: int = setting(
        0,
        "Bytes issued and not yet finished on all ranks, so that urgent tensors overtake; "
        "0: no limit.",
        kind="bytes",
        native="credit_bytes",
        flag="--credit-bytes",
        minimum=0,
        maximum=1 << 40,
        unit="bytes",
    )
    sizes: str = setting(
        "measured",
        "measured: the sizes of partitions, fusion and credit follow from the measured link, unless "
        "one of them is set; fixed: they stay.",
        kind="choice",
        choices=("measured", "fixed"),
        native="sizes",
        flag="--sizes",
    )
    schedule: str = setting(
        "fixed",
        "auto: DistributedOptimizer measures some steps, predicts which overlap is fastest, and "
        'keeps it if it is, as its argument overlap="auto" does.',
        kind="choice",
        choices=("fixed", "auto"),
        flag="--schedule",
    )
    cross_barrier: bool = setting(
        False,
        "DistributedOptimizer overlaps communication with the next forward pass as well, as its "
        'argument overlap="next-forward" does.',
        flag="--cross-barrier",
    )
    allreduce_algorithm: str = setting(
        "",
        "Algorithm of allreduce, such as ring, or rules by size, such as allreduce:64K-inf@ring; "
        "empty: the cheapest for size and ranks.",
        native="allreduce_algorithm",
        flag="--allreduce-algorithm",
    )
    link_model: str = setting(
        "measured",
        "measured: the ranks time a few allreduces when they start, for at most about 50 ms, and "
        "choose algorithms by it; fixed: by the figures of an ordinary network. Rank 0's counts.",
        kind="choice",
        choices=("measured", "fixed"),
        native="link_model",
        flag="--link-model",
    )
    autotune: bool = setting(
        False,
        "Rank 0 tries other sizes while the job trains, and keeps what is faster; see "
        "docs/guides/autotuning.md.",
        flag="--autotune",
        horovod="HOROVOD_AUTOTUNE",
    )
    autotune_knobs: str = setting(
        "partition_bytes,credit_bytes,lanes,overlap,fusion_bytes",
        "What the autotuner may change, with commas, the first four that have a choice; the rest "
        "stays as it is set.",
        flag="--autotune-knobs",
    )
    autotune_log: str = setting(
        "",
        "CSV file to which the autotuner adds every measurement; it begins with what the file "
        "already holds for the same job.",
        flag="--autotune-log",
        horovod="HOROVOD_AUTOTUNE_LOG",
    )
    autotune_cache: str = setting(
        "",
        "Folder in which the autotuner remembers results; off: none; empty: rabit/autotune in "
        "the user's cache folder.",
        flag="--autotune-cache",
    )
    autotune_warmup_samples: int = setting(
        3,
        "Windows that the autotuner passes over at first.",
        flag="--autotune-warmup-samples",
        minimum=1,
        maximum=10_000,
        horovod="HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
    )
    autotune_steps_per_sample: int = setting(
        10,
        "Training steps in a window, at least; windows of short steps last 0.2 s.",
        flag="--autotune-steps-per-sample",
        minimum=1,
        maximum=100_000,
        horovod="HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
    )
    autotune_samples: int = setting(
        20,
        "Combinations that the autotuner measures at most.",
        flag="--autotune-samples",
        minimum=1,
        maximum=200,
        horovod="HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
    )
    deterministic: bool = setting(
        False,
        "Results are bitwise equal from run to run and for every fusion and partition size.",
        native="deterministic",
        flag="--deterministic",
    )
    cache_capacity: int = setting(
        65_536,
        "Signatures whose negotiation is remembered, so that repeating costs one bit; 0: none.",
        native="cache_capacity",
        flag="--cache-capacity",
        minimum=0,
        maximum=1 << 24,
        horovod="HOROVOD_CACHE_CAPACITY",
    )
    spin_us: int = setting(
        -1,
        "How long a wait polls before it sleeps; -1: chosen from the cores and ranks of the host.",
        native="spin_us",
        flag="--spin-us",
        minimum=-1,
        maximum=1_000_000,
        unit="microseconds",
    )

    queue_capacity: int = setting(
        1 << 20,
        "Operations that may be in flight.",
        native="queue_capacity",
        flag="--queue-capacity",
        minimum=1,
        maximum=1 << 28,
    )

    inline_bytes: int = setting(
        1024,
        "A blocking allreduce of at most so many bytes is negotiated with its data and has its "
        "result with the agreement; 0: none. At most 16 KiB divided by the ranks, and only where "
        "rank 0 talks to every rank and the builtin backend is the only one.",
        native="inline_bytes",
        flag="--inline-bytes",
        minimum=0,
        maximum=4096,
    )

    coordination: str = setting(
        "auto",
        "Who talks to whom to agree on what runs: `star` is rank 0 with every rank, `tree` a tree "
        "in which the ranks of a host gather first and ranks between combine what is said below "
        "them; `auto` is the star up to 64 ranks and the tree above.",
        kind="choice",
        choices=("auto", "star", "tree"),
        native="coordination",
        flag="--coordination",
    )
    coordination_fan_out: int = setting(
        8,
        "Of the tree: how many ranks of its own host, and how many leaders of other hosts, are "
        "right below a rank.",
        native="coordination_fan_out",
        flag="--coordination-fan-out",
        minimum=2,
        maximum=1024,
    )

    # When something is wrong.
    stall_warning: float = setting(
        10.0,
        "A tensor that some ranks submitted and others did not is reported after this time; "
        "0: never.",
        kind="duration",
        native="stall_warning_ms",
        flag="--stall-warning",
        minimum=0,
        maximum=86400,
        unit="seconds",
        horovod="HOROVOD_STALL_CHECK_TIME_SECONDS",
        group="failure",
    )
    stall_abort: float = setting(
        0.0,
        "The job is aborted after this time of stall; 0: never.",
        kind="duration",
        native="stall_abort_ms",
        flag="--stall-abort",
        minimum=0,
        maximum=86400,
        unit="seconds",
        horovod="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        group="failure",
    )
    heartbeat_timeout: float = setting(
        10.0,
        "A rank that is silent for this long is lost, even if its connections are open.",
        kind="duration",
        native="heartbeat_timeout_ms",
        flag="--heartbeat-timeout",
        minimum=1,
        maximum=86400,
        unit="seconds",
        group="failure",
    )
    operation_timeout: float = setting(
        0.0,
        "Longest time of one bucket on the network; 0: as long as all peers live.",
        kind="duration",
        native="operation_timeout_ms",
        flag="--operation-timeout",
        minimum=0,
        maximum=86400,
        unit="seconds",
        group="failure",
    )

    # What can be seen.
    log_level: str = setting(
        "warning",
        "Least severe message that is printed.",
        kind="choice",
        choices=_LEVELS,
        native="log_level",
        flag="--log-level",
        horovod="HOROVOD_LOG_LEVEL",
        group="diagnosis",
    )
    timeline: str = setting(
        "",
        "File for the trace of every operation of rank 0, in Chrome's format; {rank} in the name: "
        "of every rank; empty: none.",
        flag="--timeline",
        horovod="HOROVOD_TIMELINE",
        group="diagnosis",
    )
    timeline_mark_cycles: bool = setting(
        False,
        "The trace also marks every negotiation.",
        flag="--timeline-mark-cycles",
        horovod="HOROVOD_TIMELINE_MARK_CYCLES",
        group="diagnosis",
    )
    summary: bool = setting(
        False,
        "Rank 0 prints four lines about what the engine did, at shutdown.",
        flag="--summary",
        group="diagnosis",
    )
    config_file: str = setting(
        "",
        "TOML or YAML file with settings, named as the fields of Config.",
        flag="--config-file",
        group="diagnosis",
    )
    library: str = setting(
        "",
        "Native library to load instead of the installed one; for work on rabit itself.",
        group="diagnosis",
    )

    notices: tuple[str, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        for each in Config.settings():
            each.check(getattr(self, each.name), f"Config.{each.name}")
        for rank_name, size_name in (
            ("rank", "size"),
            ("local_rank", "local_size"),
            ("cross_rank", "cross_size"),
        ):
            rank, size = getattr(self, rank_name), getattr(self, size_name)
            if rank >= size:
                raise InvalidArgument(
                    f"{rank_name} {rank} is not below {size_name} {size}: ranks count from 0. "
                    f"Set RABIT_{rank_name.upper()} and RABIT_{size_name.upper()} together, or "
                    "start the job with rabitrun."
                )
        if self.secret and len(self.secret) != 32:
            raise InvalidArgument(
                f"the secret has {len(self.secret)} bytes: expected 32. Make one with "
                "secrets.token_bytes(32)."
            )

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """The description of every field, in order."""
        return _settings()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
        """The configuration that `environ` (default: the process environment) describes.

        overrides: fields that win over everything else; None leaves the field alone.
        Raises InvalidArgument for an unknown RABIT_ name or a malformed value.
        """
        environ = process_environment() if environ is None else environ
        by_name = {each.name: each for each in cls.settings()}
        given = {name: value for name, value in overrides.items() if value is not None}
        for name in given:
            if name not in by_name:
                raise InvalidArgument(f"Config has no field {name!r}: {nearest(name, by_name)}")

        values = from_environment(environ, by_name)
        values.update(given)
        from rabit.config.horovod import from_horovod

        theirs, notices = from_horovod(environ, by_name)
        path = values.get("config_file")
        lowest: dict[str, Any] = {}
        if path:
            from rabit.config.sources import read_config_file

            lowest = read_config_file(Path(path), by_name)
        return cls(**{**lowest, **theirs, **values}, notices=tuple(notices))

    def replace(self, **changes: Any) -> Config:
        """A copy with `changes`."""
        return dataclasses.replace(self, **changes)

    def to_options(self, **extra: object) -> str:
        """The text for rabit_start: one line key=value for each native setting that is not empty.

        extra: native keys that are no setting, such as epoch.
        """
        lines = []
        for each in self.settings():
            value = getattr(self, each.name)
            if each.native and value not in ("", b""):
                lines.append(f"{each.native}={each.native_value(value)}")
        lines.extend(f"{key}={value}" for key, value in extra.items())
        return "\n".join(lines) + "\n"

    def to_environ(self) -> dict[str, str]:
        """The variables that describe what differs from the defaults; never the secret."""
        return {
            each.variable: each.format(getattr(self, each.name))
            for each in self.settings()
            if each.variable and getattr(self, each.name) != each.default
        }


@functools.cache
def _settings() -> tuple[Setting, ...]:
    return tuple(
        Setting(name=each.name, default=each.default, **each.metadata)
        for each in dataclasses.fields(Config)
        if each.metadata
    )
