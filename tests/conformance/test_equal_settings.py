"""Settings that differ between ranks are refused when the ranks meet, and named on all of them."""

from __future__ import annotations

import random
import secrets
import threading

import numpy as np
import pytest

from rabit import Config, Mismatch, Sum, allreduce
from rabit.config.setting import Setting
from rabit.engine.current import engine_of_thread
from rabit.engine.engine import Engine
from rabit.rendezvous.discovery import StoreServer

EQUAL = [each for each in Config.settings() if each.is_equal and each.name != "size"]
FREE = [
    each
    for each in Config.settings()
    if not each.is_equal and each.group in ("tuning", "network", "failure") and each.native
    and each.kind in ("int", "bytes", "bool", "duration")
]  # fmt: skip
SECRET = secrets.token_bytes(32)


@pytest.fixture(scope="module")
def store():
    server = StoreServer("127.0.0.1", 0, SECRET)
    yield server
    server.close()


def config(store: StoreServer, rank: int, size: int) -> Config:
    return Config(
        rank=rank, size=size, local_rank=rank, local_size=size, host_key="one host",
        store_address=f"127.0.0.1:{store.port}", bind_address="127.0.0.1", secret=SECRET,
        connect_timeout=30.0,
    )  # fmt: skip


def start(configs: list[Config], epoch: int) -> list[BaseException | None]:
    """What each rank raises when it starts and reduces one array; None: nothing."""
    raised: list[BaseException | None] = [TimeoutError("still running")] * len(configs)

    def run(rank: int) -> None:
        try:
            with Engine(configs[rank], epoch=epoch) as engine:
                with engine_of_thread(engine):
                    total = allreduce(np.full(100, rank + 1.0), name="x", op=Sum)
                assert total.tolist() == [sum(range(1, len(configs) + 1))] * 100
            raised[rank] = None
        except BaseException as error:
            raised[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(configs))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return raised


def another_value(each: Setting, seed: random.Random):
    if each.kind == "choice":
        return seed.choice([word for word in each.choices if word != each.default])
    if each.kind == "bool":
        return not each.default
    if each.kind == "text":
        return {
            "allreduce_algorithm": "ring",
            "autotune_knobs": "lanes",
            "plan": "auto",
            "backend": "builtin,mpi",
            "checkpoint": "folder",
            "route": "alltoall:builtin",
            "route_table": "table.json",
            "strategy": "powersgd:rank=2",
        }[each.name]
    low = int(each.minimum or 0)
    high = int(min(each.maximum or 1 << 20, 1 << 20))
    value = seed.randint(low, high)
    return value if value != each.default else value + 1


def test_every_setting_that_must_be_equal_is_compared_on_a_random_rank(store):
    seed = random.Random(20)
    for trial in range(200):
        size = seed.choice([2, 2, 3, 4])
        odd = seed.randrange(size)
        chosen = seed.choice([each for each in EQUAL if each.name != "backend"])
        value = another_value(chosen, seed)
        configs = [config(store, rank, size) for rank in range(size)]
        configs[odd] = configs[odd].replace_from("RABIT_TEST", **{chosen.name: value})

        raised = start(configs, epoch=1000 + trial)

        usual = chosen.format(chosen.default) or "empty"
        for rank, error in enumerate(raised):
            what = f"{chosen.name}={value} on rank {odd} of {size}, rank {rank}: {error!r}"
            assert isinstance(error, Mismatch), what
            assert f"{chosen.name} is " in str(error), what
            assert f"{chosen.format(value)} on rank {odd} (RABIT_TEST)" in str(error), what
            assert f"{usual} on rank" in str(error), what


def test_ranks_that_believe_in_different_numbers_of_ranks_are_told(store):
    configs = [config(store, 0, 2), config(store, 1, 3)]

    raised = start(configs, epoch=2000)

    for error in raised:
        assert isinstance(error, Mismatch)
        assert "size is 2 on rank 0" in str(error)
        assert "3 on rank 1" in str(error)


@pytest.mark.parametrize("name", [each.name for each in FREE])
def test_settings_that_may_differ_do_not_hold_up_the_ranks(store, name):
    (each,) = [found for found in FREE if found.name == name]
    values = {"bool": not each.default, "int": max(int(each.minimum or 0), 3)}
    value = values.get(each.kind, max(int(each.minimum or 0), 1 << 16) if each.kind == "bytes" else 7.0)
    configs = [config(store, rank, 2) for rank in range(2)]
    configs[1] = configs[1].replace(**{name: value})

    raised = start(configs, epoch=3000 + [found.name for found in FREE].index(name))

    assert raised == [None, None]


def test_the_same_value_from_different_sources_is_equal(store):
    configs = [
        config(store, 0, 2).replace_from("RABIT_SCHEDULER", scheduler="fifo"),
        config(store, 1, 2).replace_from("rabit.toml", scheduler="fifo"),
    ]

    assert start(configs, epoch=4000) == [None, None]
