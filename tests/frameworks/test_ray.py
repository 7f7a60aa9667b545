"""rabit.ray: ranks in the actors of Ray."""

from __future__ import annotations

import os

import numpy as np
import pytest

import rabit
from rabit.errors import InvalidArgument

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster():
    # Ray reads the name in small letters; a busy machine takes long.
    os.environ.update(RAY_raylet_start_wait_time_s="200")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def executor(cluster):
    found = rabit.ray.RayExecutor(num_workers=2)
    found.start(extra_env_vars={"OF_RANKS": "1"})
    yield found
    found.shutdown()


def program(failure):
    """The program of a rank, by value: the actors have not this module."""

    def train(scale):
        rabit.init()
        total = rabit.allreduce(np.full(2, scale * rabit.rank()), name="x", op=rabit.Sum)
        assert os.environ["OF_RANKS"] == "1" and "_RABIT_SECRET" not in os.environ
        if rabit.rank() == 1 and failure == "raises":
            raise ValueError("bad data")
        if rabit.rank() == 1 and failure == "is killed":
            os.kill(os.getpid(), 9)
        if failure:
            rabit.allreduce(total, name="y")
        return float(total[0]), rabit.local_size()

    return train


def test_results_come_by_rank_and_a_second_run_meets_again(executor):
    assert executor.run(program(""), [2.0]) == [(2.0, 2)] * 2
    assert ray.get(executor.run_remote(program(""), kwargs={"scale": 3.0})) == [(3.0, 2)] * 2


def test_an_error_of_a_rank_is_the_first_cause(executor):
    with pytest.raises(rabit.RunFailed, match=r"rank 1 of 2 .* raised ValueError: bad data"):
        executor.run(program("raises"), [2.0])


def test_a_killed_worker_is_an_error_that_names_its_rank(executor):
    with pytest.raises(rabit.RunFailed, match=r"rank 1 of 2 .* was lost"):
        executor.run(program("is killed"), [2.0])


def test_a_call_needs_a_start_and_one_way_to_say_how_many():
    with pytest.raises(InvalidArgument, match=r"Call start\(\) first"):
        rabit.ray.RayExecutor(num_workers=2).run(print)
    with pytest.raises(InvalidArgument, match="give one of them"):
        rabit.ray.RayExecutor(num_workers=2, num_hosts=1)


def test_ray_train_makes_ranks_of_its_workers(cluster, tmp_path):
    train = pytest.importorskip("ray.train")
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    def loop():
        rabit.init()
        total = rabit.allreduce(np.ones(1), name="x", op=rabit.Sum)
        (tmp_path / f"rank{rabit.rank()}").write_text(f"{total[0]:g} of {rabit.size()}")

    trainer = DataParallelTrainer(
        loop,
        backend_config=rabit.ray.RabitConfig(),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    )
    result = trainer.fit()

    assert result.error is None
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["2 of 2", "2 of 2"]
