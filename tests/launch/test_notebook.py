"""rabit.run in the kernel of a real notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

import rabit

CELLS = (
    "import numpy as np\nimport rabit\noffset = 10",
    "def train(scale):\n"
    "    rabit.init()\n"
    "    total = rabit.allreduce(np.ones(2) * rabit.rank(), op=rabit.Sum, name='x')\n"
    "    print('rank', rabit.rank(), 'is here')\n"
    "    return (scale * total + offset).tolist()\n",
    "results = rabit.run(train, (2,), np=2)\nresults",
    "def fail():\n"
    "    rabit.init()\n"
    "    if rabit.rank() == 1:\n"
    "        raise ValueError('sample 7 is bad')\n"
    "    rabit.barrier()\n"
    "try:\n"
    "    rabit.run(fail, np=2)\n"
    "except rabit.RabitError as error:\n"
    "    print(error)\n",
)


def test_a_function_of_a_cell_runs_on_two_ranks(monkeypatch, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    # The kernel must find the package under test, and leave nothing in the user's home.
    monkeypatch.setenv("PYTHONPATH", str(Path(rabit.__file__).parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    # With this variable the kernel would not pass on what its children print.
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(each) for each in CELLS]

    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(cwd=str(tmp_path))

    texts = [
        "".join(str(each.get("text") or each.get("data", "")) for each in cell.outputs)
        for cell in notebook.cells
    ]
    assert "[[12.0, 12.0], [12.0, 12.0]]" in texts[2]
    assert "[0] rank 0 is here" in texts[2] and "[1] rank 1 is here" in texts[2]
    assert "rank 1 of 2 (host localhost) raised ValueError: sample 7 is bad" in texts[3]
    assert "in fail" in texts[3] and "| raise ValueError('sample 7 is bad')" in texts[3]
    assert texts[3].count("raised ValueError: sample 7 is bad") == 1
