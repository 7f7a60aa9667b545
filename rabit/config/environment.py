"""The settings that RABIT_ variables give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rabit.config.setting import Setting, nearest
from rabit.errors import InvalidArgument

__all__ = ["from_environment"]


def from_environment(environ: Mapping[str, str], by_name: Mapping[str, Setting]) -> dict[str, Any]:
    """Values by field; raises InvalidArgument for a name or a value that is not one of rabit's."""
    by_variable = {each.variable: each for each in by_name.values() if each.variable}
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith("RABIT_"):
            continue
        found = by_variable.get(variable)
        if found is None:
            raise InvalidArgument(
                f"the environment variable {variable} is unknown to rabit: "
                f"{nearest(variable, by_variable)} Correct or unset it; every variable is in "
                "docs/reference/config.md."
            )
        if text.strip() or found.kind == "text":
            values[found.name] = found.parse(text, variable)
        else:
            raise InvalidArgument(
                f"{variable} is empty, which is not valid: expected {found.expected}. "
                f"Set it, or unset it to get the default ({found.format(found.default)})."
            )
    return values
