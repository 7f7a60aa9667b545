"""The programs of the guides run as they are written."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# The libraries take long to load where several processes share a processor.
pytestmark = pytest.mark.timeout(400)

GUIDES = Path(__file__).parents[2] / "docs" / "howto"


def programs(page):
    """The blocks of a page that begin with the name of a file: name -> text."""
    blocks = re.findall(
        r"^```python\n# (\w+\.py)\n(.*?)^```", (GUIDES / page).read_text(), re.M | re.S
    )
    return dict(blocks)


def run(rank_server, folder, name, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "2", *rank_server.command, name, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("with_accelerate.py", "accelerate"),
        ("with_fabric.py", "lightning_fabric"),
        ("with_trainer.py", "transformers"),
    ],
)
def test_a_library_trains_on_the_backend_rabit(rank_server, tmp_path, name, package):
    pytest.importorskip(package)
    (tmp_path / name).write_text(programs("recipes.md")[name])

    assert "2 ranks on rabit, loss " in run(rank_server, tmp_path, name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lightgbm", "2 ranks, error 0.0"),
        ("jax", "2 ranks, loss 0.0"),
        ("keras", "2 ranks, loss 0.0"),
    ],
)
def test_a_guide_of_another_library_runs(rank_server, tmp_path, name, said):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    program = f"with_{name}.py"
    (tmp_path / program).write_text(programs(f"{name}.md")[program])

    assert said in run(rank_server, tmp_path, program)


def test_a_job_goes_on_where_another_ended(rank_server, tmp_path):
    (tmp_path / "resume.py").write_text(programs("day_one.md")["resume.py"])

    first = run(rank_server, tmp_path, "resume.py", "2")
    second = run(rank_server, tmp_path, "resume.py", "3")
    (tmp_path / "state.pt").unlink()
    whole = run(rank_server, tmp_path, "resume.py", "3")

    assert re.findall(r"epoch (\d)", first + second) == ["0", "1", "2"]
    assert whole.splitlines()[-1] == second.splitlines()[-1]


def test_a_metric_is_averaged_over_samples(rank_server, tmp_path):
    (tmp_path / "metrics.py").write_text(programs("day_one.md")["metrics.py"])

    assert "accuracy 0.6190 over 21 samples" in run(rank_server, tmp_path, "metrics.py")


def test_ranks_of_sparks_tasks_train(tmp_path):
    """Not in requirements-recipes.txt: pyspark is 400 MB, and wants Java."""
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("there is no Java")
    (tmp_path / "with_spark.py").write_text(programs("recipes.md")["with_spark.py"])

    done = subprocess.run(
        [sys.executable, "with_spark.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip

    assert "2 ranks, loss 0.0" in done.stdout, done.stdout + done.stderr
