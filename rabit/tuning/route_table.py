"""A route table: what `rabitrun tune` has measured, as a file; see docs/howto/tuning.md.

The file is JSON.  Its rules are in the language of RABIT_ROUTE, its rows say what they follow from,
and its hash covers all of it.  A folder may hold tables of many topologies.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rabit.config.config import Config
from rabit.errors import InvalidArgument
from rabit.tuning.knobs import KNOBS, is_sound

__all__ = ["digest", "read_table", "seal", "table_path", "topology_of"]

_FORMAT = "rabit route table"
_VERSION = 1


def topology_of(config: Config) -> dict[str, Any]:
    """What a table depends on, as rank 0 sees it."""
    return {
        "ranks": config.size,
        "ranks_per_host": config.local_size,
        "hosts": -(-config.size // max(1, config.local_size)),
        "processors": os.cpu_count() or 1,
        "processor": _processor(),
        "transport": config.transport,
        "backend": config.backend,
    }


def seal(topology: Mapping[str, Any], contents: Mapping[str, Any]) -> dict[str, Any]:
    """A whole table: `contents` must hold `rules` and may hold `tunables`."""
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "topology": dict(topology),
        "topology_hash": digest(topology),
        **contents,
    }
    return {**document, "hash": digest(document)}


def table_path(path: Path, topology: Mapping[str, Any]) -> Path:
    """`path`, or, where that is a folder, the file in it that is named after the topology."""
    try:
        is_folder = path.is_dir()
    except PermissionError:  # Of a folder above it: who opens the file says so.
        return path
    return path / f"{digest(topology)}.json" if is_folder else path


def read_table(path: Path, config: Config) -> tuple[str, dict[str, int]]:
    """The rules of the table at `path`, for RABIT_ROUTE's parser, and arguments of propose_tunables.

    path: of the table, or of a folder with one of this topology.
    Raises InvalidArgument if the file cannot be read, was changed, or is of another topology.
    """
    try:
        return _checked_table(path, topology_of(config))
    except InvalidArgument:  # says what is wrong; it is a ValueError too
        raise
    except OSError as error:
        _refuse(path, f"it cannot be read: {error.strerror}")
    # Whatever the contents of somebody else's table lead to: rank 0 reads alone, and the others wait.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        _refuse(path, f"its contents do not fit together: {type(error).__name__}: {error}")


def _checked_table(path: Path, here: Mapping[str, Any]) -> tuple[str, dict[str, int]]:
    is_folder, path = path.is_dir(), table_path(path, here)
    if is_folder and not path.exists():
        _refuse(path.parent, f"the folder has no table of this topology, which would be {path.name}")
    document = _read(path)
    version = document.get("version")
    if document.get("format") != _FORMAT or version != _VERSION:
        _refuse(
            path,
            f"it is not a table of this version: format {document.get('format')!r}, version "
            f"{version!r}, expected {_FORMAT!r}, {_VERSION}",
        )
    claimed = document.pop("hash", None)
    if claimed != digest(document):
        _refuse(path, f"it is damaged or was edited: its contents do not have the hash {claimed!r}")
    there = document["topology"]
    differing = [
        f"{key} is {there.get(key)!r} there and {here.get(key)!r} here"
        for key in dict.fromkeys((*there, *here))
        if there.get(key) != here.get(key)
    ]
    if differing:
        _refuse(path, f"it was measured on another topology: {'; '.join(differing)}")
    tunables: dict[str, int] = document.get("tunables", {})
    for name, value in tunables.items():
        if name not in KNOBS or name == "overlap" or not is_sound(name, value):
            _refuse(path, f"its tunable {name!r} is {value!r}")
    if not isinstance(document["rules"], str):
        _refuse(path, "its rules are not text")
    return document["rules"], tunables


def digest(document: Mapping[str, Any]) -> str:
    """Hexadecimal digits, equal for equal documents however they are written down."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, Any]:
    text = path.read_bytes()
    try:
        found = json.loads(text)
    except ValueError as error:
        _refuse(path, f"it is not JSON: {error}")
    if not isinstance(found, dict):
        _refuse(path, "it is not a JSON object")
    return found


def _refuse(path: Path, why: str) -> NoReturn:
    raise InvalidArgument(
        f"RABIT_ROUTE_TABLE {path} cannot be used: {why}. Make a new one with 'rabitrun tune' on "
        "these hosts, or unset it."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
