"""Files and functions stay small.  The lists of exceptions may only shrink."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FUNCTION_LINES = 70
CLASS_LINES = 250
FILE_EXCEPTIONS: dict[str, int] = {}
FUNCTION_EXCEPTIONS: dict[str, int] = {}


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).exists()]


def limit_for(path: Path) -> int:
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("tests/") or name.endswith("_test.cc") or name.startswith("native/testing/"):
        return 800
    return 400 if path.suffix == ".h" else 600


def test_files_stay_below_the_hard_stop():
    too_long = []
    for path in tracked("*.py", "*.cc", "*.h"):
        lines = len(path.read_text().splitlines())
        name = path.relative_to(ROOT).as_posix()
        if lines > FILE_EXCEPTIONS.get(name, limit_for(path)):
            too_long.append(f"{name}: {lines} lines, stop {limit_for(path)}")

    assert not too_long, "\n".join(too_long)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def python_functions(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            first = body[0]
            docstring = 0
            if ast.get_docstring(node) is not None:
                docstring = (first.end_lineno or first.lineno) - first.lineno + 1
            length = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring
            found.append((f"{path.relative_to(ROOT).as_posix()}:{node.name}", length))
    return found


def test_python_classes_stay_small():
    too_long = [
        f"{path.relative_to(ROOT).as_posix()}:{node.name}: {length} lines, stop {CLASS_LINES}"
        for path in tracked("rabit/*.py", "rabit_torch/*.py", "rabit_mxnet/*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > CLASS_LINES
    ]

    assert not too_long, "\n".join(too_long)


CONTROL = re.compile(
    r"^\s*(if|for|while|switch|do|else|catch|try|namespace|class|struct|enum|union|return)\b"
)


def cpp_functions(path: Path) -> list[tuple[str, int]]:
    """Blocks that open on a line of a parameter list, outside any other such block."""
    found = []
    depth = 0
    open_at: tuple[str, int, int] | None = None
    statement = ""
    for number, raw in enumerate(path.read_text().splitlines(), start=1):
        line = re.sub(r'//.*|"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', "", raw)
        statement = (statement + " " + line.strip()).strip()
        opens, closes = line.count("{"), line.count("}")
        if open_at is None and opens > closes and "(" in statement and not CONTROL.match(statement):
            name = re.search(r"([\w:~]+)\s*\(", statement)
            open_at = (name.group(1) if name else "?", number, depth)
        depth += opens - closes
        if open_at is not None and depth <= open_at[2]:
            key = f"{path.relative_to(ROOT).as_posix()}:{open_at[0]}"
            found.append((key, number - open_at[1] + 1))
            open_at = None
        if line.rstrip().endswith((";", "{", "}", ":")) or not line.strip() or line.startswith("#"):
            statement = ""
    return found


@functools.cache
def functions() -> list[tuple[str, int]]:
    python = [item for path in tracked("*.py") for item in python_functions(path)]
    return python + [item for path in tracked("native/*.cc", "native/*.h") for item in cpp_functions(path)]


def test_functions_fit_on_a_screen():
    too_long = [
        f"{name}: {lines} lines, stop {FUNCTION_LINES}"
        for name, lines in functions()
        if lines > FUNCTION_EXCEPTIONS.get(name, FUNCTION_LINES)
    ]

    assert len(functions()) > 100
    assert not too_long, "\n".join(too_long)


def test_exceptions_still_exist():
    names = {name for name, _ in functions()}
    gone = [name for name in FUNCTION_EXCEPTIONS if name not in names]
    gone += [name for name in FILE_EXCEPTIONS if not (ROOT / name).exists()]

    assert not gone, f"remove these from the lists of exceptions: {gone}"
