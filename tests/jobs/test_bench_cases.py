"""Benchmarks load after a change of what they use, and those that pages and the Makefile start are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_benchmark_loads_and_every_command_names_one():
    done = subprocess.run(
        [sys.executable, "tests/bench", "--list"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    listed = {line.split()[0] for line in done.stdout.splitlines()}

    pages = [ROOT / "Makefile", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages if page.name != "changelog.md")
    started = set(re.findall(r"tests/bench (\w+)", text)) | set(re.findall(r"tests/bench/(\w+)\.py", text))

    assert len(listed) > 40
    assert started - listed == set()
