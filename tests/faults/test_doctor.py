"""The doctor on real jobs: a few faults of its campaign (make campaign-doctor), at places that the seed draws."""

from __future__ import annotations

import random

import pytest
from faults import doctor_faults


@pytest.mark.parametrize(
    "fault",
    [
        "branch",
        "cross-order",
        "crashed",
        "gc",
        "killed",
        "stopped",
        "too-many-files",
        "uneven-steps",
    ],
)
def test_a_fault_and_its_rank_are_among_the_causes(fault):
    dice = random.Random(fault)

    answer = doctor_faults.seen(fault, dice.randrange(doctor_faults.RANKS), dice.uniform(2, 4))

    assert answer.is_among_three, answer.document
    assert answer.is_rank_right, answer.document


def test_a_healthy_job_has_no_established_cause():
    answer = doctor_faults.seen("none", 0, 1.0)

    # Other tests use the processors at the same time: that may be established, and is right.
    causes = [cause for cause in answer.document["causes"] if cause["class"] != "foreign-load"]
    assert [cause for cause in causes if cause["confidence"] == "established"] == []
