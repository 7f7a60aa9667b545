"""rabit.keras: two ranks train as one process does, and the callbacks of Horovod."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.timeout(400),
    # Its import asks for TensorFlow where no variable names a backend.
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed"),
]

PROGRAM = """
import json, os, sys
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np, rabit
rabit.init()
rows = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
values = rows.sum(axis=1, keepdims=True)
mine = slice(rabit.rank(), None, rabit.size())
keras.utils.set_random_seed(rabit.rank())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
model.compile(rabit.keras.DistributedOptimizer(keras.optimizers.Adam(0.02)), loss="mse", metrics=["mae"])
rates = []
def rate(*_, **__):
    rates.append(float(model.optimizer.learning_rate))
note = keras.callbacks.LambdaCallback(on_train_batch_end=rate)
made = [rabit.keras.BroadcastGlobalVariablesCallback(0), rabit.keras.MetricAverageCallback()]
if "warm" in sys.argv:
    made.append(rabit.keras.LearningRateWarmupCallback(initial_lr=0.08, warmup_epochs=2))
fit = model.fit(rows[mine], values[mine], batch_size=24 // rabit.size(), epochs=3, shuffle=False, verbose=0,
                callbacks=[*made, note])
found = {"weights": [w.tolist() for w in model.get_weights()], "history": fit.history, "rates": rates}
print("found", json.dumps(found))
"""


def found(folder, ranks, *arguments):
    (folder / "train.py").write_text(PROGRAM)
    done = subprocess.run(
        [*(sys.executable, "-m", "rabit.launch", "-np", str(ranks)),
         *(sys.executable, "train.py", *arguments)],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = [json.loads(line.partition("found ")[2]) for line in done.stdout.splitlines() if "found " in line]
    assert len(lines) == ranks, done.stdout + done.stderr
    assert all(line == lines[0] for line in lines)  # bit for bit
    return lines[0]


def test_two_ranks_train_as_one_process_on_batches_twice_as_large(tmp_path):
    one, two = found(tmp_path, 1), found(tmp_path, 2)

    for name in ("loss", "mae"):
        assert two["history"][name] == pytest.approx(one["history"][name], rel=1e-4)
    for mine, other in zip(one["weights"], two["weights"], strict=True):
        flat = [pytest.approx(row, rel=1e-3, abs=1e-5) for row in mine]
        assert other == flat


def test_the_learning_rate_grows_to_that_of_all_ranks(tmp_path):
    rates = found(tmp_path, 2, "warm")["rates"]

    # From 0.08 / 2 to 0.08 in the 8 steps of 2 epochs, and then no more.
    wanted = [0.04 + 0.04 * step / 8 for step in range(1, 9)] + [0.08] * 4
    assert rates == pytest.approx(wanted)
