"""A type of the native code has one definition in its namespace.

Two of one name are one to the linker, which takes the destructor or the copy of either for both. No compiler says so;
where functions are not inlined, memory is corrupted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "native"
_OPENS = re.compile(r"(?:inline )?namespace(?: ([\w:]+))? \{")
_CLOSES = re.compile(r"\}  // namespace")
_DEFINES = re.compile(
    r"(?:struct|class|enum class) (?:alignas\([^)]*\) )?(\w+)(?: final)?(?: : .*)? \{"
)


def types(text: str) -> Iterator[str]:
    """Types with the names of their namespaces, less those of anonymous ones."""
    spaces: list[str | None] = []
    for line in text.splitlines():
        if opened := _OPENS.match(line):
            spaces.append(opened[1])
        elif _CLOSES.match(line) and spaces:
            spaces.pop()
        elif (defined := _DEFINES.match(line)) and all(spaces):
            yield "::".join([*filter(None, spaces), defined[1]])


def test_a_type_is_found_where_it_is_defined():
    text = "namespace a {\nnamespace {\nstruct Hidden {\n};\n}  // namespace\nclass B final : public C {\n"
    assert list(types(text + "struct D;\nclass B::E {\n")) == ["a::B"]


def test_every_type_has_one_definition():
    places = defaultdict(list)
    for path in sorted(NATIVE.rglob("*.h")) + sorted(NATIVE.rglob("*.cc")):
        for name in types(path.read_text()):
            places[name].append(str(path.relative_to(NATIVE)))

    assert len(places) > 200
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
