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


# Each takes a rank as long to load as a tenth of all that init() needs, or longer.
DEAR = {
    "argparse", "ast", "ctypes", "dataclasses", "difflib", "hashlib", "inspect", "ipaddress", "logging",
    "numpy", "pathlib", "pickle", "random", "secrets", "shutil", "socket", "subprocess", "tempfile",
    "urllib",
}  # fmt: skip
# What it does take of the standard library, which loads other things in each version.
TAKEN = "import json, threading, traceback, typing"
START = "import rabit; rabit.init(); rabit.shutdown()"


def loaded(first, code, *launcher):
    """The modules that `code` loads after those of `first`; with a launcher, on any of its ranks."""
    text = f"import sys\n{first}\nbefore = set(sys.modules)\n{code}\n"
    text += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [*launcher, sys.executable, "-c", text],
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return set(done.stdout.split())


def test_import_rabit_alone_loads_nothing_else():
    assert loaded("import typing, importlib", "import rabit") == {"rabit", "rabit.version"}


def test_init_and_shutdown_load_neither_numpy_nor_what_they_do_not_need():
    found = loaded(TAKEN, START)

    assert "rabit.session" in found
    assert found & (DEAR | RARE) == set()
    assert not any(each.startswith(("rabit.ops", "rabit.launch", "rabit.board")) for each in found)
    assert len(found) <= 76


def test_ranks_of_rabitrun_start_and_end_without_numpy():
    found = loaded(TAKEN, START, sys.executable, "-m", "rabit.launch", "-np", "2")

    assert "rabit.session" in found
    assert found & (DEAR | RARE) == set()


def test_numpy_loads_with_the_first_operation():
    found = loaded("import rabit; rabit.init()", "rabit.allreduce")

    assert {"numpy", "rabit.ops.collectives"} <= found


def test_the_names_of_rabit_load_little():
    found = loaded("import numpy", "import rabit; rabit.init; rabit.allreduce; rabit.broadcast")

    assert found & (LATE | RARE) == set()
    assert not any(each.startswith("rabit.launch.") and "run" not in each for each in found)
    assert not any(each.startswith("rabit.strategies") for each in found)
    assert len(found) <= 90


def test_rabit_torch_loads_little_beyond_torch_and_makes_the_backend_known():
    pytest.importorskip("torch")

    backend = "assert torch.distributed.Backend.RABIT == 'rabit'"
    found = loaded("import numpy, torch", f"import rabit_torch; {backend}")

    assert found & (LATE | RARE) == set()
    assert {each for each in found if each.startswith("torch")} == set()
    # It watches the meeting of a group, before which no other module of groups is loaded.
    of_groups = {each for each in found if each.startswith("rabit_torch.distributed.")}
    assert of_groups == {"rabit_torch.distributed.rendezvous"}
    assert len(found) <= 158


def test_a_step_without_shard_loads_nothing_of_it():
    pytest.importorskip("torch")
    step = """
rabit_torch.init()
model = torch.nn.Linear(2, 2)
optimizer = rabit_torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
rabit_torch.shutdown()
"""
    found = loaded("import torch", f"import rabit_torch{step}")

    assert "rabit_torch.optimizer.distributed_optimizer" in found
    assert not [each for each in found if each.startswith(("rabit.sharding", "rabit_torch.sharding"))]
