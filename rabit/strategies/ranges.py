"""What the arguments of methods may be: checked when a method is made."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

from rabit.errors import InvalidArgument

__all__ = ["check", "check_betas", "check_choice", "in_range"]


def in_range(method: object, **ranges: str) -> None:
    """Raises InvalidArgument where an attribute of `method` is out of its range; see `check`."""
    for name, text in ranges.items():
        check(type(method).__name__, name, getattr(method, name), text)


def check(owner: str, name: str, value: object, text: str) -> None:
    """Raises InvalidArgument unless `value`, the argument `name` of `owner`, is in a range.

    text: "1.." or "2..8" for whole numbers, "(0, 1]" for any, as they are written in mathematics.
    """
    if ".." in text:
        low, _, high = text.partition("..")
        is_in = isinstance(value, numbers.Integral) and int(low) <= int(value) <= float(high or "inf")
        what = f"a whole number from {low} {f'to {high}' if high else 'on'}"
    else:
        low, _, high = text[1:-1].partition(", ")
        number = float(value) if isinstance(value, numbers.Real) else math.nan
        is_in = float(low) <= number <= float(high)
        is_in = is_in and not (text[0] == "(" and number == float(low))
        is_in = is_in and not (text[-1] == ")" and number == float(high))
        what = f"a number in {text}"
    if not is_in or isinstance(value, bool):
        raise InvalidArgument(f"{owner}({name}={value!r}): {name} takes {what}.")


def check_choice(owner: str, name: str, value: object, choices: Sequence[str]) -> None:
    """Raises InvalidArgument unless `value` is one of the texts."""
    if value not in choices:
        raise InvalidArgument(f"{owner}({name}={value!r}): {name} takes {' or '.join(map(repr, choices))}.")


def check_betas(method: object, betas: tuple[float, float]) -> None:
    """Raises InvalidArgument unless these are what Adam may keep of its two moments in a step."""
    for number, beta in enumerate(betas):
        check(type(method).__name__, f"betas[{number}]", beta, "[0, 1)")
