"""A case: a function with a name and options.

    @case(ranks=2, sizes=sizes("1K,64K"))
    def allreduce(o):
        ...

The type of a default says how an option is read; `o` has their values, and the docstring is the help.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .report import parse_rate, parse_size

__all__ = ["CASES", "Case", "Option", "case", "choice", "integers", "rate", "sizes", "words"]


@dataclass(frozen=True)
class Option:
    """default: as a text.  read: makes a value of a text; JSON must hold it."""

    default: Any
    read: Callable[[str], Any] = str
    help: str = ""
    choices: tuple[str, ...] | None = None


def sizes(default: str, help: str = "bytes, with commas between") -> Option:
    return Option(default, lambda text: [parse_size(size) for size in text.split(",")], help)


def integers(default: str, help: str = "with commas between") -> Option:
    return Option(default, lambda text: [int(number) for number in text.split(",")], help)


def words(default: str, help: str = "with commas between") -> Option:
    return Option(default, lambda text: [word for word in text.split(",") if word], help)


def rate(default: str, help: str = "of each link, as 100M or 1G") -> Option:
    return Option(default, parse_rate, help)


def choice(*names: str, help: str = "") -> Option:
    """One of `names`, the first by default."""
    return Option(names[0], str, help, names)


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[Any], object]
    options: dict[str, Any]

    @property
    def title(self) -> str:
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    def parse(self, arguments: list[str]) -> SimpleNamespace:
        parser = argparse.ArgumentParser(
            prog=f"python tests/bench {self.name}",
            description=self.run.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for name, default in self.options.items():
            flag, given = f"--{name.replace('_', '-')}", default
            if default is False:
                parser.add_argument(flag, action="store_true")
                continue
            if not isinstance(given, Option):
                given = Option(default, type(default))
            note = f"{given.help} (default {given.default})".strip()
            parser.add_argument(flag, default=str(given.default), choices=given.choices, help=note)
        found = vars(parser.parse_args(arguments))
        for name, default in self.options.items():
            if default is not False:
                read = default.read if isinstance(default, Option) else type(default)
                try:
                    found[name] = read(found[name])
                except ValueError as error:
                    parser.error(f"--{name}: {error}")
        return SimpleNamespace(**found)


CASES: dict[str, Case] = {}


def case(**options: Any) -> Callable[[Callable[[Any], object]], Callable[[Any], object]]:
    """Registers a function as the case of its name.  It returns None, or whether it has passed."""

    def register(run: Callable[[Any], object]) -> Callable[[Any], object]:
        CASES[run.__name__] = Case(run.__name__, run, options)
        return run

    return register
