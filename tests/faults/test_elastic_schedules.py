"""Random losses in elastic jobs; the long form is `make campaign-schedules`."""

from __future__ import annotations

import pytest
from faults.elastic_schedules import OPTIMIZERS, run, schedule_of
from support.rank_server import RankServer


@pytest.fixture(scope="module")
def torch_command():
    pytest.importorskip("torch")
    server = RankServer("torch")
    yield server.command
    server.close()


# They train two arrays, and tables with SparseAdam, AdamW and LBFGS.
@pytest.mark.parametrize("seed", [13, 17, 19, 20, 29])
def test_a_job_goes_on_whenever_ranks_are_lost_or_come(seed, torch_command):
    run(seed, torch_command)


def test_schedules_have_all_kinds_of_losses():
    kinds = {each.phase for seed in range(200) for each in schedule_of(seed).kills}

    assert kinds == {"before", "sent", "commit", "recovery", "reset", "save", "start", "admitted"}


def test_schedules_have_every_optimizer_of_torch():
    optim = pytest.importorskip("torch").optim
    found = {name for name, each in vars(optim).items() if isinstance(each, type) and issubclass(each, optim.Optimizer)}

    assert found - {"Optimizer"} <= set(OPTIMIZERS)
    assert {schedule_of(seed).kind for seed in range(300)} == {"", *OPTIMIZERS}
