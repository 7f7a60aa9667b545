"""The benches of gradient methods: what a run that was cut continues with, and what they call too little."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))
import methods_curves
import methods_digits
import methods_picture
import methods_text
import methods_text_links
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
        "fp8": {"loss": loss, "bytes": sent, "curve": [], "settings": {"steps": 64}},
    }

    assert methods_text.verdict(rows, "fp8") == says
    assert methods_text.verdict(rows, "mean") == ""


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (64, "claimed from 128 steps; in 64 it misses 33.3% of its gain, not 20%"),
        (128, "misses 33.3% of its gain, not 20%"),
    ],
)
def test_short_trainings_do_not_judge_what_long_ones_claim(steps, says):
    rows = {
        "mean": {"loss": 2.0, "bytes": 100, "curve": [(0, 3.5), (100, 2.0)]},
        "randomk, 10 %": {"loss": 2.5, "bytes": 10, "curve": [], "settings": {"steps": steps}},
    }

    assert methods_text.verdict(rows, "randomk, 10 %") == says


def test_steps_take_as_long_as_those_that_sent_as_many_bytes():
    measured = {"sent": [1000, 1010, 1000, 10, 0, 0], "seconds": [1.0, 3.0, 2.0, 0.5, 0.1, 0.3]}

    found = methods_text_links.seconds_of([1005, 0, 400, 5000], measured)

    assert found == [2.0, 0.3, 0.3, 2.0]


def test_ways_whose_steps_differ_are_measured_for_longer():
    found = {name: methods_text_links.steps_of(way) for name, way in methods_text.WAYS.items()}

    assert found["mean"] == found["qsgd, 8 bits"] == methods_text_links.STEPS
    for name in ("post-local, 8", "diloco, 16", "qadam", "dgc, 1 %", "streaming-diloco, 16"):
        assert found[name] == methods_text_links.STEPS_OF_PHASES


def saved_digits(path, **changes):
    """A file as methods_digits.py saves it, with two methods."""
    rows = Rows(path)
    for name, accuracy in {"mean": [97.5, 98.0], "adasum": [97.0, 97.6]}.items():
        settings = {**asdict(methods_digits.TABLE[name]), "seeds": 2}
        rows.add(name, settings, {"accuracy": accuracy, "bytes": 5.0, **changes})
    return path


def test_accuracies_are_drawn_from_what_was_saved(tmp_path):
    path = saved_digits(tmp_path / "digits.json")

    drawing = methods_picture.Drawing()
    methods_picture.draw_digits(drawing, methods_picture.digits_of(path))

    text = drawing.svg()
    assert "2 seeds each" in text
    assert ">97.8<" in text and ">97.3<" in text and ">adasum<" in text


def test_accuracies_that_were_not_measured_with_these_settings_are_not_drawn(tmp_path):
    path = saved_digits(tmp_path / "digits.json")
    saved = json.loads(path.read_text())
    del saved["rows"]["adasum"]["settings"]
    path.write_text(json.dumps(saved))

    with pytest.raises(SystemExit, match=r"digits\.json: adasum .* has not measured as the table"):
        methods_picture.digits_of(path)
    with pytest.raises(SystemExit, match=r"mean and adasum .* has not measured as the table"):
        methods_picture.digits_of(saved_digits(path, accuracy=[97.0]))


def test_losses_are_drawn_against_bytes_and_against_seconds():
    row = {"text": "mean", "loss": 2.0, "looks": [0, 2, 4], "sent": [5e6] * 4}
    row["curve"] = [(0, 3.5), (10_000_000, 2.5), (20_000_000, 2.0)]
    found = {"steps": 4, "entropy": 0.66, "rows": {"mean": row, "fp8": {**row, "text": "fp8"}}}
    steps = {"sent": [5e6], "seconds": [0.5]}
    links = {"rate": 1e8, "rows": {"mean": steps, "fp8": {"sent": [5e6], "seconds": [0.25]}}}

    cost = methods_curves.seconds(links)
    assert [cost.of(name, row) for name in ("mean", "fp8")] == [[0, 1.0, 2.0], [0, 0.5, 1.0]]
    assert methods_curves.picture(found, None).count("<circle") == 6 + 1  # The mean in every panel.
    assert methods_curves.picture(found, links).count("<circle") == 2 * (6 + 1)
    assert "against seconds on links of 100 Mbit/s" in methods_curves.picture(found, links)
    del links["rows"]["fp8"]
    with pytest.raises(SystemExit, match="no seconds on links are measured for fp8"):
        methods_curves.picture(found, links)
