"""Tables of pages are those of the rows in the code, and programs of the pages of methods run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from rabit.strategies import available, make
from rabit.strategies.catalog import FAMILIES as FAMILIES_OF_METHODS

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))

import tables

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
FAMILIES = sorted((REFERENCE / "methods").glob("*.md"))


def named(page: Path) -> list[str]:
    """The texts in code of a page that may name methods."""
    return re.findall(r"`([a-z][a-z0-9-]*(?::[a-z0-9_.,=-]+)?)`", page.read_text())


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: page.stem)
def test_tables_are_those_of_the_rows(page):
    text = page.read_text()

    assert tables.filled(text) == text, "run `python docs/tables.py`"


def test_every_family_has_a_page_and_every_table_is_on_one():
    found = [name for page in tables.pages() for name in tables.PLACE.findall(page.read_text())]

    assert sorted(name for _, name, _ in found) == sorted(tables.TABLES)
    assert sorted(page.stem for page in FAMILIES) == sorted(FAMILIES_OF_METHODS)


@pytest.mark.parametrize("page", FAMILIES, ids=lambda page: page.stem)
def test_texts_of_a_page_make_methods(page):
    texts = [text for text in named(page) if text.partition(":")[0] in available()]

    assert texts
    for text in texts:
        if "STEPS" not in text:
            make(text)


@pytest.mark.parametrize("page", FAMILIES, ids=lambda page: page.stem)
def test_programs_of_a_page_run(page):
    programs = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)

    assert programs
    for program in programs:
        exec(compile(program, str(page), "exec"), {})
