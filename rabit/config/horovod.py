"""Variables of Horovod: those with the same meaning are honoured, the others get a notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rabit.config.setting import Setting

__all__ = ["HOROVOD_WITHOUT_EFFECT", "from_horovod"]

# Variable -> why it changes nothing.
HOROVOD_WITHOUT_EFFECT: dict[str, str] = {
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

_LEVELS = {"trace": "debug", "fatal": "error"}  # Horovod's levels that rabit has not.


def from_horovod(
    environ: Mapping[str, str], by_name: Mapping[str, Setting]
) -> tuple[dict[str, Any], list[str]]:
    """The fields that HOROVOD_ variables set, and the notice about them (none or one line).

    A variable whose RABIT_ twin is set is passed over.
    """
    values: dict[str, Any] = {}
    honoured: list[str] = []
    for each in by_name.values():
        text = environ.get(each.horovod) if each.horovod else None
        if text is None or not text.strip() or each.variable in environ:
            continue
        if each.name == "timeline" and text == "DYNAMIC":
            continue  # A timeline can be started at any time.
        if each.name == "log_level":
            text = _LEVELS.get(text.strip().lower(), text)
        values[each.name] = each.parse(text, each.horovod)
        honoured.append(f"{each.horovod} as {each.variable}")
    for variable, field, implied in (
        ("HOROVOD_STALL_CHECK_DISABLE", "stall_warning", 0.0),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "allreduce_algorithm", "hierarchical"),
    ):
        twin = by_name[field].variable
        if environ.get(variable, "0").strip() not in ("", "0") and twin not in environ:
            values[field] = implied
            honoured.append(f"{variable} as {twin}={by_name[field].format(implied)}")
    ignored = [
        f"{name} ({why})" for name, why in HOROVOD_WITHOUT_EFFECT.items() if environ.get(name)
    ]
    parts = []
    if honoured:
        parts.append("honoured " + ", ".join(honoured))
    if ignored:
        parts.append("no effect: " + ", ".join(ignored))
    return values, ["variables of Horovod: " + "; ".join(parts)] if parts else []
