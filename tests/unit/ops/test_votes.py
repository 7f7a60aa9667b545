"""Decisions that all ranks take together; over engines they are tested with the collectives."""

from __future__ import annotations

import math
from types import SimpleNamespace

from rabit.ops import votes


def test_a_request_that_comes_while_ranks_vote_is_kept_for_the_next_vote(monkeypatch):
    """As a signal does that arrives in the wait."""
    engine = SimpleNamespace(
        wants_stop=False, stops_on_signals=True, stops_at=math.inf, config=SimpleNamespace(stop_file="")
    )

    def vote(condition, name, *, engine):
        votes.request_stop(engine=engine)
        return condition

    monkeypatch.setattr(votes, "any_rank", vote)

    assert votes.should_stop(engine=engine) is False
    assert votes.should_stop(engine=engine) is True
