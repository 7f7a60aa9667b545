"""The repository speaks of the project alone, and leaves nothing unfinished behind."""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")
MACHINE_PATHS = re.compile(r"(^|[\s\"'(=])/(work|root|home)/")


@functools.cache
def texts() -> dict[Path, str]:
    """Of every file in text that git knows or does not ignore."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    suffixes = {".py", ".cc", ".h", ".md", ".toml", ".txt", ".cfg", ""}
    found = {}
    for name in names:
        if Path(name).suffix in suffixes and (ROOT / name).is_file():
            with contextlib.suppress(UnicodeDecodeError):
                found[ROOT / name] = (ROOT / name).read_text()
    return found


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path, text in texts().items():
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


def test_nothing_is_left_unfinished():
    found = [line for line in lines_matching(UNFINISHED) if not line.startswith("tests/repo/")]

    assert not found, "\n".join(found)


def test_no_path_of_a_machine():
    found = lines_matching(MACHINE_PATHS)

    assert not found, "\n".join(found)
