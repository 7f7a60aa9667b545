"""Where the value of a setting comes from: one reader, one precedence, and a note of the source.

What is given (an argument, a flag) wins over RABIT_<NAME>, that over the variable of Horovod or BytePS
that means the same, that over the configuration file, and that over the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rabit.config.setting import Setting, nearest
from rabit.errors import InvalidArgument

if TYPE_CHECKING:
    from rabit.config.horovod import Twin

__all__ = ["DEFAULT", "FILE", "FOREIGN_PREFIXES", "GIVEN", "Found", "read"]

DEFAULT = "default"
# Kinds of sources, the weakest first.
FILE, FOREIGN, ENVIRONMENT, GIVEN = range(4)
# What variables of Horovod and BytePS begin with.
FOREIGN_PREFIXES = ("HOROVOD_", "BYTEPS_", "DMLC_")
# Of rabit itself; see rabit.config.older, which few jobs need.
_OLDER = frozenset({"RABIT_CROSS_BARRIER", "RABIT_SCHEDULE"})


class Found:
    """Values of settings by name, and for each where it comes from: its kind and its place."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.kinds: dict[str, int] = {}
        self.notices: list[str] = []

    def put(self, name: str, value: Any, kind: int, origin: str) -> None:
        """Notes a value, unless a stronger source has given one.  Of equal ones the later counts."""
        if self.kinds.get(name, FILE) <= kind:
            self.values[name], self.kinds[name], self.origins[name] = value, kind, origin


def read(
    environ: Mapping[str, str],
    by_name: Mapping[str, Setting],
    given: Mapping[str, tuple[Any, str]],
) -> Found:
    """What `given` (name -> value and where it was given), `environ` and the file say.

    The file is the one that `given` or RABIT_CONFIG_FILE names.
    Raises InvalidArgument for a name or a value that is not one of rabit's.
    """
    found = Found()
    for name, (value, origin) in given.items():
        found.put(name, value, GIVEN, origin)
    _read_environment(environ, by_name, found)
    if any(variable.startswith(FOREIGN_PREFIXES) for variable in environ) or not _OLDER.isdisjoint(environ):
        _read_foreigners(environ, by_name, found)
    path = found.values.get("config_file")
    if path:
        # Few jobs have one.
        from pathlib import Path

        from rabit.config.file import read_file

        in_file, notices = read_file(Path(path), by_name)
        for name, (value, origin) in in_file.items():
            found.put(name, value, FILE, origin)
        found.notices += notices
    return found


def _read_environment(
    environ: Mapping[str, str], by_name: Mapping[str, Setting], found: Found
) -> None:
    by_variable = {setting.variable: setting for setting in by_name.values() if setting.variable}
    for variable, text in environ.items():
        if not variable.startswith("RABIT_") or variable in _OLDER:
            continue
        each = by_variable.get(variable)
        if each is None:
            raise InvalidArgument(
                f"the environment variable {variable} is unknown to rabit: "
                f"{nearest(variable, by_variable)} Correct or unset it; every variable is in "
                "docs/reference/config.md."
            )
        if text.strip() or each.kind == "text":
            found.put(each.name, each.parse(text, variable), ENVIRONMENT, variable)
        else:
            raise InvalidArgument(
                f"{variable} is empty, which is not valid: expected {each.expected}. "
                f"Set it, or unset it to get the default ({each.format(each.default)})."
            )


def _read_foreigners(
    environ: Mapping[str, str], by_name: Mapping[str, Setting], found: Found
) -> None:
    # Few environments hold any.
    from rabit.config import byteps, horovod, older

    for whose, twins, without_effect in (
        ("an older rabit", older.TWINS, {}),
        ("Horovod", horovod.TWINS, horovod.VARIABLES_WITHOUT_EFFECT),
        ("BytePS", byteps.TWINS, byteps.VARIABLES_WITHOUT_EFFECT),
    ):
        given = horovod.from_variables(environ, twins)
        _read_foreign(whose, given, without_effect, environ, by_name, found)


def _read_foreign(
    whose: str,
    given: Iterable[tuple[Twin, str]],
    without_effect: Mapping[str, str],
    environ: Mapping[str, str],
    by_name: Mapping[str, Setting],
    found: Found,
) -> None:
    honoured = []
    for twin, text in given:
        each = by_name[twin.setting]
        if each.variable in environ:
            continue
        found.put(each.name, each.parse(text, twin.variable), FOREIGN, twin.variable)
        implied = f"={twin.implied}" if twin.implied else ""
        honoured.append(f"{twin.variable} as {each.variable}{implied}")
    ignored = [f"{name} ({why})" for name, why in without_effect.items() if environ.get(name)]
    parts = []
    if honoured:
        parts.append("honoured " + ", ".join(honoured))
    if ignored:
        parts.append("no effect: " + ", ".join(ignored))
    if parts:
        found.notices.append(f"variables of {whose}: " + "; ".join(parts))
