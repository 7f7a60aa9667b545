"""Settings: text to value, ranges, and messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabit.config.setting import (
    Setting,
    format_bytes,
    format_duration,
    nearest,
    parse_bytes,
    parse_duration,
)
from rabit.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64K", 65536),
        ("64k", 65536),
        ("4M", 4 << 20),
        ("1G", 1 << 30),
        ("2TiB", 2 << 40),
        (" 8 KB ", 8192),
        ("-1", -1),
    ],
)
def test_sizes_take_suffixes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "K", "1.5M", "4X", "0x10", "1 2", "4MM"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5.0),
        ("5s", 5.0),
        ("500ms", 0.5),
        ("50us", 5e-5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("0.25", 0.25),
        (".5s", 0.5),
    ],
)
def test_durations_take_suffixes(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 years", "1e3", "nan", "inf"])
def test_other_durations_are_refused(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_formatted_sizes_read_back(value):
    assert parse_bytes(format_bytes(value)) == value


@given(st.integers(min_value=0, max_value=10**10))
def test_formatted_durations_read_back(microseconds):
    value = microseconds / 1e6

    assert parse_duration(format_duration(value)) == pytest.approx(value, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("On", True), ("0", False), ("no", False)]
)
def test_booleans(text, value):
    assert Setting("x", "bool", False, "").parse(text, "X") is value


def test_a_malformed_value_names_source_value_and_expectation():
    lanes = Setting("lanes", "int", 2, "", minimum=1, maximum=64)

    with pytest.raises(InvalidArgument) as caught:
        lanes.parse("many", "RABIT_LANES")

    assert str(caught.value) == (
        "RABIT_LANES is 'many', which is not valid: expected an integer, between 1 and 64. "
        "Correct it, or unset it to get the default (2)."
    )


@pytest.mark.parametrize("value", [0, 65, True, "2", 2.0, None])
def test_values_of_wrong_type_or_range_are_refused(value):
    lanes = Setting("lanes", "int", 2, "", minimum=1, maximum=64)

    with pytest.raises(InvalidArgument, match="expected an integer, between 1 and 64"):
        lanes.check(value, "Config.lanes")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_durations_are_finite_and_in_range(value):
    with pytest.raises(InvalidArgument, match="expected a duration"):
        Setting("x", "duration", 1.0, "", minimum=0).check(value, "x")


def test_a_refused_secret_is_not_shown():
    with pytest.raises(InvalidArgument) as caught:
        Setting("secret", "secret", b"", "").check("hunter2", "Config.secret")

    assert "hunter2" not in str(caught.value)


def test_text_cannot_smuggle_in_another_line():
    with pytest.raises(InvalidArgument, match="expected text"):
        Setting("host_key", "text", "", "").parse("a\nrank=3", "RABIT_HOST_KEY")


def test_nearest_names_the_close_one_or_lists_all():
    assert nearest("lames", ["lanes", "spin"]) == "did you mean lanes?"
    assert nearest("zzz", ["lanes", "spin"]) == "known: lanes, spin"


@pytest.mark.parametrize(
    ("native", "value", "text"),
    [("a_ms", 0.5, "500"), ("a_ms", 0.0001, "1"), ("a_ms", 0.0, "0"), ("a_us", 5e-5, "50")],
)
def test_native_durations_have_the_unit_of_the_key(native, value, text):
    assert Setting("a", "duration", 0.0, "", native=native).native_value(value) == text
