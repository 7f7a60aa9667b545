"""One table of what gradient methods have shown: accuracy, bytes, loss on a text, and time on slow links.

    python tests/bench/methods_verdict.py build/methods

Reads digits.json, text.json, links_*.json, peers.json and waits.json of a folder, as far as they are there.
Ends with 1 if an accuracy or the bytes of a method fall short: those depend on no machine.  What the text and the clock
show is in the table as well; what the guide says of it is docs/howto/methods.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import methods_digits
import methods_text
import waiting as methods_waits
from harness import case, table

SECTIONS = ("digits", "text", "links", "peers", "waits")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def of_digits(folder: Path) -> list[tuple[str, str, str]]:
    """Method, what was measured, and what falls short."""
    found = []
    for name, row in read(folder / "digits.json").get("rows", {}).items():
        if name in methods_digits.TABLE:
            mean = sum(row["accuracy"]) / len(row["accuracy"])
            says = f"{mean:.2f} % of {methods_digits.TABLE[name].accuracy:.2f}, {row['bytes']:.0f} bytes"
            found.append((name, says, methods_digits.verdict(name, row)))
    return found


def of_text(folder: Path) -> list[tuple[str, str, str]]:
    rows, found = read(folder / "text.json").get("rows", {}), []
    for name, row in rows.items():
        if name in methods_text.WAYS:
            says = methods_text.verdict(rows, name)
            measured = f"loss {row['loss']:.3f}, {row['bytes'] / 1e6:.1f} MB"
            if says.startswith(methods_text.TOO_SHORT):
                measured, says = f"{measured}; {says}", ""
            found.append((name, measured, "" if says == "as claimed" else says))
    return found


def of_links(folder: Path) -> list[tuple[str, str, str]]:
    found = []
    for path in sorted(folder.glob("links_*.json")):
        links = read(path)
        rate, rows = links["rate"], links["rows"]
        mean = next((each["seconds"] for each in rows if each["method"] == "mean"), float("nan"))
        for row in rows:
            measured = f"{mean / row['seconds']:.2f} times the mean, {row['bytes'] / 1e6:.2f} MB"
            found.append((f"{row['method']} at {rate / 1e6:g} Mbit/s", measured, row["verdict"]))
    return found


def of_peers(folder: Path) -> list[tuple[str, str, str]]:
    return [
        (
            f"{each['ours']} beside {each['peer']}",
            f"{each['times']:.2f} times its steps, {each['apart']:+.1%} of the gain apart",
            "" if each["says"] == "holds" else each["says"],
        )
        for each in read(folder / "peers.json").get("pairs", [])
    ]


def of_waits(folder: Path) -> list[tuple[str, str, str]]:
    found = read(folder / "waits.json")
    if not found:
        return []
    misses = "" if found["ratio"] <= methods_waits.MOST else f"not {methods_waits.MOST:g}"
    return [("async, one rank slow", f"{found['ratio']:.3f} of a step alone", misses)]


@case(folder="build/methods")
def methods_verdict(o: Any) -> bool:
    """One table of what gradient methods have shown: accuracy, bytes, loss on a text, and time on slow links."""
    parts = (of_digits, of_text, of_links, of_peers, of_waits)
    short = dict.fromkeys(SECTIONS, 0)
    rows = []
    for section, part in zip(SECTIONS, parts, strict=True):
        for name, measured, misses in part(Path(o.folder)):
            rows.append([section, name, measured, f"SHORT: {misses}" if misses else "ok"])
            short[section] += bool(misses)
    table(["measured", "method", "figure", "verdict"], rows)
    print(", ".join(f"{section}: {count} short" for section, count in short.items()))
    return not short["digits"]
