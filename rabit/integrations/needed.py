"""Loads the library that an integration serves, or says how to get it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rabit.errors import Unsupported

__all__ = ["needed"]


def needed(library: str, caller: str, extra: str) -> Any:
    """The module `library`.  Raises Unsupported, with the command that installs it, if there is none."""
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library.partition(".")[0]:
            raise  # The library is there, and something that it needs is not.
        raise Unsupported(
            f"{caller} needs {library}, which is not installed. Run: pip install 'mariza-rabit[{extra}]'"
        ) from error
