"""What an import costs, as what it loads: times differ between machines, modules do not."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

# NumPy loads these at the first use, and takes a fifth of its own time again for them.
LATE = {"numpy.random", "numpy.typing", "numpy.polynomial", "numpy.ma", "numpy.testing"}
# They belong to functions that few programs call.
RARE = {"cloudpickle", "statistics", "sysconfig", "yaml", "mpi4py", "asyncio", "cffi", "pycparser"}


def loaded(first, code):
    """The modules that `code` loads after those of `first`."""
    text = f"import sys\n{first}\nbefore = set(sys.modules)\n{code}\n"
    done = subprocess.run(
        [sys.executable, "-c", text + "print(*sorted(set(sys.modules) - before))"],
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return set(done.stdout.split())


def test_import_rabit_alone_loads_nothing_else():
    assert loaded("import typing, importlib", "import rabit") == {"rabit", "rabit.version"}


def test_the_names_of_rabit_load_little():
    found = loaded("import numpy", "import rabit; rabit.init")

    assert found & (LATE | RARE) == set()
    assert not any(each.startswith("rabit.launch.") and "run" not in each for each in found)
    assert not any(each.startswith("rabit.strategies") for each in found)
    assert len(found) <= 125


def test_rabit_torch_loads_little_beyond_torch():
    pytest.importorskip("torch")

    found = loaded("import numpy, torch", "import rabit_torch")

    assert found & (LATE | RARE) == set()
    assert {each for each in found if each.startswith("torch")} == set()
    assert not any(each.startswith("rabit_torch.distributed.") for each in found)
    assert len(found) <= 140


def test_import_rabit_torch_makes_the_backend_known():
    pytest.importorskip("torch")
    code = "import rabit_torch, torch.distributed as dist; assert dist.Backend.RABIT == 'rabit'"

    loaded("", code)
