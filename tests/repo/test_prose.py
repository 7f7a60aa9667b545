"""Pages, docstrings of public names and texts of errors avoid phrases that stopped readers.

prose_remaining.txt says how many of each are left in pages and in code; its numbers may only shrink, and
`python tests/repo/test_prose.py` lowers them.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REMAINING = Path(__file__).with_name("prose_remaining.txt")
NUMBERS = ("docs/evidence/", "docs/performance.md")  # raw measurements, and how they were made

# What to write instead stands behind each.
TRAITS = {
    "beside": r"\bbeside\b",  # compared with, next to, in addition to
    "who": r"\bwhom\b|\b[Ww]hoever\b|(?:^|[.;:] )Who (?!is\b|are\b|does\b|decides\b)",  # a rank that ...
    "is no": r"(?<!\b[Tt]here )\b(?:is|are) (?:no (?!longer|more|other)|none\b)",  # is not a ...
    "told": r"\b(?:told\b(?!:)|tells of\b)",  # reported; `told:` describes an argument
    "without a word": r"\bwithout a word\b",  # silently
    "so many": r"\bso many\b|\bof like cost\b",  # as many as, similar
    "anew": r"\banew\b|\bfor ever\b|\bin vain\b",  # again, forever
    "what is left": r"\b[Ww]hat (?:is left|there is|it is of)\b",  # the remaining ...
    "as what": r"\bas what\b",  # how, in which form
    "detached": r"\bhave only with\b|\bwhich .{1,40} alone has\b",  # plain order of words
    "phrasal": r"\b(?:kept|keeps?) up\b|\btakes? out\b|\bgo(?:es)? without\b|\bgo(?:es)? on\b",  # continue
    "long": "",  # sentences of 40 words and more with two semicolons
}
PATTERNS = {name: re.compile(pattern, re.M) for name, pattern in TRAITS.items() if pattern}
ITEM = r"\n\s*(?:[-*]|\d+\.) |(?:^|\n|\.  ?)(?=[a-z_*]+(?:, [a-z_*]+)*: )"  # of a list, or a parameter's description
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*])")


def listed(*patterns: str) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in names if (ROOT / name).exists()]


def prose_of_page(path: Path) -> str:
    """The page without programs and code."""
    text = re.sub(r"^( *)(```|~~~).*?^ *\2", "", path.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "x", text)


def texts_of_module(path: Path) -> Iterator[str]:
    """Docstrings of what has a public name, and the texts of errors."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_named and not node.name.startswith("_"):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def long_sentences(text: str) -> int:
    paragraphs = [part for part in text.split("\n\n") if not part.lstrip().startswith("|")]
    items = [item for part in paragraphs for item in re.split(ITEM, part)]
    sentences = [sentence for item in items for sentence in SENTENCE.split(item)]
    return sum(len(each.split()) >= 40 and each.count(";") >= 2 for each in sentences)


def traits_of(text: str) -> Counter[str]:
    found = Counter({name: len(pattern.findall(text)) for name, pattern in PATTERNS.items()})
    found["long"] = long_sentences(text)
    return found


def found() -> dict[str, Counter[str]]:
    """`pages beside` -> how often in which file."""
    places: dict[str, Counter[str]] = {}
    sources = [("pages", path, prose_of_page(path)) for path in listed("*.md")]
    for path in listed("rabit/*.py", "rabit_torch/*.py", "rabit_mxnet/*.py"):
        sources.append(("code", path, "\n\n".join(texts_of_module(path))))
    for kind, path, text in sources:
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(NUMBERS):
            continue
        for trait, count in traits_of(text).items():
            if count:
                places.setdefault(f"{kind} {trait}", Counter())[name] = count
    return places


def allowed() -> dict[str, int]:
    rows = (line.rsplit(" ", 1) for line in REMAINING.read_text().splitlines())
    return {place: int(count) for place, count in rows}


def test_no_new_phrase_stops_a_reader():
    limits = allowed()
    more = [
        f"{trait}: {places.total()}, {limits.get(trait, 0)} allowed: {', '.join(places)}"
        for trait, places in found().items()
        if places.total() > limits.get(trait, 0)
    ]

    assert not more, "rewrite these; TRAITS says what to write instead:\n" + "\n".join(more)


def test_the_traits_are_recognised():
    text = "Who comes is told anew. It is no handle beside that. There is no rank. What is left goes on."

    assert {name for name, count in traits_of(text).items() if count} == {
        *("who", "told", "anew", "is no", "beside", "what is left", "phrasal")
    }


if __name__ == "__main__":
    now = {trait: places.total() for trait, places in found().items()}
    if REMAINING.exists():
        before = allowed()
        now = {trait: min(count, before.get(trait, 0)) for trait, count in now.items()}
    REMAINING.write_text("".join(f"{trait} {now[trait]}\n" for trait in sorted(now) if now[trait]))
