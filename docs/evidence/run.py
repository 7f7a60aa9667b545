"""Measures a row of evidence and stores the result: python docs/evidence/run.py ROW [ID ...].

A measurement that has a `run` is a case of tests/bench; the table that it prints is what is stored.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pages

ROOT = pages.HERE.parents[1]


def machine() -> str:
    """What the figures depend on, in a line."""
    kind = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores, load = os.cpu_count(), os.getloadavg()[0]
    name = f"{cores} cores ({kind[1] if kind else platform.machine()}), Linux {platform.release().split('-')[0]}"
    try:
        from importlib.metadata import version

        return f"{name}, torch {version('torch')}, load {load:.1f} at the start"
    except ImportError:
        return f"{name}, load {load:.1f} at the start"


def commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def measured(measure: dict[str, Any]) -> dict[str, Any]:
    """The result of one measurement; raises SystemExit where its bench fails or prints no table."""
    words = shlex.split(measure["run"])
    about = {
        "command": measure["run"],
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tables.json"
        done = subprocess.run([sys.executable, *words[1:], "--json", str(file)], cwd=ROOT, check=False)
        tables = json.loads(file.read_text()) if file.exists() else []
    if not tables:
        raise SystemExit(f"`{measure['run']}` ended with {done.returncode} and printed no table: nothing is stored")
    chosen = tables[measure.get("table", 0)]
    return {**about, "columns": chosen["heads"], "rows": chosen["rows"]}


def main() -> None:
    names = sorted(path.stem for path in (pages.HERE / "rows").glob("*.toml"))
    name, only = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if name not in names:
        raise SystemExit(f"there is no row {name!r}; rows: {', '.join(names)}")
    row = pages.load(pages.HERE / "rows" / f"{name}.toml")
    chosen = [each for each in row.measures if "run" in each and (not only or each["id"] in only)]
    if not chosen:
        raise SystemExit(f"row {name!r} has nothing to measure: its figures are of the commands on its page")
    stored = pages.HERE / "results" / f"{name}.json"
    for measure in chosen:
        row.results[measure["id"]] = measured(measure)
        stored.write_text(json.dumps(row.results, indent=1, ensure_ascii=False) + "\n")
    pages.write()


if __name__ == "__main__":
    main()
