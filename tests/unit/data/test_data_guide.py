"""The guide about samples shows a program that runs."""

from pathlib import Path

from support.pages import run_program_of

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "data.md"


def test_the_program_of_the_guide_runs(tmp_path):
    run_program_of(GUIDE.read_text(), tmp_path)
