"""Types of command-line flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rabit.config.setting import parse_duration

__all__ = ["duration_up_to"]


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
