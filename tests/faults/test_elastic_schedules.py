"""Random losses in elastic jobs; the long form is `make campaign-schedules`."""

from __future__ import annotations

import pytest
from faults.elastic_schedules import run, schedule_of


@pytest.mark.parametrize("seed", [2, 7, 11, 13])
def test_a_job_goes_on_whenever_ranks_are_lost_or_come(seed):
    run(seed)


def test_schedules_have_all_kinds_of_losses():
    kinds = {each.phase for seed in range(200) for each in schedule_of(seed).kills}

    assert kinds == {"before", "sent", "commit", "recovery", "reset", "save", "start", "admitted"}
