"""The rows of a bench of gradient methods: kept after each, so that a run which was cut continues where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["Rows"]


class Rows:
    """Rows by method, in a JSON file if there is one.  Rank 0 has it; the others are told what is missing.

    A row counts as done if it was measured with the same settings; others are left out of the file.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self.rows = json.loads(path.read_text())["rows"]

    def missing(self, settings: dict[str, dict[str, Any]]) -> list[str]:
        """Those of `settings` (by method) whose row is not there; forgets rows of other settings."""
        self.rows = {
            name: row
            for name, row in self.rows.items()
            if name not in settings or row.get("settings") == settings[name]
        }
        return [name for name in settings if name not in self.rows]

    def add(self, name: str, settings: dict[str, Any], row: dict[str, Any], **head: Any) -> None:
        """head: what holds for all rows, in the file."""
        self.rows[name] = {"settings": settings, **row}
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(".part")
            beside.write_text(json.dumps({**head, "rows": self.rows}, indent=1) + "\n")
            beside.replace(self._path)
