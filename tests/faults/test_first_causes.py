"""Whom rabitrun shows when a rank fails: a few jobs of the campaign in first_causes.py."""

from __future__ import annotations

import random

import pytest
from faults import first_causes
from support import sshd


@pytest.mark.parametrize("seed", range(3))
def test_the_rank_that_failed_is_shown_over_ssh(seed):
    failure = first_causes.Failure.drawn(random.Random(seed))
    try:
        with first_causes.two_hosts() as flags:
            first_causes.run(failure, flags)
    except sshd.NoSshd as why:
        pytest.skip(str(why))
