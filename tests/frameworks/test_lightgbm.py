"""rabit.lightgbm: equal models on all ranks, and a killed rank is an error of the others."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("lightgbm")
import rabit
import rabit.integrations.lightgbm as integration
from rabit.errors import InvalidArgument
from rabit.integrations.lightgbm import _parameters

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = pytest.mark.timeout(300)


def run(size, script, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", str(size), sys.executable, SCRIPTS / script, *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.mark.parametrize("size", [2, 4])
def test_models_are_equal_on_all_ranks_and_as_good_as_of_one_process(size):
    done = run(size, "lightgbm_models.py")

    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"\] (\w+) (data|voting) (\w+) (\S+) (\S+)", done.stdout)
    assert len(found) == 7, done.stdout
    for objective, learner, is_equal, error, alone in found:
        assert is_equal == "True", (objective, learner)
        assert float(error) <= float(alone) + 0.02, (objective, learner)


def killed_at(call, when, answers):
    """Rank 1 kills itself at its collective of this number; the others say whom they miss, and after how long."""
    import lightgbm
    import numpy as np

    calls = itertools.count(1)

    def counted(collective):
        def counting(*arguments, **options):
            if rabit.rank() == 1 and next(calls) == call:
                when.value = time.time()
                os.kill(os.getpid(), 9)
            return collective(*arguments, **options)

        return counting

    integration.alltoall = counted(integration.alltoall)
    integration.allgather = counted(integration.allgather)
    rows = np.random.default_rng(rabit.rank()).normal(size=(500, 10))
    params = {"objective": "regression", "verbose": -1, "num_threads": 1}
    try:
        rabit.lightgbm.train(params, lightgbm.Dataset(rows, rows[:, 0]), num_boost_round=20)
    except rabit.PeerLost as error:
        answers.put((rabit.rank(), error.rank, time.time() - when.value))
        raise


def test_a_killed_rank_is_an_error_of_the_others_within_a_second():
    """At 50 places, from the first collective of the bins on."""
    context = multiprocessing.get_context("fork")
    slowest = 0.0
    for call in range(1, 51):
        when, answers = context.Value("d"), context.Queue()
        with pytest.raises(rabit.RunFailed, match=r"rank 1 of 3 .* killed by SIGKILL"), rabit.Meeting(3) as meeting:
            ranks = [
                context.Process(target=meeting.as_rank(rank, killed_at), args=(call, when, answers))
                for rank in range(3)
            ]
            for process in ranks:
                process.start()
            for rank, process in enumerate(ranks):
                process.join(60)
                meeting.ended(rank, process.exitcode)
        found = sorted(answers.get(timeout=5) for _ in range(2))
        assert [each[:2] for each in found] == [(0, 1), (2, 1)]
        slowest = max([slowest, *(each[2] for each in found)])
    print(f"50 kills, the slowest noticed after {slowest:.3f} s")
    assert slowest < 1.0


def test_one_rank_trains_as_without_rabit():
    import lightgbm
    import numpy as np

    rows = np.random.default_rng(0).normal(size=(200, 4))
    params = {"objective": "regression", "verbose": -1, "num_threads": 1}

    model = rabit.lightgbm.train(params, lightgbm.Dataset(rows, rows[:, 0]), num_boost_round=3)

    alone = lightgbm.train(params, lightgbm.Dataset(rows, rows[:, 0]), num_boost_round=3)
    assert model.model_to_string() == alone.model_to_string()
    rabit.shutdown()


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"tree_learner": "serial"}, "tree_learner='serial' does not train on several machines"),
        ({"tree": "feature"}, "tree_learner='feature' does not train"),
        ({"machines": "a:1,b:2"}, "machines='a:1,b:2' is for LightGBM's own sockets"),
    ],
)
def test_parameters_of_one_machine_are_refused(params, text):
    with pytest.raises(InvalidArgument, match=text):
        _parameters(params, 2)


@pytest.mark.parametrize("given", [{}, {"tree_learner": "data_parallel"}, {"tree_type": "data"}])
def test_the_learner_is_data_unless_another_is_given(given):
    assert _parameters(given, 2) == {"tree_learner": "data", "num_machines": 2, "pre_partition": True}
