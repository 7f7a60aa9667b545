"""Nobody adds a method without what shows that it is right: its row of the suites, and its rows of the benches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import strategy_suite as suite
from support.method_rows import ROWS, text_of

import rabit.strategies as methods

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import methods_digits
import methods_text


def test_every_method_has_a_row_that_the_suites_read():
    assert sorted(ROWS) == methods.available()


@pytest.mark.parametrize("name", methods.available())
def test_the_texts_of_a_row_make_the_method(name):
    row = ROWS[name]

    for arguments in (row.short, row.learns[0], row.account.given):
        assert isinstance(methods.make(text_of(name, arguments)), methods.Strategy)


@pytest.mark.parametrize("name", methods.available())
def test_what_a_row_says_of_steps_is_what_the_method_says(name):
    assert ROWS[name].works_in_step == methods.make(text_of(name)).uses_step


def test_every_method_is_held_to_stay_together_or_to_go_on_bit_for_bit_where_it_is_apart():
    # Averages of `async` come when they come.
    assert sorted({*suite.TOGETHER, *suite.APART, "async"} & set(ROWS)) == methods.available()


@pytest.mark.parametrize(
    "texts",
    [list(methods_digits.TABLE), [way.text for way in methods_text.WAYS.values()]],
    ids=["digits", "letters"],
)
def test_every_method_is_trained_in_earnest(texts):
    assert sorted({text.partition(":")[0] for text in texts}) == methods.available()
