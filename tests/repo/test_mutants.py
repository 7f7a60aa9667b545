"""The bugs of tests/faults/mutants fit the sources, so that `make mutants` tries all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.mutants.catalogue import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_its_tests_are_there(mutant):
    changed = mutant.changed(ROOT)

    assert changed != (ROOT / mutant.file).read_text()
    assert mutant.tests
    for what in mutant.tests:
        assert what.startswith("native:") or (ROOT / what.split()[0].partition("::")[0]).is_file(), what
    if mutant.file.endswith(".py"):
        compile(changed, mutant.file, "exec")


def test_there_are_forty_with_names_of_their_own():
    assert len(MUTANTS) >= 40
    assert len({each.name for each in MUTANTS}) == len(MUTANTS)
