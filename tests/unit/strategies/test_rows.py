"""Nobody adds a method without what shows that it is right: its row of the suites, and its rows of the benches."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support import strategy_suite as suite
from support.method_oracles import Oracle
from support.rows import CODECS, ROWS, text_of

import rabit.strategies as methods
from rabit import compression

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import methods_digits
import methods_text

ROOT = Path(__file__).resolve().parents[3]


def test_every_method_has_a_row_with_an_oracle():
    assert sorted(ROWS) == methods.available()
    assert all(isinstance(row.oracle, Oracle) for row in ROWS.values())


def test_every_codec_of_the_engine_has_an_oracle_and_a_row_of_the_guide():
    table = (ROOT / "native" / "codec" / "codec_table.cc").read_text()
    names = set(re.findall(r'^    \{"(\w+)", "', table, re.M))
    # Casts are added up as they travel: tests/conformance/test_collectives.py.
    with_oracle = {row.compression.spec.partition(":")[0] for row in CODECS.values()}

    assert names == with_oracle | {"fp16", "bf16"}
    assert names == set(compression.CODECS)


@pytest.mark.parametrize("name", methods.available())
def test_the_texts_of_a_row_make_the_method(name):
    row = ROWS[name]

    for arguments in (row.short, row.learns[0], row.account.given, row.oracle.given):
        assert isinstance(methods.make(text_of(name, arguments)), methods.Strategy)


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
