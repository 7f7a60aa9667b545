"""Summation servers that are killed at a random moment; the long form is `make campaign-servers`."""

from __future__ import annotations

import pytest
from faults.server_losses import loss_of, run


@pytest.mark.parametrize("seed", range(6))
def test_no_sum_and_no_update_is_lost_or_doubled(seed):
    run(seed)


def test_seeds_have_all_kinds_of_jobs():
    losses = [loss_of(seed) for seed in range(50)]

    assert {each.is_async for each in losses} == {False, True}
    assert {(each.servers, each.victim) for each in losses} >= {(2, 0), (2, 1), (3, 2), (4, 0)}
