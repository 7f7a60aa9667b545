"""Shows the docstrings of the packages with a list of the arguments.

They are sentences, and lines `name: what it is` for arguments; `help()` shows them as they stand.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

ARGUMENT = re.compile(r"(\w+(?:, \w+)*): +(\S.*)")
SENTENCE = re.compile(r"(Returns|Raises|Blocks|Does not block|Waits|Differentiable|Source:)\b")
RAISES = re.compile(r"Raises (\w+) (.*)")


def argument_names(thing: Any) -> set[str]:
    """What a line of the docstring may describe: the arguments, of a class its fields too."""
    names = set(getattr(thing, "__annotations__", {})) if inspect.isclass(thing) else set()
    try:
        return names | set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):  # It has no signature, as modules and constants.
        return names


def escaped(line: str) -> str:
    """The line with what is markup to Sphinx, but not in a docstring, made plain; `names` stay."""
    parts = re.split(r"(`[^`]*`)", line)
    plain = [re.sub(r"([*|]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    parts[::2] = plain
    return "".join(parts)


def as_items(lines: list[str], names: set[str]) -> list[str]:
    """The lines with an item for each described argument; examples, which are indented, stay."""
    out: list[str] = []
    in_item, is_first_paragraph = False, True
    for line in lines:
        found = ARGUMENT.match(line)
        if found and set(found[1].split(", ")) <= names:
            if not in_item:
                out.append("")
            out.append(f"* **{found[1].replace('_', chr(92) + '_')}**: {escaped(found[2])}")
            in_item, is_first_paragraph = True, False
        elif in_item and line.strip() and not starts_anew(line, out[-1]):
            out.append("  " + escaped(line.strip()))
        else:
            if in_item and line.strip():
                out.append("")
            in_item = False
            is_example = line.startswith("    ") and not is_first_paragraph
            out.append(line if is_example else escaped(line))
        if not line.strip():
            is_first_paragraph = False
    return out


def starts_anew(line: str, before: str) -> bool:
    """Whether a line below an argument's is about something else."""
    ends = before.rstrip().endswith((".", ";"))
    return not line.startswith(" ") and ends and SENTENCE.match(line) is not None


def process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_items(lines, argument_names(thing))


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
