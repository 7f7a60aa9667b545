"""printable: text out of names and exceptions, which may hold anything, that cannot steer a terminal."""

from __future__ import annotations

import re

__all__ = ["printable", "printable_lines"]

# What a terminal obeys rather than shows: control characters, ends of lines, marks that turn the direction of
# writing, characters without width, halves of pairs. Those that join letters stay: scripts and emoji need them.
# The same table stands in native/base/printable.cc.
_STEERING = (
    r"\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f"
)
_IN_A_LINE = re.compile(f"[{_STEERING}]")
_BUT_NEWLINES = re.compile(rf"(?!\n)[{_STEERING}]")


def printable(text: str) -> str:
    r"""`text` as one line, with each character that a terminal would obey as its code: \n, \x1b, \u202e."""
    return _IN_A_LINE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, such as a traceback; its tabs become spaces."""
    return _BUT_NEWLINES.sub(_escaped, text.expandtabs())


def _escaped(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "surrogatepass").decode("ascii")
