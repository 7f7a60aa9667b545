"""The configuration file: TOML or YAML, with names of settings and the sections of Horovod's file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rabit.config import older
from rabit.config.horovod import FILE_SECTIONS, KEYS_WITHOUT_EFFECT, TWINS, Twin
from rabit.config.setting import Setting, nearest
from rabit.errors import InvalidArgument, Unsupported

__all__ = ["read_file"]

# What each process of a job has for itself, and what says where the file is.
_NOT_IN_A_FILE = frozenset(
    {
        "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "secret_fd",
        "config_file",
    }
)  # fmt: skip


def read_file(
    path: Path, by_name: Mapping[str, Setting]
) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Setting -> (value, where it stands) for everything the file sets, and notices.

    Keys are the names of settings, with - or _, or sections of Horovod's file.
    Raises InvalidArgument for a file that cannot be read, an unknown key or a malformed value.
    """
    found: dict[str, tuple[Any, str]] = {}
    ignored: list[str] = []
    renamed: list[str] = []
    known = [setting.name for setting in by_name.values() if setting.variable]
    known = [name for name in known if name not in _NOT_IN_A_FILE]
    for key, value in _load(path).items():
        name = str(key).replace("-", "_")
        if isinstance(value, Mapping) and name in FILE_SECTIONS:
            _read_section(path, name, value, by_name, found, ignored)
        elif name == "controller":
            ignored.append("controller")
        elif twins := [twin for twin in older.TWINS if twin.key == name]:
            source = f"{key} in {path}"
            text = _twin_text(twins[0], value)
            if text is not None:
                into = by_name[twins[0].setting]
                found.setdefault(into.name, (into.parse(text, source), source))
                renamed.append(f"{key} is {into.name}: {text}")
        elif name in known:
            source = f"{key} in {path}"
            found[name] = (_value(by_name[name], value, source), source)
        else:
            raise InvalidArgument(
                f"the configuration file {path} sets {key!r}, which is unknown: "
                f"{nearest(name, {*known, *FILE_SECTIONS})}"
            )
    notices = [f"without effect in {path}: {', '.join(ignored)}"] if ignored else []
    return found, notices + ([f"older names in {path}: {', '.join(renamed)}"] if renamed else [])


def _read_section(
    path: Path,
    section: str,
    values: Mapping[str, Any],
    by_name: Mapping[str, Setting],
    found: dict[str, tuple[Any, str]],
    ignored: list[str],
) -> None:
    implied: dict[str, tuple[Any, str]] = {}
    for key, value in values.items():
        name, source = f"{section}.{key}".replace("-", "_"), f"{section}.{key} in {path}"
        twins = [twin for twin in TWINS if twin.key == name]
        if not twins and name not in KEYS_WITHOUT_EFFECT:
            known = {twin.key for twin in TWINS} | KEYS_WITHOUT_EFFECT
            known = {key.partition(".")[2] for key in known if key.startswith(section + ".")}
            raise InvalidArgument(
                f"the configuration file {path} sets {section}.{key}, which is unknown: "
                f"{nearest(name.partition('.')[2], known)}"
            )
        if not twins:
            ignored.append(name)
        for twin in twins:
            text = _twin_text(twin, value)
            if text is not None:
                setting = by_name[twin.setting]
                into = implied if twin.implied else found
                into[setting.name] = (setting.parse(text, source), source)
    # A check that is off is off, whatever times the file gives it.
    found.update(implied)


def _twin_text(twin: Twin, value: Any) -> str | None:
    if twin.implied:
        return twin.implied if bool(value) is not twin.is_negated else None
    if value == twin.idle:
        return None
    return f"{str(value).lower() if isinstance(value, bool) else value}{twin.unit}"


def _value(setting: Setting, value: Any, source: str) -> Any:
    if isinstance(value, list) and setting.kind == "text":
        return setting.parse(",".join(str(part) for part in value), source)
    if isinstance(value, bool) and setting.kind in ("choice", "text"):
        return setting.parse("on" if value else "off", source)  # YAML reads on and off as booleans
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        setting.check(value, source)
        return value
    return setting.parse(str(value), source)


def _load(path: Path) -> dict[Any, Any]:
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
