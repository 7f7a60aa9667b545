"""What a setting is, and how its text becomes a value.

A setting is a field of `Config` with a description: type, range, unit, help, and the names under
which the environment, the command line, the native library and Horovod know it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from rabit.errors import InvalidArgument

__all__ = ["Setting", "nearest", "parse_bytes", "parse_duration", "setting"]

_BYTES = r"^\s*(-?\d+)\s*([KMGT]?)(?:i?B)?\s*$"
_BYTE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATION = r"^\s*(-?\d+(?:\.\d*)?|-?\.\d+)\s*(us|ms|s|m|h)?\s*$"
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bytes": (int,),
    "float": (int, float),
    "duration": (int, float),
    "bool": (bool,),
    "secret": (bytes,),
}
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class Setting(NamedTuple):
    """The description of one field of `Config`.

    kind: "int", "float", "bytes" (64K, 4M, 1G), "duration" (500ms, 5s; seconds when bare), "bool",
    "choice", "text", or "secret" (never printed, never read from the environment).
    """

    name: str
    kind: str
    default: Any
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    native: str = ""  # key of rabit_start's options; empty: Python or the launcher use it alone
    flag: str = ""  # of rabitrun; empty: set by the launcher itself
    short_flag: str = ""
    aliases: tuple[tuple[str, str], ...] = ()  # further words for choices
    is_equal: bool = False  # must be equal on all ranks, which compare it when they meet
    group: str = "tuning"
    level: str = (
        "expert"  # "basic": for everyone; "hidden": for launchers and for work on rabit itself
    )

    @property
    def variable(self) -> str:
        """The environment variable; empty when the setting has none."""
        return "" if self.kind == "secret" else "RABIT_" + self.name.upper()

    @property
    def expected(self) -> str:
        """What a value must look like, for messages and the reference page."""
        return {
            "int": "an integer",
            "float": "a number",
            "bytes": "a size such as 65536, 64K, 4M or 1G",
            "duration": "a duration such as 500ms, 5s or 2m (seconds when bare)",
            "bool": "0 or 1",
            "choice": "one of " + ", ".join(self.choices),
            "text": "text",
            "secret": "32 bytes",
        }[self.kind] + self._range_text()

    def _range_text(self) -> str:
        if self.minimum is None:
            return ""
        low = self._spoken(self.minimum)
        if self.maximum is None:
            return f", at least {low}"
        return f", between {low} and {self._spoken(self.maximum)}"

    def _spoken(self, value: float) -> str:
        """A bound as people write it: 1 TiB, 268435456, 100ms."""
        if self.kind == "bytes":
            return re.sub(r"([KMGT])$", r" \1iB", format_bytes(int(value)))
        return format_duration(value) if self.kind == "duration" else str(value)

    def parse(self, text: str, source: str) -> Any:
        """The value that `text` stands for.  `source` names where it comes from in errors."""
        value = self._parse(text.strip())
        if value is None:
            self._refuse(text, source)
        self.check(value, source)
        return value

    def _parse(self, text: str) -> Any:
        try:
            if self.kind == "int":
                return int(text)
            if self.kind == "float":
                number = float(text)
                return number if math.isfinite(number) else None
            if self.kind == "bytes":
                return parse_bytes(text)
            if self.kind == "duration":
                return parse_duration(text)
        except ValueError:
            return None
        if self.kind == "bool":
            lower = text.lower()
            return True if lower in _TRUE else False if lower in _FALSE else None
        if self.kind == "choice":
            return dict(self.aliases).get(text.lower(), text.lower())
        return text

    def check(self, value: Any, source: str) -> None:
        """Raises InvalidArgument unless `value` has the right type and lies in the range."""
        wanted = _TYPES.get(self.kind, (str,))
        is_right_type = isinstance(value, wanted) and (
            self.kind == "bool" or not isinstance(value, bool)
        )
        if not is_right_type:
            self._refuse(value, source)
        if self.kind == "choice" and value not in self.choices:
            self._refuse(value, source)
        if self.kind == "text" and any(ord(letter) < 32 for letter in value):
            self._refuse(value, source)
        is_number = self.kind in ("int", "float", "bytes", "duration")
        if is_number and not (
            math.isfinite(value)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
        ):
            self._refuse(value, source)

    def _refuse(self, value: Any, source: str) -> None:
        shown = "(hidden)" if self.kind == "secret" else repr(value)
        raise InvalidArgument(
            f"{source} is {shown}, which is not valid: expected {self.expected}. "
            f"Correct it, or unset it to get the default ({self.format(self.default)})."
        )

    def format(self, value: Any) -> str:
        """`value` as text that `parse` reads back; for command lines and the reference page."""
        if self.kind == "secret":
            return "(hidden)" if value else "(none)"
        if self.kind == "bytes":
            return format_bytes(value)
        if self.kind == "duration":
            return format_duration(value)
        if self.kind == "bool":
            return "1" if value else "0"
        return str(value)

    def native_value(self, value: Any) -> str:
        """`value` as text for the native key, in the key's unit."""
        if self.kind == "bool":
            return "1" if value else "0"
        if self.kind == "duration":
            factor = 1e6 if self.native.endswith("_us") else 1e3
            return str(math.ceil(round(value * factor, 3)))
        if self.kind == "secret":
            return str(value.hex())
        return str(value)


def setting(default: Any, help: str, *, kind: str = "", **more: Any) -> Any:
    """A field of a class of Settings: its description, which has its name and group from there."""
    if not kind:
        kind = (
            "bool" if isinstance(default, bool) else "int" if isinstance(default, int) else "text"
        )
    return Setting("", kind, default, help, **more)


def parse_bytes(text: str) -> int:
    """Bytes from "65536", "64K", "4M", "1GiB"; the factors are powers of 1024."""
    match = re.match(_BYTES, text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 65536, 64K, 4M or 1G")
    return int(match.group(1)) * _BYTE_FACTORS[match.group(2).upper()]


def parse_duration(text: str) -> float:
    """Seconds from "5", "5s", "500ms", "50us", "2m", "1h"."""
    match = re.match(_DURATION, text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 5s or 2m")
    return round(float(match.group(1)) * _SECONDS[(match.group(2) or "s").lower()], 9)


def format_bytes(value: int) -> str:
    for suffix, factor in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if value and value % factor == 0:
            return f"{value // factor}{suffix}"
    return str(value)


def format_duration(value: float) -> str:
    if value and value % 3600 == 0:
        return f"{int(value) // 3600}h"
    for suffix, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        scaled = round(value * factor, 6)
        if scaled == int(scaled):
            return f"{int(scaled)}{suffix}"
    return f"{value:g}s"


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence part that names the closest known name, or lists the known ones."""
    import difflib  # Names are rarely wrong.

    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return "known: " + ", ".join(names)
