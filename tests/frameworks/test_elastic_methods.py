"""Every gradient method in a job that loses ranks: tested, or refused when the optimizer is made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from faults.elastic_strategies import METHODS, play, train_by

import rabit_torch
from rabit import InvalidArgument
from rabit.strategies import Gossip, available
from rabit.testing import run_ranks

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "elastic_support.md"
REFUSED = {
    "hierarchical": "strategy Hierarchical in an elastic job (--min-np 1): its islands have the same number",
    "lowprecision": "strategy LowPrecisionRing in an elastic job (--min-np 1): each rank knows the parameters of its",
    "decentralized:peers=shift-one": "peers='shift-one' takes an even number of ranks, and there may be others",
    Gossip({0: [0]}): "strategy Gossip in an elastic job (--min-np 1): its graph names the ranks",
}


@pytest.fixture(scope="module")
def after_losses(rank_server):
    """What each method comes to on each rank with and without losses: one job trains by all."""
    # In the middle of a step: what some methods have exchanged and others have not.
    victims = [(4, 0, METHODS["ef21"]), (8, 2, METHODS["qsgd"])]
    return play(list(METHODS.values()), victims, rank_server.command)


def test_every_method_is_tested_or_refused():
    assert sorted({*METHODS, "hierarchical", "lowprecision"}) == available()


def test_the_guide_says_of_every_method_what_becomes_of_it():
    text = GUIDE.read_text().partition("### Strategies")[2].partition("## ")[0]
    rows = dict(re.findall(r"^\| (follow|refused)\S* \| ([^|]*) \|", text, re.M))

    assert re.findall(r"`([a-z0-9-]+)`", rows["follow"]) == sorted(METHODS)
    assert re.findall(r"`([a-z0-9-]+)`", rows["refused"]) == ["hierarchical", "lowprecision"]


@pytest.mark.parametrize("method", METHODS.values())
def test_it_goes_on_from_the_commit_that_all_have(after_losses, method):
    found, reference = after_losses

    assert [each[method] for each in found] == [each[method] for each in reference]


@pytest.mark.parametrize("method", REFUSED, ids=["islands", "ring", "pairs", "graph"])
def test_what_other_numbers_of_ranks_would_break_is_refused(method):
    def fn(engine):
        model = torch.nn.Linear(2, 1)
        with pytest.raises(InvalidArgument, match=re.escape(REFUSED[method])):
            rabit_torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), strategy=method)

    run_ranks(1, fn, min_np=1)


def test_a_newcomer_begins_without_a_residual_of_its_own(rank_server, tmp_path):
    method = METHODS["powersgd"]

    found, sizes = train_by(
        tmp_path, [method], 3, 10,
        least=3, spares=1, victims=[(5, 1, method)], python=rank_server.command,
    )  # fmt: skip

    assert sizes == [3] * 10
    assert found[0] == found[1] == found[2]


@pytest.fixture(scope="module")
def replaced(rank_server, tmp_path_factory):
    """What each method comes to in a job whose lost ranks are replaced and in one that loses none."""
    methods, hosts = list(METHODS.values()), "localhost:2,127.0.0.2:1"
    # The second one has come for the first: it continues with what that one had left.
    victims = [(4, 1, METHODS["ef21"]), (7, 3, METHODS["qsgd"])]
    found, sizes = train_by(
        tmp_path_factory.mktemp("lost"), methods, 3, 10,
        least=3, spares=1, victims=victims, hosts=hosts, replicas=1, python=rank_server.command,
    )  # fmt: skip
    assert sizes == [3] * 10
    reference, _ = train_by(
        tmp_path_factory.mktemp("undisturbed"), methods, 3, 10, hosts=hosts, python=rank_server.command
    )
    return found, reference


@pytest.mark.parametrize("method", METHODS.values())
def test_who_comes_for_a_lost_rank_goes_on_as_if_nothing_had_happened(replaced, method):
    found, reference = replaced

    assert [each[method] for each in found] == [each[method] for each in reference]
