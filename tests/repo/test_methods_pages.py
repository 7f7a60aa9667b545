"""The pages of gradient methods name every method, and their programs run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rabit.strategies import available, make

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
FAMILIES = sorted((GUIDES / "methods").glob("*.md"))


def named(page: Path) -> list[str]:
    """The texts in code of a page that may name methods."""
    return re.findall(r"`([a-z][a-z0-9-]*(?::[a-z0-9_.,=-]+)?)`", page.read_text())


def test_every_method_has_a_row_in_the_table():
    rows = re.findall(r"^\| (`.*?) \|", (GUIDES / "methods.md").read_text(), re.M)
    found = {name.partition(":")[0] for row in rows for name in re.findall(r"`([^`]*)`", row)}

    assert sorted(set(available()) - found) == []


def test_every_method_is_on_the_page_of_a_family():
    found = {text.partition(":")[0] for page in FAMILIES for text in named(page)}

    assert sorted(set(available()) - found) == []


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
