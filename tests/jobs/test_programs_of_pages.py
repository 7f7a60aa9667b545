"""Programs of pages that have no other test run as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import program_of, run_program_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", ["start/from_mpi.md", "howto/fault_tolerance.md"])
def test_the_program_of_a_page_runs_on_two_ranks(page, tmp_path):
    run_program_of((DOCS / page).read_text(), tmp_path)


def test_the_program_of_the_page_about_tests_runs():
    exec(program_of((DOCS / "reference" / "api" / "testing.md").read_text()), {})
