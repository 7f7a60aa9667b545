"""What the autotuner may turn: names, and their values for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rabit.config.setting import format_bytes
from rabit.errors import InvalidArgument

__all__ = ["KNOBS", "OVERLAPS", "Values", "describe", "is_sound", "parse_knobs"]

# Knob -> value.  Bytes, but for lanes and the name of an overlap; credit_bytes 0 means no limit, and
# overlap "" is whatever the job has set.
Values = dict[str, Any]

KNOBS = ("partition_bytes", "credit_bytes", "lanes", "overlap", "fusion_bytes")
OVERLAPS = ("backward", "next-forward", "reduce-scatter")


def is_sound(name: str, value: Any) -> bool:
    """True for a value of a knob with which an engine can work; files may say anything."""
    if name == "overlap":
        return value in ("", *OVERLAPS)
    if type(value) is not int:
        return False
    least, most = {"lanes": (1, 64), "partition_bytes": (1, 1 << 40)}.get(name, (0, 1 << 40))
    return least <= value <= most


def parse_knobs(text: str) -> tuple[str, ...]:
    """The names in a list with commas.  Raises InvalidArgument for an unknown knob."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in KNOBS:
            raise InvalidArgument(
                f"RABIT_AUTOTUNE_KNOBS names {name!r}, which cannot be tuned: expected some of "
                f"{', '.join(KNOBS)}, with commas. Correct it, or unset it to tune all."
            )
    return names


def describe(values: Mapping[str, Any]) -> str:
    """A line for people: partition 1M, credit unlimited, lanes 2, fusion 64M."""
    parts = []
    for name in KNOBS:
        value = values.get(name, "")
        if value == "":
            continue
        text = format_bytes(value) if name.endswith("_bytes") else str(value)
        if value == 0:
            text = "unlimited" if name == "credit_bytes" else "none"
        parts.append(f"{name.removesuffix('_bytes')} {text}")
    return ", ".join(parts)
