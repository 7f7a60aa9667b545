"""Horovod's names for settings of rabit: its variables, its flags, and the keys of its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

__all__ = [
    "FILE_SECTIONS",
    "KEYS_WITHOUT_EFFECT",
    "TWINS",
    "VARIABLES_WITHOUT_EFFECT",
    "Twin",
    "from_variables",
    "variable_of",
]


class Twin(NamedTuple):
    """What Horovod, or another, calls a setting; an empty name: there is none.

    unit: what the flag and the key count, as a suffix of values here ("M").
    idle: a value that changes nothing.
    implied: text of the setting that the mere presence of the flag or a true value means.
    is_negated: a false value of the key means `implied`.
    """

    setting: str
    variable: str = ""
    flag: str = ""
    key: str = ""  # "section.key"
    unit: str = ""
    idle: str = ""
    implied: str = ""
    is_negated: bool = False


TWINS = (
    Twin(
        "fusion_bytes", "HOROVOD_FUSION_THRESHOLD", "--fusion-threshold-mb",
        "params.fusion_threshold_mb", unit="M",
    ),
    Twin("cache_capacity", "HOROVOD_CACHE_CAPACITY", key="params.cache_capacity"),
    # A timeline can be started at any time, which is what DYNAMIC asks for.
    Twin(
        "timeline", "HOROVOD_TIMELINE", "--timeline-filename", "timeline.filename", idle="DYNAMIC"
    ),
    Twin("timeline_mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES", key="timeline.mark_cycles"),
    Twin(
        "stall_warning", "HOROVOD_STALL_CHECK_TIME_SECONDS", "--stall-check-warning-time-seconds",
        "stall_check.warning_time_seconds",
    ),
    Twin(
        "stall_abort", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "--stall-check-shutdown-time-seconds", "stall_check.shutdown_time_seconds",
    ),
    Twin(
        "connect_timeout", "HOROVOD_GLOO_TIMEOUT_SECONDS", "--gloo-timeout-seconds",
        "library_options.gloo_timeout_seconds",
    ),
    Twin("log_level", "HOROVOD_LOG_LEVEL", key="logging.level"),
    Twin("autotune", "HOROVOD_AUTOTUNE", key="autotune.enabled"),
    Twin("autotune_log", "HOROVOD_AUTOTUNE_LOG", "--autotune-log-file", "autotune.log_file"),
    Twin(
        "autotune_warmup_samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        key="autotune.warmup_samples",
    ),
    Twin(
        "autotune_steps_per_sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        key="autotune.steps_per_sample",
    ),
    Twin(
        "autotune_samples", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "--autotune-bayes-opt-max-samples", "autotune.bayes_opt_max_samples",
    ),
    Twin("network_interfaces", "HOROVOD_GLOO_IFACE", "--network-interface"),
    Twin("transport", flag="--tcp", implied="tcp"),
    Twin(
        "stall_warning", "HOROVOD_STALL_CHECK_DISABLE", "--no-stall-check", "stall_check.enabled",
        implied="0", is_negated=True,
    ),
    # A user who turns stall reports off does not want the job to end because of a stall.
    Twin(
        "stall_abort", "HOROVOD_STALL_CHECK_DISABLE", "--no-stall-check", "stall_check.enabled",
        implied="0", is_negated=True,
    ),
    Twin(
        "allreduce_algorithm", "HOROVOD_HIERARCHICAL_ALLREDUCE", "--hierarchical-allreduce",
        "params.hierarchical_allreduce", implied="hierarchical",
    ),
)  # fmt: skip

# Variable -> why it changes nothing.
VARIABLES_WITHOUT_EFFECT: dict[str, str] = {
    "HOROVOD_CYCLE_TIME": "rabit wakes on work and has no cycle",
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "the noise is estimated from the measurements",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "allgather has one algorithm",
    "HOROVOD_TORUS_ALLREDUCE": "there is no torus algorithm",
    "HOROVOD_CONTROLLER": "there is one controller",
    "HOROVOD_CPU_OPERATIONS": "the backend is chosen per operation",
    "HOROVOD_DYNAMIC_PROCESS_SETS": "process sets are always dynamic",
    "HOROVOD_DISABLE_GROUP_FUSION": "groups become ready together and fuse like other tensors",
    "HOROVOD_LOG_HIDE_TIME": "messages carry no time",
    "HOROVOD_NUM_NCCL_STREAMS": "RABIT_LANES sets the number of lanes",
}
KEYS_WITHOUT_EFFECT = frozenset(
    {
        "params.cycle_time_ms", "params.hierarchical_allgather", "params.torus_allreduce",
        "library_options.mpi_threads_disable", "library_options.num_nccl_streams",
        "library_options.thread_affinity", "library_options.ccl_bgt_affinity",
        "logging.with_timestamp", "logging.hide_timestamp", "autotune.gaussian_process_noise",
    }
)  # fmt: skip
FILE_SECTIONS = frozenset(twin.key.partition(".")[0] for twin in TWINS if twin.key)


def variable_of(setting: str, twins: Iterable[Twin] = TWINS) -> str:
    """The variable of one of `twins` that has the meaning of `setting`, or ""."""
    for twin in twins:
        if twin.setting == setting and not twin.implied:
            return twin.variable
    return ""


def from_variables(
    environ: Mapping[str, str], twins: Iterable[Twin] = TWINS
) -> Iterator[tuple[Twin, str]]:
    """Those of `twins` whose variable is set, each with the text of its setting."""
    for twin in twins:
        text = environ.get(twin.variable, "").strip() if twin.variable else ""
        if twin.implied:
            if text not in ("", "0"):
                yield twin, twin.implied
        elif text not in ("", twin.idle):
            yield twin, text
