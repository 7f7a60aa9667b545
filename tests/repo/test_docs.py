"""Documentation that is wrong fails here: dead links, missing errors, records without a part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.pages import blocks_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "native" / "README.md"]


def test_the_readme_example_is_short():
    lines = [line for line in blocks_of((ROOT / "README.md").read_text())[0].splitlines() if line.strip()]

    assert len(lines) <= 16


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_is_dead(page):
    dead = []
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
            dead.append(target)

    assert not dead


def test_every_error_class_is_documented():
    import rabit

    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    classes = [
        name
        for name in rabit.__all__
        if isinstance(getattr(rabit, name), type)
        and issubclass(getattr(rabit, name), rabit.RabitError)
    ]

    assert [name for name in classes if f"`{name}`" not in text and name != "RabitError"] == []


def test_every_decision_record_has_a_number_of_its_own():
    records = sorted((ROOT / "docs" / "contribute" / "decisions").glob("0*.md"))
    numbers = [path.name[:4] for path in records]

    assert [each.name for each in records if numbers.count(each.name[:4]) > 1] == []
    assert all(each.read_text().startswith(f"# {each.name[:4]} ") for each in records)


def test_every_decision_record_has_the_four_parts():
    records = sorted((ROOT / "docs" / "contribute" / "decisions").glob("0*.md"))
    bad = [
        path.name
        for path in records
        if any(
            part not in path.read_text()
            for part in ("Context", "Decision", "Consequences", "Rejected")
        )
    ]

    assert records
    assert not bad
