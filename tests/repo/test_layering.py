"""Includes and imports go downward only; the tables are those of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"

# folder -> folders it may include besides itself; "*" is everything.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "arithmetic": {"base"},
    "rendezvous": {"base"},
    "transport": {"rendezvous", "base"},
    "collective": {"transport", "arithmetic", "base"},
    "codec": {"arithmetic", "base"},
    "schedule": {"base"},
    "control": {"transport", "arithmetic", "rendezvous", "base"},
    "backend": {"base"},
    "backend/builtin": {"backend", "collective", "transport", "arithmetic", "base"},
    "backend/mpi": {"backend", "transport", "arithmetic", "base"},
    "backend/nccl": {"backend", "rendezvous", "base"},
    "backend/ps": {"backend", "transport", "rendezvous", "arithmetic", "base"},
    "engine": {"control", "schedule", "codec", "backend", "arithmetic", "base"},
    "abi": {"*"},
    "python": {"include"},
    "include": set(),
}
# Implementations of one seam never include each other; only these see one another's interface.
TRANSPORT_FOLDERS = {"transport/inproc", "transport/tcp", "transport/shm"}
# The engine sees the interfaces of the layer below, never an implementation.
ENGINE_MAY_SEE = {
    "control/controller.h",
    "control/agreement.h",
    "schedule/limit_choice.h",
    "schedule/scheduler.h",
    "codec/codec.h",
    "codec/exchange.h",
    "codec/random.h",
    "backend/backend.h",
}
FORBIDDEN_IN_SCHEDULE = {"chrono", "thread", "mutex", "atomic", "random"}
TESTS_AND_BENCH = {"testing", "bench", "fuzz"}


def native_sources() -> list[Path]:
    return [
        path
        for path in sorted(NATIVE.rglob("*"))
        if path.suffix in {".h", ".cc"} and path.relative_to(NATIVE).parts[0] not in TESTS_AND_BENCH
    ]


def folder_of(relative: Path) -> str:
    folder = relative.parent.as_posix()
    return folder if folder in ALLOWED or folder in TRANSPORT_FOLDERS else folder.split("/")[0]


def includes(path: Path) -> tuple[list[str], list[str]]:
    text = path.read_text()
    return re.findall(r'^#include "([^"]+)"', text, re.M), re.findall(
        r"^#include <([^>]+)>", text, re.M
    )


def violations(path: Path) -> list[str]:
    relative = path.relative_to(NATIVE)
    is_test = path.name.endswith("_test.cc")
    folder = folder_of(relative)
    found = []
    quoted, angled = includes(path)
    for name in quoted:
        target = folder_of(Path(name))
        if target == "testing":
            if not is_test:
                found.append(f"{relative} includes {name}, which is for tests only")
            continue
        if is_test or target == folder:
            continue
        parent = folder.split("/")[0] if folder in TRANSPORT_FOLDERS else folder
        allowed = ALLOWED[parent] | ({"transport"} if folder in TRANSPORT_FOLDERS else set())
        if "*" not in allowed and target not in allowed:
            found.append(f"{relative} includes {name}: {folder} may not include {target}")
        is_seam = target in {"control", "schedule", "codec", "backend"}
        if folder == "engine" and is_seam and name not in ENGINE_MAY_SEE:
            found.append(f"{relative} includes {name}: the engine sees interfaces only")
    if folder == "schedule" and not is_test:
        for name in FORBIDDEN_IN_SCHEDULE & set(angled):
            found.append(f"{relative} includes <{name}>: the scheduler must be a pure function")
    return found


def test_native_includes_go_downward():
    found = [line for path in native_sources() for line in violations(path)]

    assert not found, "\n".join(found)


def test_the_checker_sees_every_folder():
    unknown = {
        folder_of(path.relative_to(NATIVE))
        for path in native_sources()
        if folder_of(path.relative_to(NATIVE)) not in set(ALLOWED) | TRANSPORT_FOLDERS
    }

    assert not unknown, f"add these folders to the layering table: {sorted(unknown)}"


# --- Python ---------------------------------------------------------------------------------------


def imported_modules(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append(node.module)
            if node.module == "rabit":
                found += [f"rabit.{alias.name}" for alias in node.names]
    return found


# What a package for a framework may import besides the names of `rabit` itself.
STABLE_MODULES = {
    "rabit",
    "rabit.compression",
    "rabit.framework",
    "rabit.strategies",
    "rabit.testing",
}
STABLE_MODULES |= {"rabit.tuning.step_time"}


@pytest.mark.parametrize("package", ["rabit_torch", "rabit_mxnet"])
def test_framework_packages_use_stable_modules_of_rabit_only(package):
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules = [node.module]
            else:
                continue
            for module in modules:
                if module.split(".")[0] == "rabit" and module not in STABLE_MODULES:
                    found.append(f"{path.relative_to(ROOT)} imports {module}")

    assert not found, "\n".join(found)


def test_the_core_package_knows_no_framework():
    found = []
    for path in sorted((ROOT / "rabit").rglob("*.py")):
        for module in imported_modules(path):
            if module.split(".")[0] in {"torch", "mxnet", "rabit_torch", "rabit_mxnet"}:
                found.append(f"{path.relative_to(ROOT)} imports {module}")

    assert not found, "\n".join(found)


def test_only_config_reads_the_environment():
    readers = {
        str(path.relative_to(ROOT))
        for package in ("rabit", "rabit_torch", "rabit_mxnet")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"os\.environ\b|os\.getenv\b|\bgetenv\(", path.read_text())
    }
    # The launcher hands its environment on to the workers; it does not interpret RABIT_* itself.
    launcher = {name for name in readers if name.startswith("rabit/launch/")}

    assert readers - launcher <= {"rabit/config/config.py"}, sorted(readers - launcher)
