"""Includes and imports go downward only; the tables are those of docs/explain/architecture.md."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from support.imports import (
    Import,
    circles,
    forbidden,
    imports_of,
    layers,
    modules_of,
    room_of,
    shadowed,
)

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"

# folder -> folders it may include besides itself; "*" is everything.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "arithmetic": {"base"},
    "rendezvous": {"base"},
    "transport": {"rendezvous", "base"},
    "membership": {"transport", "transport/tcp", "transport/shm", "rendezvous", "base"},
    "collective": {"transport", "arithmetic", "base"},
    "codec": {"arithmetic", "base"},
    "route": {"collective", "base"},
    "schedule": {"base"},
    "control": {"transport", "arithmetic", "rendezvous", "base"},
    "backend": {"base"},
    "backend/builtin": {"backend", "collective", "transport", "arithmetic", "base"},
    "backend/hierarchical": {"backend", "collective", "base"},
    "backend/mpi": {"backend", "transport", "arithmetic", "base"},
    "backend/nccl": {"backend", "rendezvous", "arithmetic", "base"},
    "backend/ps": {"backend", "collective", "transport", "rendezvous", "arithmetic", "base"},
    "engine": {"control", "route", "schedule", "codec", "backend", "arithmetic", "base"},
    "abi": {"*"},
    "python": {"include"},
    "include": set(),
}
# Implementations of one seam never include each other; only these see one another's interface.
TRANSPORT_FOLDERS = {"transport/tcp", "transport/shm"}
# The engine sees the interfaces of the layer below, never an implementation.
ENGINE_MAY_SEE = {
    "control/controller.h",
    "control/agreement.h",
    "route/route.h",
    "route/router.h",
    "schedule/limit_choice.h",
    "schedule/scheduler.h",
    "codec/codec.h",
    "codec/exchange.h",
    "codec/random.h",
    "backend/backend.h",
    "backend/on_stream.h",
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

_GROUND = "printable descriptors command errors threads types version compression"
_SETTINGS = f"config _native record {_GROUND}"
_ENGINE = f"engine tuning {_SETTINGS}"
_TRAINING = f"training ops {_ENGINE}"
_SESSION = f"rendezvous diagnostics ops {_ENGINE}"
_TENSORS = "tensors results compression"
_WRAPPED = "torch_slot learning_rates untraced sharding"
_OVERLAP = f"overlap parameter_state ops {_TENSORS}"
_ARRAYS = "arrays library loaded"

# A room is a folder or a file of a package; imports in functions and for type checkers count.
PYTHON_LAYERS: dict[str, set[str]] = {
    **layers(
        "rabit",
        {
            "descriptors printable types version": "",
            "errors": "printable",
            "command compression threads": "errors",
            "config planner record": _GROUND,
            "_native": f"config {_GROUND}",
            "rendezvous tuning": _SETTINGS,
            "engine": f"tuning {_SETTINGS}",
            "ops": _ENGINE,
            "diagnostics": f"rendezvous {_ENGINE}",
            "training checkpoint": f"ops {_ENGINE}",
            "strategies": _TRAINING,
            "sharding": f"training checkpoint rendezvous ops {_ENGINE}",
            "launch": f"bench planner checkpoint config rendezvous record diagnostics strategies {_GROUND}",
            "probe": f"planner ops {_ENGINE}",
            "planned": f"probe planner ops {_ENGINE}",
            "replanning": f"planned probe planner ops {_ENGINE}",
            "session": f"planned replanning {_SESSION}",
            "bench": f"session planned probe planner {_SESSION}",
            "board data testing elastic server_parameters": f"session {_SESSION}",
            "integrations": f"meeting launch {_SESSION} session",
            "meeting": f"launch session {_SESSION}",
            "server": f"rendezvous {_SETTINGS}",
            "framework": f"session strategies training {_SESSION}",
            "api": "*",
            "": "api version",
        },
    ),
    **layers(
        "rabit_torch",
        {
            f"{_TENSORS} checkpoint data device parameter_state learning_rates untraced": "",
            "torch_slot": _TENSORS,
            "ops": _TENSORS,
            "overlap": f"parameter_state ops {_TENSORS}",
            "sharding": f"ops {_TENSORS}",
            "optimizer distributed state sync_batch_norm waves": f"{_WRAPPED} {_OVERLAP}",
            "data_parallel": f"optimizer state {_OVERLAP}",
            "elastic functions": "state",
            "mpi_ops": f"ops {_TENSORS}",
            "dcp": "checkpoint",
            "init_first lightning": "distributed",
            "": "*",
        },
    ),
    **layers(
        "rabit_mxnet",
        {
            "loaded compression": "",
            "library": "loaded",
            "backward": "library",
            "arrays": "library loaded",
            "adapter": _ARRAYS,
            "operation": _ARRAYS,
            "dependency_engine": f"operation {_ARRAYS}",
            "execution": f"dependency_engine operation {_ARRAYS}",
            "ops": f"adapter execution operation compression {_ARRAYS}",
            "method": f"{_ARRAYS}",
            "sharding": f"ops {_ARRAYS}",
            "state": "ops loaded",
            "optimizer": "method ops loaded",
            "trainer": "sharding method optimizer ops compression library loaded",
            "session": "dependency_engine backward library loaded",
            "elastic": "dependency_engine loaded",
            "": "*",
        },
    ),
}
# What packages for frameworks may import of rabit.
STABLE_MODULES = {
    "rabit",
    "rabit.checkpoint",
    "rabit.compression",
    "rabit.data",
    "rabit.elastic",
    "rabit.framework",
    "rabit.sharding",
    "rabit.strategies",
    "rabit.testing",
    "rabit.training.wave_board",
    "rabit.tuning.step_time",
}
MODULES = modules_of(ROOT, ["rabit", "rabit_torch", "rabit_mxnet"])


@functools.cache
def imports() -> list[Import]:
    return imports_of(MODULES)


def is_broken(each: Import) -> bool:
    """True if the rule of the layers forbids an import."""
    if each.source.split(".")[0] == each.target.split(".")[0]:
        return bool(forbidden([each], PYTHON_LAYERS))
    return each.source.split(".")[0] == "rabit" or each.target not in STABLE_MODULES


def test_python_imports_go_downward():
    found = [
        f"{each.source}:{each.line} imports {each.target}" for each in imports() if is_broken(each)
    ]

    assert not found, "\n".join(found)


def test_no_python_module_imports_itself_through_others():
    assert not circles(imports())


def test_every_python_module_has_a_room():
    rooms = {room_of(each, PYTHON_LAYERS) for each in MODULES}

    assert [each for each in MODULES if not room_of(each, PYTHON_LAYERS)] == []
    assert rooms == set(PYTHON_LAYERS), "delete rooms that hold no module from the table"


def test_no_module_has_the_name_of_what_its_package_offers():
    assert shadowed(MODULES) == []


def written(folder: Path, sources: dict[str, str]) -> dict[str, Path]:
    """The modules of a package "p" of these files, each with this text."""
    for name, text in sources.items():
        path = folder / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return modules_of(folder, ["p"])


IMPORTS_OF_ABOVE = {
    "absolute": "import p.above",
    "from the package": "from p import above",
    "of a name": "from p.above import name",
    "of a module inside": "from p.above.inner import name",
    "relative": "from . import above",
    "relative, of a name": "from .above import name",
    "in a function": "def f():\n    from p.above import name",
    "in a method": "class C:\n    async def f(self):\n        import p.above.inner",
    "in a try": "try:\n    import p.above\nexcept ImportError:\n    raise",
    "for type checkers": "if typing.TYPE_CHECKING:\n    from .above import name",
    "by text": "import importlib\nimportlib.import_module('p.above')",
}


@pytest.mark.parametrize("text", IMPORTS_OF_ABOVE.values(), ids=IMPORTS_OF_ABOVE)
def test_the_checker_finds_an_import_upward(tmp_path, text):
    table = layers("p", {"below": "", "above": "below", "": "*"})
    files = {"__init__.py": "", "above/__init__.py": "", "above/inner.py": "name = 1"}
    modules = written(tmp_path, {**files, "below.py": text})

    found = forbidden(imports_of(modules), table)

    assert [(each.source, room_of(each.target, table)) for each in found] == [
        ("p.below", "p.above")
    ]


@pytest.mark.parametrize("text", IMPORTS_OF_ABOVE.values(), ids=IMPORTS_OF_ABOVE)
def test_the_checker_allows_the_same_import_downward(tmp_path, text):
    table = layers("p", {"below": "above", "above": "", "": "*"})
    files = {"__init__.py": "", "above/__init__.py": "", "above/inner.py": "name = 1"}
    modules = written(tmp_path, {**files, "below.py": text})

    assert imports_of(modules)
    assert forbidden(imports_of(modules), table) == []


def test_the_checker_counts_dots_from_the_package_of_a_module(tmp_path):
    sources = {"a/__init__.py": "from .x import f", "a/x.py": "from ..b import y", "b/y.py": ""}
    modules = written(tmp_path, {"__init__.py": "", "b/__init__.py": "", **sources})

    assert {each[:2] for each in imports_of(modules)} == {("p.a", "p.a.x"), ("p.a.x", "p.b.y")}


def test_the_checker_finds_a_circle_through_a_function(tmp_path):
    sources = {"a.py": "import p.b", "b.py": "def f():\n    import p.c", "c.py": "import p.a"}
    modules = written(tmp_path, {"__init__.py": "", "d.py": "import p.a", **sources})

    assert circles(imports_of(modules)) == [["p.a", "p.b", "p.c"]]


def test_the_checker_finds_a_module_behind_a_function_of_its_name(tmp_path):
    names = {"x.py": "def x(): ...", "y.py": "", "z.py": "def f(): ..."}
    start = "from .x import x\nfrom .z import f\nfrom p import y\n"
    modules = written(tmp_path, {"__init__.py": start, **names})

    assert shadowed(modules) == ["p.x has the name of p.x.x"]


def test_the_core_package_knows_no_framework():
    found = []
    for name, path in MODULES.items():
        if name.split(".")[0] == "rabit":
            found += [f"{name} imports {each}" for each in outside_modules(path)]

    assert not found, "\n".join(found)


def outside_modules(path: Path) -> list[str]:
    pattern = r"^\s*(?:import|from)\s+(torch|mxnet|rabit_torch|rabit_mxnet)\b"
    return re.findall(pattern, path.read_text(), re.M)


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
