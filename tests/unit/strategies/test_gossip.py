"""Who swaps with whom at a time, so that links are used both ways and no rank waits for a chain of others."""

from __future__ import annotations

import numpy as np
import pytest

import rabit.strategies as methods
from rabit.strategies.gossip import graph_weights, losing_links, matchings
from rabit.testing import run_ranks
from rabit.training.ranks import Ranks


@pytest.mark.parametrize(
    ("graph", "size", "groups"),
    [
        ("ring", 1, 0),
        ("ring", 2, 1),
        ("ring", 4, 2),
        ("ring", 5, 3),
        ("ring", 12, 2),
        ("all", 8, 7),
        (losing_links("all", 7, 0.4, seed=3), 7, None),
    ],
)
def test_each_link_is_in_one_group_and_each_rank_in_a_group_once(graph, size, groups):
    weights = graph_weights(graph, size, 2)

    found = matchings(weights)

    links = sorted((one, other) for pairs in found for one, other in pairs.items())
    assert links == [(one, other) for one, other in np.argwhere(weights).tolist() if one != other]
    assert all(pairs[other] == one for pairs in found for one, other in pairs.items())
    assert groups in (None, len(found))


@pytest.mark.parametrize("name", ["gossip", "lowprecision", "dabmd"])
def test_a_rank_swaps_with_one_neighbour_at_a_time(monkeypatch, name):
    asked, swap = [], Ranks.swap

    def watched(ranks, x, peers):
        asked.append(len(peers))
        return swap(ranks, x, peers)

    monkeypatch.setattr(Ranks, "swap", watched)

    def train(engine):
        method = methods.make(name)
        if hasattr(method, "samples"):
            method.samples = 1
        trainer = methods.ArrayTrainer({"w": np.ones(5, np.float32)}, method, lr=0.1, engine=engine)
        trainer.step({"w": np.full(5, engine.rank, np.float32)})

    run_ranks(4, train, timeout=60)

    assert asked and max(asked) == 1
