"""Settings: what can be seen."""

from __future__ import annotations

from dataclasses import dataclass

from rabit.config.setting import setting

__all__ = ["DiagnosisSettings"]

_LEVELS = ("debug", "info", "warning", "error", "off")


@dataclass(frozen=True)
class DiagnosisSettings:
    """What can be seen."""

    log_level: str = setting(
        "warning",
        "Least severe message that is printed.",
        kind="choice",
        choices=_LEVELS,
        aliases=(("trace", "debug"), ("fatal", "error")),  # Horovod's
        native="log_level",
        flag="--log-level",
    )
    timeline: str = setting(
        "",
        "File for the trace of every operation of rank 0, in Chrome's format; {rank} in the name: "
        "of every rank; empty: none.",
        flag="--timeline",
    )
    timeline_mark_cycles: bool = setting(
        False,
        "The trace also marks every negotiation.",
        flag="--timeline-mark-cycles",
    )
    summary: bool = setting(
        False,
        "Rank 0 prints four lines about what the engine did, at shutdown.",
        flag="--summary",
    )
    config_file: str = setting(
        "",
        "TOML or YAML file with settings, named as the fields of Config.",
        flag="--config-file",
    )
    library: str = setting(
        "",
        "Native library to load instead of the installed one; for work on rabit itself.",
    )
