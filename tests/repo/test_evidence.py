"""Every system that the project set out to hold has a row of evidence, and pages are those of the stored results."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "evidence"))

import pages

ROOT = Path(__file__).resolve().parents[2]
ROWS = pages.rows()


def test_pages_and_plots_are_those_of_the_stored_results():
    files = pages.made()
    stored = [*pages.HERE.glob("*.md"), *pages.HERE.glob("plots/*.svg")]

    assert {path.relative_to(pages.HERE).as_posix() for path in stored} == set(files), "run `make evidence`"
    stale = [name for name, text in files.items() if (pages.HERE / name).read_text() != text]
    assert not stale, "run `make evidence`"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_has_all_its_parts(row):
    assert all([row.system, row.claim, row.found, row.why])
    assert row.verdict in pages.VERDICTS
    assert row.is_ours or all([row.source, row.setting, row.checked])
    assert row.measures or row.verdict in ("not built yet", "not measured yet")
    assert {measure["id"] for measure in row.measures} == set(row.results)
    for result in row.results.values():
        assert re.fullmatch(r"[0-9a-f]{7,40}", result["commit"])
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", result["date"])
        assert result["command"] and result["machine"]
        assert result["rows"] and {len(line) for line in result["rows"]} == {len(result["columns"])}
    assert any("plot" in measure for measure in row.measures) or not row.measures


def test_commands_of_rows_exist():
    """A benchmark, a target of make, or a program of the tests that a row names is there."""
    benches = "\n".join(path.read_text() for path in (ROOT / "tests" / "bench").glob("*.py"))
    cases = set(re.findall(r"^def (\w+)\(o: Any\)", benches, re.M))
    cases |= {path.stem for path in (ROOT / "tests" / "bench").glob("*.py")}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    programs = {path.stem for path in (ROOT / "native").rglob("bench_*.cc")}
    missing = []
    for row in ROWS:
        for command in [*(result["command"] for result in row.results.values())]:
            missing += [name for name in re.findall(r"tests/bench (\w+)", command) if name not in cases]
            missing += [name for name in re.findall(r"\bmake ([a-z-]+)", command) if name not in targets]
            missing += [name for name in re.findall(r"\b(bench_\w+)", command) if name not in programs]
            missing += [name for name in re.findall(r"tests/\S+\.py", command) if not (ROOT / name).exists()]

    assert not missing
