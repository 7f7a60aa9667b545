"""What a method is, its parts included."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from rabit.strategies import (
    Accordion,
    ArrayTrainer,
    Bypass,
    ErrorFeedback,
    Hierarchical,
    Mean,
    MomentumCorrection,
    OneBitAdam,
    Phases,
    Synchronous,
    TwoPhase,
)
from rabit.strategies.minmax import MinMax8
from rabit.strategies.registry import as_strategy
from rabit.testing import run_ranks
from rabit.training.strategy import gives_steps, has_momentum

STEPS = OneBitAdam(TwoPhase(MinMax8()), 3)


@pytest.mark.parametrize(
    "around",
    [
        Synchronous,
        Bypass,
        ErrorFeedback,
        Hierarchical,
        lambda inner: Phases(5, inner),
        lambda inner: Phases(5, Mean(), inner),
        lambda inner: Accordion(Mean(), inner),
        lambda inner: Synchronous(Bypass(ErrorFeedback(inner))),
    ],
)
def test_a_method_has_what_its_parts_have(around):
    assert has_momentum(around(STEPS)) and gives_steps(around(STEPS))
    corrected = around(MomentumCorrection(Mean(), 0.9))
    assert has_momentum(corrected) and not gives_steps(corrected)
    assert not has_momentum(around(Mean())) and not gives_steps(around(Mean()))


@pytest.mark.parametrize(
    ("text", "shape", "warns"),
    [
        ("topk:ratio=0.01", (127, 128), True),
        ("topk:ratio=0.01", (128, 128), False),
        ("topk:ratio=0.01", (1 << 20,), True),
        ("topk:ratio=0.01,small=0", (4,), False),
        ("accordion", (4,), True),
        ("local:every=2", (4,), False),
    ],
)
def test_a_method_that_compresses_nothing_warns_once(text, shape, warns):
    def fn(engine):
        ArrayTrainer({"w": np.zeros(shape, np.float32)}, as_strategy(text), lr=0.1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_ranks(2, fn)

    texts = [str(warning.message) for warning in caught if "compresses nothing" in str(warning.message)]
    assert len(texts) == (1 if warns else 0)
    assert all("each of the 1 parameters of 'array'" in found for found in texts)
