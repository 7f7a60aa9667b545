"""What a method is, its parts included."""

from __future__ import annotations

import pytest

from rabit.strategies import (
    Accordion,
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
