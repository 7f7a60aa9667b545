"""Methods by name."""

from __future__ import annotations

import pytest

import rabit
import rabit.strategies as methods


@pytest.mark.parametrize("name", methods.available())
def test_every_method_can_be_made_with_its_own_values(name):
    assert isinstance(methods.make(name), methods.Strategy)


def test_arguments_are_read_by_type():
    found = methods.make("powersgd:rank=4,small=0").exchange

    assert found == methods.Bypass(methods.ErrorFeedback(methods.PowerSGD(4)), 0)
    assert methods.make("topk:ratio=1").exchange.inner.inner.codec.spec.startswith("topk:ratio=1,")
    assert methods.make("demo:signs=False").exchange.signs is False
    assert methods.make("mean:codec=bf16").exchange.codec == rabit.Compression.bf16


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("powersdg", "did you mean 'powersgd'"),
        ("powersgd:rnk=2", "did you mean 'rank'. it takes rank=2,start=0,small=65536"),
        ("powersgd:rank=x", "rank is 'x', where int such as 2 is expected"),
        ("powersgd:rank=1.5", "rank is '1.5', where int"),
        ("topk:ratio=nan", "ratio is 'nan', where float"),
        ("demo:signs=no", "signs is 'no', where bool such as True"),
        ("powersgd:rank", "rank has no value; write it as in powersgd:rank=2,"),
        ("anybatch:x=1", "it takes none"),
        ("powersgd:rank=1,rank=2", "rank is given twice"),
        (
            "powersgd:rank=0",
            "^strategy 'powersgd:rank=0': PowerSGD.rank=0.: rank takes a whole number",
        ),
        ("topk:ratio=much", "float such as"),
        ("topk:ratio=2", "topk.ratio=2.: ratio takes a number in"),
        ("qsgd:bits=1", "bits takes a whole number from 2 to 8"),
        (
            "mean:codec=fp8",
            "^strategy 'mean:codec=fp8': codec takes 'fp16' or 'bf16'.*, and not 'fp8'",
        ),
        ("dabmd:graph=star", "graph takes 'ring' or 'all'"),
    ],
)
def test_a_wrong_text_is_refused_with_what_is_known(spec, says):
    with pytest.raises(rabit.InvalidArgument, match=says):
        methods.make(spec)


def test_a_biased_exchange_gets_error_feedback_and_small_parameters_the_mean():
    found = methods.as_strategy(methods.PowerSGD(2)).exchange

    assert found == methods.Bypass(methods.ErrorFeedback(methods.PowerSGD(2)))
    assert methods.as_strategy(methods.RowSparse()).exchange == methods.Bypass(methods.RowSparse())


def test_a_bypass_says_itself_which_parameters_are_small():
    found = methods.as_strategy(methods.Bypass(methods.PowerSGD(4), below_bytes=0)).exchange

    assert found == methods.make("powersgd:rank=4,small=0").exchange


def test_what_is_no_method_is_refused():
    with pytest.raises(rabit.InvalidArgument, match="strategy is 5; use a rabit"):
        methods.as_strategy(5)


def test_the_list_names_every_method_with_its_parameters():
    text = methods.describe()

    for name in methods.available():
        assert f"\n  {name}" in text
    assert "  powersgd:rank=2,start=0,small=65536\n      bits a coordinate: 32·rank" in text
