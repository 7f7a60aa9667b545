"""Settings: what can be seen."""

from __future__ import annotations

from rabit.config.setting import setting
from rabit.config.settings import Settings

__all__ = ["DiagnosisSettings", "path_of_engine", "path_of_rank"]

_LEVELS = ("debug", "info", "warning", "error", "off")


def path_of_rank(path: str, rank: int | str) -> str:
    """The file of one rank: its number in place of {rank}, or before the suffix."""
    if "{rank}" in path:
        return path.replace("{rank}", str(rank))
    return _before_suffix(path, str(rank))


def path_of_engine(path: str, epoch: int, restart: int = 0) -> str:
    """The path of the files of one engine of the job; the first engine has `path` itself.

    epoch, restart: of the engine, from 1, and of the job, from 0.  Later engines and restarted jobs have
    other files: what led to the loss of a rank is in the files before, and a rank may have another number
    afterwards.
    """
    path = _before_suffix(path, f"restart{restart}") if restart else path
    return path if epoch == 1 else _before_suffix(path, f"engine{epoch}")


def _before_suffix(path: str, word: str) -> str:
    stem, dot, suffix = path.rpartition(".")
    if not dot or "/" in suffix or not stem or stem.endswith("/"):
        return f"{path}.{word}"
    return f"{stem}.{word}.{suffix}"


class DiagnosisSettings(Settings, group="diagnosis"):
    """What can be seen."""

    log_level: str = setting(
        "warning",
        "Least severe message that is printed.",
        kind="choice",
        choices=_LEVELS,
        aliases=(("trace", "debug"), ("fatal", "error")),  # Horovod's
        native="log_level",
        flag="--log-level",
        level="basic",
    )
    timeline: str = setting(
        "",
        "File for the trace of every operation of rank 0, in Chrome's format; {rank} in the name: "
        "of every rank; empty: none. Of a later engine of the job t.json is t.engine2.json, of a restarted job "
        "t.restart1.json.",
        flag="--timeline",
        level="basic",
    )
    timeline_mark_cycles: bool = setting(
        False,
        "The trace also marks every negotiation.",
        flag="--timeline-mark-cycles",
    )
    comm_log: str = setting(
        "",
        "File for one line of every operation, CSV; {rank} in the name is the rank, else it goes before "
        "the suffix: ops.csv is ops.0.csv, ops.1.csv, ... `rabitrun log ops.csv` adds them up. Of a later "
        "engine of the job it is ops.engine2.csv, of a restarted job ops.restart1.csv. Empty: none.",
        flag="--comm-log",
        level="basic",
    )
    record: str = setting(
        "",
        "Folder that keeps the record of each rank: its operations, marks and counters, in a file of 0.7 MB that "
        "outlives the process. Empty: a private folder, removed after a good end; 0: no record.",
        flag="--record",
        level="basic",
    )
    metrics: str = setting(
        "",
        "Address at which the launcher of a host's ranks serves their numbers to Prometheus: 0.0.0.0:9400. "
        "Empty: none.",
        flag="--metrics",
        level="basic",
    )
    metrics_textfile: str = setting(
        "",
        "Folder in which the same numbers are written every 5 s, for node_exporter's textfile collector. Empty: none.",
        flag="--metrics-textfile",
    )
    summary: bool = setting(
        False,
        "Rank 0 prints four lines about what the engine did, at shutdown.",
        flag="--summary",
        level="basic",
    )
    config_file: str = setting(
        "",
        "TOML or YAML file with settings, named as the fields of Config.",
        flag="--config-file",
        level="basic",
    )
    library: str = setting(
        "",
        "Native library to load instead of the installed one; for work on rabit itself.",
        level="hidden",
    )
