"""Every method that has a name against its oracle: NumPy that has the gradients of all ranks in one place."""

from __future__ import annotations

import numpy as np
import pytest
from support.method_oracles import samples_of
from support.rows import ROWS, text_of

import rabit.strategies as methods
from rabit.testing import run_ranks

RANKS, STEPS, DRAWS, SHAPE, LR = 4, 10, 150, (24, 20), 0.125
FIRST = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)


def gradients(steps: int, *, few_rows: bool = False) -> np.ndarray:
    """[step, rank, ...], in what float32 holds: something that ranks and steps have in common, and noise."""
    common = np.random.default_rng(2).standard_normal(SHAPE)
    noise = np.random.default_rng(3).standard_normal((steps, RANKS, *SHAPE))
    found = (common + noise).astype(np.float32).astype(np.float64)
    if few_rows:
        at = np.add.outer(np.arange(steps), np.add.outer(np.arange(RANKS), np.arange(SHAPE[0])))
        found *= (at % 4 == 0)[..., None]
    return found


def trained(text: str, dtype: type, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The parameters [step, rank, ...] after each step, and [rank, ...] in the end."""

    def on_rank(engine):
        values, method = {"w": FIRST.astype(dtype)}, methods.make(text)
        trainer = methods.ArrayTrainer(values, method, lr=LR, engine=engine)
        found = []
        for step in given:
            if hasattr(method, "samples"):
                method.samples = samples_of(engine.rank)
            trainer.step({"w": step[engine.rank].astype(dtype)})
            found.append(values["w"].astype(np.float64))
        trainer.pipeline.finish()
        return np.stack(found), values["w"].astype(np.float64)

    ranks = run_ranks(RANKS, on_rank, timeout=60, deterministic=True)
    return np.stack([each for each, _ in ranks], axis=1), np.stack([end for _, end in ranks])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", methods.available())
def test_a_method_does_what_its_oracle_says(name, dtype):
    oracle = ROWS[name].oracle
    given = gradients(1 if oracle.is_expected else STEPS, few_rows=oracle.few_rows)
    if oracle.is_expected:
        given = np.repeat(given, DRAWS, axis=0)

    found, end = trained(text_of(name, oracle.given), dtype, given)

    expected = oracle.moves(given, FIRST.astype(np.float64), LR)
    if oracle.of_mean:
        assert np.abs(end.mean(axis=0) - expected[-1].mean(axis=0)).max() <= 2e-5
    elif oracle.is_expected:
        moves = np.diff(found, axis=0)
        # Five deviations, of the sum of all moves.
        most = 5 * np.sqrt(DRAWS) * moves.std(axis=0) + 2e-4
        assert np.all(np.abs(found[-1] - expected[-1]) <= most)
    else:
        assert np.abs(found - expected).max() <= 2e-5
