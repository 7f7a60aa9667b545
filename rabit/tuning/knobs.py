"""What the autotuner may turn: names, and their values for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rabit.config.setting import format_bytes
from rabit.errors import InvalidArgument

__all__ = ["KNOBS", "OVERLAPS", "Values", "describe", "parse_knobs"]

# Knob -> value.  Bytes, but for lanes and the name of an overlap; credit_bytes 0 is no limit, and
# overlap "" is whatever the job has set.
Values = dict[str, Any]

KNOBS = ("partition_bytes", "credit_bytes", "lanes", "overlap", "fusion_bytes")
OVERLAPS = ("backward", "next-forward", "reduce-scatter")


def parse_knobs(text: str) -> tuple[str, ...]:
    """The names in a list with commas.  Raises InvalidArgument for one that is no knob."""
    names = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in names:
        if each not in KNOBS:
            raise InvalidArgument(
                f"RABIT_AUTOTUNE_KNOBS names {each!r}, which cannot be tuned: expected some of "
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
