"""The summary: a few lines for people, out of the statistics document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rabit.printable import printable

__all__ = ["summary_text"]


def summary_text(statistics: Mapping[str, Any]) -> str:
    """Four lines about what the engine did; a fifth if other ranks were waited for.

    statistics: the document of `Engine.statistics`.
    """
    totals = statistics.get("totals", {})
    tensors, total_bytes = totals.get("tensors", 0), totals.get("bytes", 0)
    steps = statistics.get("steps", 0)
    if steps:
        volume = f"{tensors / steps:.4g} tensors and {_bytes(total_bytes / steps)} per step"
        volume += f", {steps} steps"
    else:
        volume = f"{tensors} tensors and {_bytes(total_bytes)} in all"
    buckets = totals.get("buckets", 0)
    each = (
        f", {tensors / buckets:.1f} tensors and {_bytes(total_bytes / buckets)} each"
        if buckets
        else ""
    )
    busy_s = statistics.get("communication_us", 0) / 1e6
    blocked_s = statistics.get("blocked_us", 0) / 1e6
    hidden = 100 * float(statistics.get("hidden_share", 0.0))
    lines = [
        f"{volume}, {statistics.get('size', 1)} ranks",
        f"{buckets} buckets{each}",
        f"communication {busy_s:.3f} s, {hidden:.0f} % hidden behind compute "
        f"({blocked_s:.3f} s waited for)",
        f"transport {_transports(statistics)}; algorithm {_shares(statistics, 'algorithms')}",
    ]
    waited = _waited_for(statistics)
    if waited:
        lines.append(f"others waited for {waited}")
    return "\n".join(f"rabit: {printable(line)}" for line in lines)  # They hold names of tensors.


def _transports(statistics: Mapping[str, Any]) -> str:
    details = statistics.get("backend_details", {})
    # What an MPI library says of itself is a text.
    told = [each.get("transport", "") for each in details.values()]
    found = [each if isinstance(each, str) else each.get("name", "") for each in told]
    return ", ".join(name for name in found if name) or "none"


def _shares(statistics: Mapping[str, Any], key: str) -> str:
    """Names with their share of the bytes, the largest first."""
    rows = statistics.get(key) or {}
    total = sum(row.get("bytes", 0) for row in rows.values())
    ordered = sorted(rows.items(), key=lambda item: -int(item[1].get("bytes", 0)))
    named = [(name, row.get("bytes", 0)) for name, row in ordered if name]
    if len(named) == 1:
        return str(named[0][0])
    return (
        ", ".join(f"{name} {100 * part / total:.0f} %" for name, part in named if total) or "none"
    )


def _waited_for(statistics: Mapping[str, Any]) -> str:
    """The ranks that the others waited for, the longest first; only rank 0 knows them."""
    rows = statistics.get("controller", {}).get("waited_for", [])
    ordered = sorted(rows, key=lambda row: -int(row["total_us"]))
    return ", ".join(
        f"rank {row['rank']} for {row['total_us'] / 1e6:.3f} s "
        f"(at most {row['max_us'] / 1e6:.3f} s, for '{row['worst_tensor']}')"
        for row in ordered[:3]
        if row["total_us"]
    )


def _bytes(value: float) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"
