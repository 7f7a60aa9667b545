"""rabit.xgboost: equal models on all ranks, twice in one process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("xgboost")
pytestmark = pytest.mark.timeout(200)

SCRIPT = """
import numpy as np, rabit, xgboost
rabit.init()
rows = np.random.default_rng(0).normal(size=(1000, 5))
mine = slice(rabit.rank(), None, rabit.size())
for _ in range(2):
    with rabit.xgboost.communicator():
        data = xgboost.DMatrix(rows[mine], rows[mine, 0])
        booster = xgboost.train({"max_depth": 3, "nthread": 1}, data, 5)
    models = rabit.allgather_object(bytes(booster.save_raw("json")))
    error = float(np.mean((booster.predict(xgboost.DMatrix(rows)) - rows[:, 0]) ** 2))
    if rabit.rank() == 0:
        print("equal", len(set(models)) == 1, error < 0.1, flush=True)
"""


@pytest.mark.parametrize("size", [1, 2])
def test_models_are_equal(size):
    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", str(size), sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal True True") == 2, done.stdout
