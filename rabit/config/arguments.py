"""Command lines: the parser of every command of this package, and types of flags."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from typing import NoReturn

from rabit.config.setting import parse_duration
from rabit.errors import InvalidArgument

__all__ = ["LineParser", "duration_up_to"]


class LineParser(argparse.ArgumentParser):
    """Raises InvalidArgument, in one line, where argparse would print its usage and end the process.

    advice: what to do about a flag that is unknown; "": see --help.
    """

    advice = ""

    def error(self, message: str) -> NoReturn:
        _, is_unknown, names = message.partition("unrecognized arguments: ")
        if not is_unknown:
            raise InvalidArgument(f"{message}. See {self.prog} --help.")
        first = names.split()[0].partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        close = difflib.get_close_matches(first, known, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        what = "flag" if first.startswith("-") else "argument"
        raise InvalidArgument(
            f"the {what} {first} is unknown.{hint} {self.advice or f'See {self.prog} --help.'}"
        )


def duration_up_to(limit_s: float, limit: str) -> Callable[[str], float]:
    """The type of a flag that takes a duration above zero, such as 300ms; in seconds.

    limit: `limit_s` in words, for the user.
    """

    def duration(text: str) -> float:
        try:
            value = parse_duration(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not 0 < value <= limit_s:
            raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and {limit}")
        return value

    return duration
