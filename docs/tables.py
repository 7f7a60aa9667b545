"""Writes the tables of pages that follow from rows in the code: python docs/tables.py.

Between <!-- table of NAME --> and <!-- end --> a page has the table NAME, as tests/repo/test_methods_pages.py checks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from rabit.compression import CODECS
from rabit.strategies import catalog, names, registry

DOCS = Path(__file__).resolve().parent
PLACE = re.compile(r"(<!-- table of (\w+) -->\n).*?(<!-- end -->)", re.S)


def of_family(family: str) -> str:
    """The methods of docs/reference/methods/FAMILY.md."""
    rows = []
    for name, row in sorted(catalog.FAMILIES[family].items()):
        arguments = registry.defaults(name).split(",")
        shown = [each for each in arguments if not each.startswith("small=") and each[-1:] != "="]
        text = f"{name}:{','.join(shown)}".rstrip(":")
        survives = ", ".join(row.survives) or "-"
        cells = (f"`{text}`", row.does, row.bits, row.keeps, row.use, survives, row.source or "-")
        rows.append(cells)
    heads = (
        "text",
        "what it does",
        "bits",
        "kept",
        "when, and what it needs",
        "survives",
        "source",
    )
    return table(heads, rows)


def of_codecs() -> str:
    """The codecs of docs/howto/compression.md."""
    rows = [
        (f"`Compression.{call}`", bits, row.of, wants)
        for row in CODECS.values()
        for call, bits, wants in row.calls
    ]
    return table(("codec", "bits per element", "types", "needs"), rows)


OPERATION = re.compile(
    r"(grouped_|ordered_|sparse_)?"
    r"(allreduce|reduce|reducescatter|broadcast|allgather|gather|scatter|alltoall|send|recv|barrier|join|push_pull)"
    r"(_object|_parameters|_optimizer_state)?(?P<form>(_async)?_?)"
)
FRONT_ENDS = {"rabit": "api.py", "rabit_torch": "__init__.py", "rabit_mxnet": "__init__.py"}


def of_front_ends() -> str:
    """The calls that each front end has, of docs/reference/api/rabit_mxnet.md."""
    forms: dict[str, dict[str, list[str]]] = {}
    for package, file in FRONT_ENDS.items():
        for name in public_names(DOCS.parent / package / file):
            match = OPERATION.fullmatch(name)
            if match:
                call = name.removesuffix(match["form"])
                forms.setdefault(call, {}).setdefault(package, []).append(match["form"])
    rows = []
    for call, found in sorted(forms.items()):
        cells = []
        for package in FRONT_ENDS:
            shown = [f"`{form}`" if form else "yes" for form in sorted(found.get(package, []))]
            cells.append(", ".join(shown) or "-")
        rows.append((f"`{call}`", *cells))
    return table(("", *FRONT_ENDS), rows)


def public_names(path: Path) -> list[str]:
    """`__all__` of a file, which is not imported: frameworks may be missing."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise ValueError(f"{path} has no __all__")


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in lines)


TABLES: dict[str, Callable[[], str]] = {
    "codecs": of_codecs,
    "front_ends": of_front_ends,
    **{family: lambda family=family: of_family(family) for family in catalog.FAMILIES},
}


def filled(text: str) -> str:
    """The text of a page with its tables made anew."""
    return PLACE.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}", text)


def pages() -> list[Path]:
    """Those that have a table."""
    return [path for path in sorted(DOCS.rglob("*.md")) if PLACE.search(path.read_text())]


def public_strategies(text: str) -> str:
    """The page of rabit.strategies with an entry for each public name that it does not have."""
    missing = [name for name in names.PUBLIC if f":: {name}\n" not in text]
    return text.replace(
        "<!-- all others -->",
        "```{eval-rst}\n" + "".join(f".. autoclass:: {name}\n" for name in missing) + "```",
    )


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text()))
