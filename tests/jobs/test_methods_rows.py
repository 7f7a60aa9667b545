"""The benches of gradient methods: what a run that was cut goes on with, and what they call too little."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))
import methods_digits
import methods_text
from methods_rows import Rows


def test_a_run_goes_on_with_the_rows_of_the_same_settings(tmp_path):
    path = tmp_path / "folder" / "rows.json"
    first = Rows(path)
    assert first.missing({"a": {"lr": 1}, "b": {"lr": 1}}) == ["a", "b"]
    first.add("a", {"lr": 1}, {"loss": 3.0}, steps=7)
    first.add("b", {"lr": 1}, {"loss": 4.0}, steps=7)

    second = Rows(path)

    assert second.missing({"a": {"lr": 1}, "b": {"lr": 2}, "c": {}}) == ["b", "c"]
    second.add("c", {}, {"loss": 5.0}, steps=7)
    assert json.loads(path.read_text()) == {
        "steps": 7,
        "rows": {"a": {"settings": {"lr": 1}, "loss": 3.0}, "c": {"settings": {}, "loss": 5.0}},
    }
    assert list(tmp_path.glob("folder/*")) == [path]


@pytest.mark.parametrize(
    ("accuracy", "share", "says"),
    [
        ([97.5, 97.5], 1.04, ""),
        ([97.4, 97.4], 1.0, "accuracy 97.40, not 97.47"),
        ([96.9, 97.5], 1.0, ""),  # Its seeds differ by more.
        ([98.0], 1.06, "122176 bytes a step, not 115260"),
        ([98.0], 0.94, "108344 bytes a step, not 115260"),
    ],
)
def test_digits_are_judged_by_accuracy_and_bytes(accuracy, share, says):
    row = {"accuracy": accuracy, "bytes": share * methods_digits.TABLE["mean"].bytes}

    assert methods_digits.verdict("mean", row) == says


@pytest.mark.parametrize(
    ("loss", "sent", "says"),
    [
        (2.01, 26, "as claimed"),
        (2.04, 26, "misses 2.7% of its gain, not 2%"),
        (2.0, 30, "sends 0.300 of 'mean', not 0.27"),
        (float("nan"), 26, "no verdict: losses nan, of 'mean' 3.5 to 2"),
    ],
)
def test_the_text_is_judged_by_what_is_claimed(loss, sent, says):
    rows = {
        "mean": {"loss": 2.0, "bytes": 100, "curve": [(0, 3.5), (100, 2.0)]},
        "fp8": {"loss": loss, "bytes": sent, "curve": []},
    }

    assert methods_text.verdict(rows, "fp8") == says
    assert methods_text.verdict(rows, "mean") == ""
