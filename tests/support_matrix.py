"""Tries a wheel with versions of Python, NumPy and torch: two ranks that reduce, and a training step.

    python tests/support_matrix.py WHEEL [--cells 3.10/1.26.4/2.4.1,3.13/newest/none] [--folder FOLDER]

A cell is Python/NumPy/torch; "newest" is what pip chooses, "none" leaves torch out.  Each has a virtual environment
in FOLDER, which is used again if it is there.  Prints the table of docs/contribute/versions.md; a cell whose Python is
not on this machine was not tried.  Exits with 1 if a cell failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CELLS = (
    "3.10/1.26.4/2.4.1,3.10/1.26.4/none,3.11/1.26.4/2.8.0,3.11/newest/newest,3.12/newest/newest,3.13/newest/newest,"
    "3.14/newest/newest"
)
PROGRAM = """
import platform
import sys
import numpy as np
import rabit

rabit.init()
assert rabit.size() == 2
assert rabit.allreduce(np.arange(1000.0), op=rabit.Sum, name="x")[1] == 2
said = [platform.python_version(), np.__version__, "none"]
if sys.argv[1] != "none":
    import torch
    import rabit_torch

    torch.manual_seed(rabit.rank())
    model = torch.nn.Linear(4, 1)
    rabit_torch.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = rabit_torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    model(torch.full((8, 4), 1.0 + rabit.rank())).square().mean().backward()
    optimizer.step()
    weights = model.weight.detach().numpy().ravel()
    assert (rabit.allgather(weights[None], name="w") == weights).all(), "the ranks have other weights"
    said[2] = torch.__version__
if rabit.rank() == 0:
    print("|".join(said))
rabit.shutdown()
"""


def interpreter(version: str) -> str | None:
    """One on the PATH, or of pyenv; None: it is not here."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [
        *sorted(map(str, pyenv.glob(f"{version}.*/bin/python"))),
        shutil.which(f"python{version}"),
    ]
    for path in filter(None, places):
        found = subprocess.run([path, "-V"], capture_output=True, text=True, check=False)
        if found.stdout.startswith(f"Python {version}."):
            return path
    return None


def requirement(package: str, version: str) -> list[str]:
    if version == "none":
        return []
    return [package if version == "newest" else f"{package}=={version}"]


def prepared(cell: str, wheel: Path, folder: Path, python: str) -> Path:
    """The Python of the cell's environment, with the wheel in it."""
    _, numpy, torch = cell.split("/")
    venv = folder / cell.replace("/", "-")
    own = venv / "bin" / "python"
    pip = [str(own), "-m", "pip", "install", "--quiet"]
    if not own.exists():
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
        subprocess.run(
            [*pip, *requirement("numpy", numpy), *requirement("torch", torch)], check=True
        )
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(wheel)], check=True)
    subprocess.run([*pip, *requirement("numpy", numpy), str(wheel)], check=True)
    return own


def tried(cell: str, wheel: Path, folder: Path) -> tuple[str, bool]:
    """A row of the table, and whether it is no failure."""
    version, numpy, torch = cell.split("/")
    python = interpreter(version)
    if python is None:
        return f"| {version} | {numpy} | {torch} | not tried: no such Python here |", True
    own = prepared(cell, wheel, folder, python)
    program = folder / "smoke.py"
    program.write_text(PROGRAM)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(own.parent / "rabitrun"), "-np", "2", str(own), str(program), torch],
        cwd=folder,
        env={**environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    rows = [line for line in done.stdout.splitlines() if line.count("|") == 2]
    if done.returncode or not rows:
        print(done.stdout + done.stderr, file=sys.stderr)
        return f"| {version} | {numpy} | {torch} | failed |", False
    return "| {} | {} | {} | passed |".format(*rows[0].rpartition(" ")[2].split("|")), True


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "rabit-support"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print("| Python | NumPy | torch | |\n|---|---|---|---|")
    passed = True
    for cell in given.cells.split(","):
        row, is_well = tried(cell, given.wheel.resolve(), given.folder)
        print(row, flush=True)
        passed = passed and is_well
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
