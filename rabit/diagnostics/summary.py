"""The summary: a few lines for people, out of the statistics document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rabit.printable import printable

__all__ = ["summary_text"]

_NO_CODEC = "identity"  # what the engine calls data that travel as they are


def summary_text(statistics: Mapping[str, Any]) -> str:
    """Four lines about what the engine did; others if methods or codecs worked, or ranks were waited for.

    statistics: the document of `Engine.statistics`.
    """
    totals = statistics.get("totals", {})
    steps = statistics.get("steps", 0)
    # Small results come with the negotiation, and are in no bucket.
    carried, carried_bytes = statistics.get("inlined", 0), statistics.get("inlined_bytes", 0)
    tensors, total_bytes = totals.get("tensors", 0), totals.get("bytes", 0)
    # Methods hand over what they have packed; codecs work later, and what they save is in the second line.
    note = " before codecs" if _coded_bytes(statistics) else ""
    volume = _volume(tensors + carried, total_bytes + carried_bytes, steps, note)
    buckets = totals.get("buckets", 0)
    each = (
        f", {tensors / buckets:.1f} tensors and {_bytes(total_bytes / buckets)} each"
        if buckets
        else ""
    )
    small = f"; {_counted(carried, 'tensor')} went with the negotiation" if carried else ""
    busy_s = statistics.get("communication_us", 0) / 1e6
    blocked_s = statistics.get("blocked_us", 0) / 1e6
    hidden = 100 * float(statistics.get("hidden_share", 0.0))
    lines = [
        f"{volume}, {_counted(statistics.get('size', 1), 'rank')}",
        f"{_counted(buckets, 'bucket')}{each}{small}",
        f"communication {busy_s:.3f} s, {hidden:.0f} % hidden behind compute "
        f"({blocked_s:.3f} s waited for)",
        f"transport {_transports(statistics)}; algorithm {_shares(statistics, 'algorithms')}",
    ]
    saved = _saved(statistics)
    if saved:
        lines.insert(1, saved)
    waited = _waited_for(statistics)
    if waited:
        lines.append(f"others waited for {waited}")
    return "\n".join(f"rabit: {printable(line)}" for line in lines)  # They hold names of tensors.


def _volume(tensors: int, total_bytes: int, steps: int, note: str) -> str:
    if not steps:
        return f"{_counted(tensors, 'tensor')} and {_bytes(total_bytes)} in all{note}"
    each = _counted(tensors / steps, "tensor")
    return f"{each} and {_bytes(total_bytes / steps)} per step{note}, {_counted(steps, 'step')}"


def _saved(statistics: Mapping[str, Any]) -> str:
    """The bytes of the gradients that methods or codecs have taken, and of all that was sent; or ""."""
    gradients = statistics.get("methods", {}).get("gradient_bytes", 0) + _coded_bytes(statistics)
    if not gradients:
        return ""
    wire = statistics["totals"]["wire_bytes"] + statistics.get("inlined_bytes", 0)
    steps = statistics.get("steps", 0)
    sizes = f"gradients {_bytes(gradients / (steps or 1))}, on the wire {_bytes(wire / (steps or 1))}"
    return f"methods and codecs: {sizes} {'per step' if steps else 'in all'}"


def _coded_bytes(statistics: Mapping[str, Any]) -> int:
    """Of the tensors that codecs have taken, as they were handed over."""
    codecs = statistics.get("codecs", {})
    return sum(row["bytes"] for name, row in codecs.items() if name not in ("", _NO_CODEC))


def _counted(count: float, what: str) -> str:
    return f"{count:.4g} {what}" if count == 1 else f"{count:.4g} {what}s"


def _transports(statistics: Mapping[str, Any]) -> str:
    details = statistics.get("backend_details", {})
    # What an MPI library says of itself is a text.
    told = [detail.get("transport", "") for detail in details.values()]
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
