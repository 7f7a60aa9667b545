"""Every method sends what its table says, as the engine counts it on TCP."""

from __future__ import annotations

import numpy as np
import pytest
from support.method_bytes import MATRICES, SIDE, VARIANTS, Account, D, added, to_peers
from support.rows import ROWS, text_of

import rabit
import rabit.strategies as methods
from rabit.testing import run_ranks

STEPS = 4  # that are counted, at least


def bytes_sent(engine) -> int:
    return engine.statistics()["backend_details"]["builtin"]["transport"]["bytes_sent"]


def words_of_a_step(name: str, account: Account, ranks: int = 4) -> float:
    """32-bit words that a rank sends in a step, the mean of the ranks."""

    def on_rank(engine):
        random = np.random.default_rng(engine.rank)
        shapes = {f"w{number}": (SIDE, SIDE) for number in range(MATRICES)}
        values = {key: np.ones(shape, np.float32) for key, shape in shapes.items()}
        method = methods.make(text_of(name, account.given))
        if hasattr(method, "samples"):
            method.samples = 1
        trainer = methods.ArrayTrainer(values, method, lr=0.01, engine=engine)
        before, steps = 0, -(-STEPS // account.every) * account.every
        first = max(account.after, 1)  # In the first step ranks compare their methods, which takes bytes as well.
        for step in range(first + steps):
            if step == first:
                trainer.pipeline.finish()  # a barrier waits for ranks, not for operations
                rabit.barrier()
                before = bytes_sent(engine)
            gradients = {
                key: random.standard_normal(shape, np.float32) for key, shape in shapes.items()
            }
            if name == "rowsparse":
                for each in gradients.values():
                    each[np.arange(SIDE) % 4 > 0] = 0
            trainer.step(gradients)
            if name == "async":  # An average of each step, as fast as steps may be.
                trainer.pipeline.finish()
        trainer.pipeline.finish()
        rabit.barrier()
        return (bytes_sent(engine) - before) / 4 / steps

    return float(np.mean(run_ranks(ranks, on_rank, "tcp", timeout=60, allreduce_algorithm="ring")))


@pytest.mark.parametrize("ranks", [4, 8])
def test_bagua_s_figures_of_bytes_hold(ranks):
    sent = {
        name: words_of_a_step(name, account, ranks) / D
        for name, account in (
            ("mean", Account(added(32))),
            ("bytegrad", Account(added(8))),
            ("decentralized", Account(to_peers(1), "peers=shift-one", after=1)),
            ("lowprecision", Account(to_peers(2, 8))),
        )
    }

    assert sent["mean"] == pytest.approx(2 * (ranks - 1) / ranks, rel=0.01)
    assert sent["decentralized"] == pytest.approx(1, rel=0.01)
    assert sent["bytegrad"] <= 0.26 * sent["mean"]
    assert sent["lowprecision"] <= 0.51


def test_of_a_host_as_many_bytes_leave_as_there_are_however_many_ranks_it_has():
    count, island = 1 << 16, 4

    def on_rank(engine):
        left = []

        class Watched(methods.Mean):
            """The mean of the hosts, and what this rank sends for it."""

            async def __call__(self, x, state, ranks):
                before = bytes_sent(engine)
                found = await super().__call__(x, state, ranks)
                left.append(bytes_sent(engine) - before)
                return found

        exchange = methods.Hierarchical(Watched(), island)
        trainer = methods.ArrayTrainer(
            {"w": np.zeros((256, count // 256), np.float32)},
            methods.Synchronous(exchange),
            lr=1.0,
            engine=engine,
        )
        for _ in range(STEPS):
            trainer.step({"w": np.ones((256, count // 256), np.float32)})
        return sum(left) / STEPS

    found = run_ranks(2 * island, on_rank, "tcp", timeout=60, allreduce_algorithm="ring")

    for host in (found[:island], found[island:]):
        assert sum(host) == pytest.approx(4 * count, rel=0.02)


@pytest.mark.parametrize("name", methods.available())
def test_a_method_sends_what_its_table_says(name):
    account = ROWS[name].account

    assert words_of_a_step(name, account) == pytest.approx(account.words(4), rel=0.05)


@pytest.mark.parametrize("variant", VARIANTS)
def test_so_it_does_with_other_arguments(variant):
    name, account = VARIANTS[variant]

    assert words_of_a_step(name, account) == pytest.approx(account.words(4), rel=0.05)
