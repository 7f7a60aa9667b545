"""Benchmarks: python tests/bench NAME [options]; python tests/bench --list names them all.

`--json FILE` writes the tables that a benchmark prints to a file as well.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

from harness.case import CASES
from harness.ranks import run_rank
from harness.report import TABLES

HERE = Path(__file__).resolve().parent


def load(name: str) -> None:
    """Imports the module that has the case of this name, and no other: some take seconds."""
    for path in HERE.glob("*.py"):
        if re.search(rf"^def {re.escape(name)}\(o: Any\)", path.read_text(), re.M):
            importlib.import_module(path.stem)


def given_file(words: list[str]) -> str:
    """The file of --json, which is taken out of the words; "" where there is none."""
    if "--json" not in words:
        return ""
    place = words.index("--json")
    file = words[place + 1]
    del words[place : place + 2]
    return file


def main() -> int:
    first = sys.argv[1] if len(sys.argv) > 1 else "--list"
    if first == "--rank":
        run_rank(sys.argv[2])
        return 0
    file = given_file(sys.argv)
    load(first)
    if first in CASES:
        chosen = CASES[first]
        passed = chosen.run(chosen.parse(sys.argv[2:])) is not False
        if file:
            Path(file).write_text(json.dumps(TABLES))
        return 0 if passed else 1
    for path in HERE.glob("*.py"):
        if not path.stem.startswith("_") and not path.stem.endswith("_rank"):
            importlib.import_module(path.stem)
    for name, found in sorted(CASES.items()):
        print(f"{name:20} {found.title}")
    return 0 if first in ("--list", "--help", "-h") else 2


if __name__ == "__main__":
    sys.exit(main())
