"""Programs of users are checked against the types of the packages: mypy --strict in a folder of theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["rabit", "rabit_torch", "rabit_mxnet"]

RIGHT = """
from typing import assert_type

import numpy as np
import torch

import rabit
import rabit_torch


def train(model: torch.nn.Module, config: rabit.Config) -> None:
    rabit.init(config=config)
    assert_type(rabit.rank(), int)
    assert_type(rabit.any_rank(False), bool)
    assert_type(rabit.allreduce_async(np.ones(4), name="x"), rabit.Handle)
    optimizer = rabit_torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        overlap="next-forward",
        strategy=rabit.strategies.PowerSGD(rank=2),
    )
    rabit_torch.broadcast_parameters(model.state_dict(), root_rank=0)
    assert_type(rabit_torch.allreduce(torch.ones(4), name="y"), torch.Tensor)
    optimizer.step()
    rabit.shutdown()
"""
# Each line holds one mistake, and the code of mypy for it.
WRONG = {
    "rabit.allreduce_async(1.0, name=3)": "arg-type",
    'rabit.init(config="a")': "arg-type",
    "rabit.size() + 'a'": "operator",
    "rabit.alreduce(1.0)": "attr-defined",
    "rabit_torch.broadcast_parameters({}, root='a')": "call-arg",
    "rabit_torch.DistributedOptimizer(None)": "arg-type",
}


def test_every_package_says_that_it_is_typed():
    assert [each for each in PACKAGES if not (ROOT / each / "py.typed").exists()] == []


@pytest.mark.timeout(300)
def test_programs_of_users_are_checked(tmp_path):
    """What is right passes, and each mistake is named: the types are not all Any."""
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text("\n".join(["import rabit, rabit_torch", *WRONG]))

    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file="),
            f"--cache-dir={ROOT / '.mypy_cache' / 'users'}",
            *("--python-version=3.11", "--hide-error-context", "right.py", "wrong.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )

    found = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert [line.split(":")[1] for line in found] == [str(2 + at) for at in range(len(WRONG))], (
        checked.stdout + checked.stderr
    )
    for line, code in zip(found, WRONG.values(), strict=True):
        assert line.startswith("wrong.py:"), line
        assert line.endswith(f"[{code}]"), line
