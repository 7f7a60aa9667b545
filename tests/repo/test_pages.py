"""Pages stay short, generated ones are up to date, and pictures are those that are drawn."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "pictures"))

import draw
import rabitrun_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

UNLIMITED = ("reference/", "evidence/", "contribute/decisions/", "changes/", "performance.md")
PAGES = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if not path.relative_to(DOCS).as_posix().startswith(UNLIMITED)
]
RECORDS = sorted((DOCS / "contribute" / "decisions").glob("0*.md"))


def words(path: Path) -> int:
    """Those outside programs, tables included."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.M | re.S)
    return len(re.sub(r"[|\-:#*`]+", " ", text).split())


def test_the_readme_fits_on_a_page():
    assert len((ROOT / "README.md").read_text().split()) <= 600


def test_the_index_shows_the_program_of_the_readme():
    programs = [
        re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)[0]
        for path in (ROOT / "README.md", DOCS / "index.md")
    ]

    assert programs[0] == programs[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_can_be_read_in_one_sitting(page):
    assert words(page) <= (700 if page.parent.name == "howto" else 1500)


def test_all_pages_can_be_read_in_a_morning():
    assert sum(words(page) for page in PAGES) <= 25_000


def test_the_page_of_rabitrun_is_that_of_its_parser():
    page = (DOCS / "reference" / "rabitrun.md").read_text()

    assert page == rabitrun_page.rabitrun_markdown(), (
        "python docs/rabitrun_page.py > docs/reference/rabitrun.md"
    )


@pytest.mark.parametrize("name", draw.PICTURES)
def test_a_picture_is_the_one_that_is_drawn(name):
    drawn = draw.PICTURES[name]().svg()

    assert (DOCS / "pictures" / f"{name}.svg").read_text() == drawn, "python docs/pictures/draw.py"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem[:4])
def test_a_record_says_its_status_and_what_it_supersedes(record):
    head = record.read_text().split("\n\n")[1]

    assert re.fullmatch(r"Status: .+\.\nSupersedes: .+\.", head)


def test_the_list_for_language_models_names_pages_that_exist():
    targets = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text())

    assert targets
    assert [target for target in targets if not (DOCS / target).exists()] == []


def test_every_page_is_in_the_sidebar():
    index = (DOCS / "index.md").read_text()
    names = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    shown = set(re.findall(r"^[\w/]+$", index, re.M))
    in_others = re.compile(r"contribute/decisions/0|changes/|evidence/(?!raw/)|index$")
    elsewhere = {name for name in names if in_others.match(name)}

    assert names - shown == elsewhere
