"""Settings from a TOML or YAML file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rabit.config.setting import Setting, nearest
from rabit.errors import InvalidArgument, Unsupported

__all__ = ["load_document", "read_config_file"]


def read_config_file(path: Path, by_name: Mapping[str, Setting]) -> dict[str, Any]:
    """The fields that the file sets.  Keys are the names of Config's fields, with - or _.

    Raises InvalidArgument for a file that cannot be read, an unknown key or a malformed value.
    """
    loaded = load_document(path)
    values: dict[str, Any] = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_")
        found = by_name.get(name)
        if found is None or not found.variable:
            raise InvalidArgument(
                f"the configuration file {path} sets {key!r}, which is unknown: "
                f"{nearest(name, (each.name for each in by_name.values() if each.variable))}"
            )
        source = f"{key} in {path}"
        if isinstance(value, str):
            values[name] = found.parse(value, source)
        elif isinstance(value, list) and found.kind == "text":
            values[name] = found.parse(",".join(str(part) for part in value), source)
        else:
            found.check(value, source)
            values[name] = value
    return values


def load_document(path: Path) -> dict[Any, Any]:
    """The table at the top of a TOML (.toml) or YAML file.

    Raises InvalidArgument for a file that cannot be read or holds something else, and
    Unsupported when PyYAML is needed and missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"the configuration file {path} cannot be read: {error}. "
            "Correct RABIT_CONFIG_FILE or --config-file."
        ) from error
    loaded = _load_toml(path, text) if path.suffix == ".toml" else _load_yaml(path, text)
    if not isinstance(loaded, dict):
        raise InvalidArgument(
            f"the configuration file {path} holds a {type(loaded).__name__}: expected a table of "
            "settings, such as 'fusion_bytes: 64M'."
        )
    return loaded


def _load_toml(path: Path, text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(
            f"the configuration file {path} is not valid TOML: {error}"
        ) from error


def _load_yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise Unsupported(
            f"the configuration file {path} is read as YAML, and PyYAML is not installed. "
            "Install it with 'pip install pyyaml', or write the file as TOML (.toml)."
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidArgument(
            f"the configuration file {path} is not valid YAML: {error}"
        ) from error
