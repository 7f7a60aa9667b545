"""The program of the reference of rabit_mxnet runs as it is written."""

from __future__ import annotations

from pathlib import Path

from support.pages import run_program_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api" / "rabit_mxnet.md"


def test_the_program_of_the_page_runs(tmp_path):
    run_program_of(PAGE.read_text(), tmp_path)
