"""Runs a script that uses MXNet on several ranks under rabitrun; skips where MXNet is missing."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rank_server import RankServer
from support.reports import reports_of

REASON = "mxnet is not installed: pip install 'mariza-rabit[mxnet]' (make test-mxnet does so)"

IMPORTS = """
import numpy as np
import rabit_mxnet as rabit
import mxnet as mx
"""
# Of scripts, which say them often.
NAMES = "rank, size = rabit.rank(), rabit.size()\n"


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    found = importlib.util.find_spec("mxnet")
    if found is not None and found.origin is not None:  # This folder looks like a package, too.
        return
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    server = RankServer("mxnet")
    yield server
    server.close()


@pytest.fixture
def on_ranks(tmp_path: Path, rank_server: RankServer) -> Callable[..., list[Any]]:
    """on_ranks(n, script, **variables): the script calls report(value); returns the values by rank."""

    def run(ranks: int, script: str, timeout: float = 100, **variables: str) -> list[Any]:
        script = NAMES + textwrap.dedent(script)
        return reports_of(rank_server, ranks, IMPORTS, script, tmp_path, timeout, **variables)

    return run
