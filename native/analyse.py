"""Has Clang read every file of the library by itself, with the build's warnings, without compiling it.

    python native/analyse.py BUILD/compile_commands.json

Reading takes a third of the time of compiling. The build compiles the files of a folder together, so that one
may miss an include without the compiler's notice; by itself it does not.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def reading(command: str) -> list[str]:
    """The command that compiles a file, less what it writes."""
    words = shlex.split(command)
    at = words.index("-o")
    return [*words[:at], *words[at + 2 :], "-fsyntax-only"]


def passes(entry: dict[str, str]) -> bool:
    return subprocess.run(reading(entry["command"]), cwd=entry["directory"]).returncode == 0


def main() -> int:
    entries = json.loads(Path(sys.argv[1]).read_text())
    library = [entry for entry in entries if "/rabit_core.dir/" in entry["output"]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = list(pool.map(passes, library))
    print(f"{len(passed)} files read, {passed.count(False)} with findings", flush=True)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
