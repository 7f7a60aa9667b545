"""Settings: when something is wrong."""

from __future__ import annotations

from rabit.config.setting import setting
from rabit.config.settings import Settings

__all__ = ["FailureSettings"]


class FailureSettings(Settings, group="failure"):
    """When something is wrong."""

    stall_warning: float = setting(
        10.0,
        "A tensor that some ranks submitted and others did not is reported after this time; "
        "0: never.",
        kind="duration",
        native="stall_warning_ms",
        flag="--stall-warning",
        level="basic",
        minimum=0,
        maximum=86400,
        unit="seconds",
    )
    stall_abort: float = setting(
        1800.0,
        "The job ends when a tensor has waited so long for ranks that have not submitted it; 0: never.",
        kind="duration",
        native="stall_abort_ms",
        flag="--stall-abort",
        level="basic",
        minimum=0,
        maximum=86400,
        unit="seconds",
    )
    heartbeat_timeout: float = setting(
        3.0,
        "A rank that falls silent is given up within this time, even if its connections are open.",
        kind="duration",
        is_equal=True,
        native="heartbeat_timeout_ms",
        flag="--heartbeat-timeout",
        level="basic",
        minimum=1,
        maximum=86400,
        unit="seconds",
    )
    check_finite: str = setting(
        "off",
        "Look for NaN and Inf in every gradient (all), or in a sixteenth of them in turn (sample), before "
        "they are combined; all ranks learn whose it is.",
        kind="choice",
        choices=("off", "all", "sample"),
        aliases=(("0", "off"), ("1", "all")),
        is_equal=True,
        flag="--check-finite",
        level="basic",
    )
    check_replicas: int = setting(
        0,
        "After this many steps, compare the parameters of all ranks; 0: never.",
        is_equal=True,
        flag="--check-replicas",
        level="basic",
        minimum=0,
    )
    checkpoint: str = setting(
        "",
        "Folder of the job's checkpoints, for a Checkpoint that is given none; all ranks must see it.",
        is_equal=True,
        flag="--checkpoint",
        level="basic",
    )
    elastic_timeout: float = setting(
        60.0,
        "After a loss in an elastic job, how long the others wait for ranks that have not noticed it: "
        "longer than a rank takes from one collective to the next.",
        kind="duration",
        is_equal=True,
        flag="--elastic-timeout",
        minimum=1,
        maximum=86400,
        unit="seconds",
    )
    stop_file: str = setting(
        "",
        "File that asks the job to stop: when it exists, should_stop() is true on all ranks.",
        flag="--stop-file",
        level="basic",
    )
    stop_signals: str = setting(
        "TERM,USR1",
        "Signals that ask the job to stop, for should_stop(), such as TERM,USR1,USR2,HUP; those that the program "
        "handles itself are left alone.",
    )
    stop_before: float = setting(
        0.0,
        "should_stop() is true so long before the time limit of the job of Slurm; 0: the limit is not looked up.",
        kind="duration",
        minimum=0,
        maximum=604800,
        unit="seconds",
    )
