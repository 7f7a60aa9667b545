"""The file of --config-file: settings by name, and the sections of Horovod's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rabit.config.setting import Setting, nearest
from rabit.config.sources import load_document
from rabit.errors import InvalidArgument

__all__ = ["read_settings"]

_Convert = Callable[[Any], str]
# Section -> key -> (setting, its text from the value).
_SECTIONS: dict[str, dict[str, tuple[str, _Convert]]] = {
    "params": {
        "fusion_threshold_mb": ("fusion_bytes", lambda value: f"{value}M"),
        "cache_capacity": ("cache_capacity", str),
    },
    "timeline": {
        "filename": ("timeline", str),
        "mark_cycles": ("timeline_mark_cycles", lambda value: str(value).lower()),
    },
    "stall_check": {
        "warning_time_seconds": ("stall_warning", str),
        "shutdown_time_seconds": ("stall_abort", str),
    },
    "library_options": {"gloo_timeout_seconds": ("connect_timeout", str)},
    "logging": {"level": ("log_level", str)},
    "autotune": {
        "enabled": ("autotune", lambda value: str(value).lower()),
        "log_file": ("autotune_log", str),
        "warmup_samples": ("autotune_warmup_samples", str),
        "steps_per_sample": ("autotune_steps_per_sample", str),
        "bayes_opt_max_samples": ("autotune_samples", str),
    },
}
_WITHOUT_EFFECT = {
    "params": {"cycle_time_ms", "hierarchical_allgather", "torus_allreduce"},
    "library_options": {"mpi_threads_disable", "num_nccl_streams", "thread_affinity"},
    "logging": {"with_timestamp"},
    "autotune": {"gaussian_process_noise"},
}


def read_settings(
    path: Path, by_name: Mapping[str, Setting]
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Setting -> (text of its value, where it stands) for everything the file sets, and notices.

    Raises InvalidArgument for a file that cannot be read or an unknown key.
    """
    document = load_document(path)
    found: dict[str, tuple[str, str]] = {}
    ignored: list[str] = []
    known = [each.name for each in by_name.values() if each.flag]
    for key, value in document.items():
        name = str(key).replace("-", "_")
        if isinstance(value, Mapping) and name in _SECTIONS:
            _read_section(path, name, value, found, ignored)
        elif name == "controller":
            ignored.append("controller")
        elif name in known:
            found[name] = (_text(value), f"{key} in {path}")
        else:
            raise InvalidArgument(
                f"the configuration file {path} sets {key!r}, which is unknown: "
                f"{nearest(name, [*known, *_SECTIONS])}"
            )
    return found, [f"without effect in {path}: {', '.join(ignored)}"] if ignored else []


def _read_section(
    path: Path,
    section: str,
    values: Mapping[str, Any],
    found: dict[str, tuple[str, str]],
    ignored: list[str],
) -> None:
    twins, without_effect = _SECTIONS[section], _WITHOUT_EFFECT.get(section, set())
    for key, value in values.items():
        source = f"{section}.{key} in {path}"
        if key in twins:
            name, convert = twins[key]
            found[name] = (convert(value), source)
        elif (section, key) == ("params", "hierarchical_allreduce"):
            if value:
                found["allreduce_algorithm"] = ("hierarchical", source)
        elif (section, key) == ("stall_check", "enabled"):
            if not value:
                found["stall_warning"] = ("0", source)
        elif key in without_effect:
            ignored.append(f"{section}.{key}")
        else:
            raise InvalidArgument(
                f"the configuration file {path} sets {section}.{key}, which is unknown: "
                f"{nearest(str(key), [*twins, *without_effect])}"
            )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, list):
        return ",".join(str(part) for part in value)
    return str(value)
