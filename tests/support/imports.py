"""Who imports whom in Python packages, read from the sources: nothing is imported to find out."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """One module names another; at the top, in a function or for type checkers alone."""

    source: str
    target: str
    line: int


def modules_of(root: Path, packages: Iterable[str]) -> dict[str, Path]:
    """Every module of `packages` by its full name; a package is the module of its __init__."""
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(modules: Mapping[str, Path]) -> list[Import]:
    """Every import of one of `modules` by another, wherever it stands."""
    return [
        Import(name, target, line)
        for name, path in modules.items()
        for target, line in _targets(name, path, modules)
        if target != name
    ]


def _targets(name: str, path: Path, modules: Collection[str]) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(name, path, node)
            named = [_module_or_base(base, alias.name, modules) for alias in node.names]
        elif _is_import_module(node):
            named = [node.args[0].value]  # type: ignore[attr-defined]
        else:
            continue
        found += [(each, node.lineno) for each in dict.fromkeys(named) if each in modules]
    return found


def _base(name: str, path: Path, node: ast.ImportFrom) -> str:
    """The module that stands between `from` and `import`; dots count from the package of `name`."""
    if node.level == 0:
        return node.module or ""
    parts = name.split(".")
    kept = len(parts) - node.level + (path.name == "__init__.py")
    return ".".join([*parts[:kept], *([node.module] if node.module else [])])


def _module_or_base(base: str, imported: str, modules: Collection[str]) -> str:
    full = f"{base}.{imported}"
    return full if full in modules else base


def _is_import_module(node: ast.AST) -> bool:
    """importlib.import_module("a.b"), under any name that ends so."""
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return False
    function, argument = node.func, node.args[0]
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return called.endswith("import_module") and is_text


def circles(imports: Iterable[Import]) -> list[list[str]]:
    """The groups of modules each of which reaches every other one of its group by imports."""
    targets: dict[str, set[str]] = {}
    for each in imports:
        targets.setdefault(each.source, set()).add(each.target)
    reached = {name: _reached(name, targets) for name in targets}
    groups = {
        tuple(sorted(each for each in names if name in reached.get(each, ())))
        for name, names in reached.items()
        if name in names
    }
    return [list(group) for group in sorted(groups)]


def _reached(name: str, targets: Mapping[str, Collection[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = set(targets.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def layers(package: str, rows: Mapping[str, str]) -> dict[str, set[str]]:
    """A table of rooms, the folders and files of `package`: room -> rooms that it may import.

    rows: words for rooms -> words for what each of them may import besides itself; "*" is all of
    the package, "" as a room is the __init__ of the package.
    """

    def full(words: str) -> set[str]:
        return {f"{package}.{word}" if word != "*" else word for word in words.split()}

    return {
        room: full(targets)
        for rooms, targets in rows.items()
        for room in (full(rooms) if rooms else {package})
    }


def room_of(module: str, rooms: Collection[str]) -> str:
    """The room that `module` lies in: the folder or file below its package; "" if it is none."""
    room = ".".join(module.split(".")[:2])
    return room if room in rooms else ""


def forbidden(imports: Iterable[Import], allowed: Mapping[str, Collection[str]]) -> list[Import]:
    """The imports that the table does not allow; a module without a room may import nothing."""
    found = []
    for each in imports:
        source, target = room_of(each.source, allowed), room_of(each.target, allowed)
        permitted = allowed.get(source, ())
        is_inside = source == target and source != ""
        if not (is_inside or "*" in permitted or target in permitted):
            found.append(each)
    return found


def shadowed(modules: Mapping[str, Path]) -> list[str]:
    """Modules whose package binds their name to something else: only one of the two can be meant."""
    found = []
    for name, path in modules.items():
        if path.name != "__init__.py":
            continue
        for bound, origin in _bound_names(name, path, modules):
            module = f"{name}.{bound}"
            if module in modules and module != origin:
                found.append(f"{module} has the name of {origin}")
    return found


def _bound_names(name: str, path: Path, modules: Mapping[str, Path]) -> list[tuple[str, str]]:
    """The names that an __init__ binds, each with where it comes from; `*` brings __all__."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = _base(name, path, node)
            for alias in node.names:
                if alias.name == "*":
                    origins = dict(_bound_names(base, modules[base], modules))
                    names = _all_of(modules[base])
                    found += [(each, origins.get(each, f"{base}.{each}")) for each in names]
                else:
                    found.append((alias.asname or alias.name, f"{base}.{alias.name}"))
        elif isinstance(node, ast.Import):
            found += [(alias.asname, alias.name) for alias in node.names if alias.asname]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append((node.name, f"{name}:{node.name}()"))
    return found


def _all_of(path: Path) -> list[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return []
