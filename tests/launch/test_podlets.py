"""The Indexed Job of docs/deploy as containers of runc: what happens to pods happens to these."""

from __future__ import annotations

import sys
import time

import pytest
from faults.engines.process import RANK
from support import podlets

pytestmark = pytest.mark.timeout(300)
LIMIT_S = 120.0
SIZE = 3


@pytest.fixture
def start(tmp_path):
    """Gives pods that run a program; kills what is left of them."""
    if reason := podlets.missing():
        pytest.skip(reason)
    opened = []

    def begin(command, count=SIZE, **environ):
        opened.append(podlets.pods(tmp_path, count, command, **environ))
        return opened[-1].__enter__()

    yield begin
    for each in opened:
        each.__exit__(None, None, None)


def ranks(case):
    return [sys.executable, str(RANK), case, "/tmp"]


def await_(is_true, pods):
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline, [pods.text(index) for index in range(SIZE)]
        time.sleep(0.05)


def assert_all_ended_with(status, pods, said):
    texts = [(pods.status(index, LIMIT_S), pods.text(index)) for index in range(SIZE)]
    assert [found for found, _ in texts] == [status] * SIZE, texts
    assert all(said.format(rank) in text for rank, (_, text) in enumerate(texts)), texts


def test_pods_await_one_that_comes_late(start):
    pods = start(ranks("start"))
    for index in range(SIZE - 1):
        pods.start(index)
    await_(lambda: pods.is_listening(0), pods)
    pods.start(SIZE - 1)

    assert_all_ended_with(0, pods, "first sum of rank {}: 3")


def test_pods_await_the_name_of_the_first(start):
    pods = start(ranks("start"))
    for index in range(SIZE):
        pods.start(index, knows_names=index == 0)
    await_(lambda: pods.is_listening(0), pods)
    for index in range(1, SIZE):
        pods.publish_names(index)

    assert_all_ended_with(0, pods, "first sum of rank {}: 3")


def test_the_end_of_one_pod_lets_all_save_within_the_grace_and_end_with_75(start):
    pods = start(ranks("stop signal"))
    for index in range(SIZE):
        pods.start(index)
    await_(lambda: all("goes on" in pods.text(index) for index in range(SIZE)), pods)
    pods.terminate(1)

    assert pods.status(1, pods.grace_s) == 75
    assert_all_ended_with(75, pods, "rank {} stops")


def test_a_pod_above_its_memory_limit_is_killed_and_named_by_the_others(start):
    code = (
        "import numpy as np, rabit; rabit.init();"
        "hoard = np.ones(600 << 17) if rabit.rank() == 1 else None; rabit.allreduce(np.ones(1), name='x')"
    )
    pods = start([sys.executable, "-c", code])
    for index in range(SIZE):
        pods.start(index, memory="256Mi")

    assert pods.status(1, LIMIT_S) == 137
    for index in (0, 2):
        assert pods.status(index, LIMIT_S) == 1
        assert "rank 1 (host train-1, pid 1) is lost" in pods.text(index)


def test_ranks_of_a_pod_do_without_the_shared_memory_that_it_lacks(start):
    code = (
        "import numpy as np, rabit; rabit.init();"
        "print('sum', rabit.allreduce(np.ones(1 << 20), name='x', op=rabit.Sum)[0])"
    )
    command = [sys.executable, "-m", "rabit.launch", "-np", "2", sys.executable, "-c", code]
    pods = start(command, count=1)
    pods.start(0, shm="64Ki")

    assert pods.status(0, LIMIT_S) == 0, pods.text(0)
    assert pods.text(0).count("sum 2.0") == 2, pods.text(0)
