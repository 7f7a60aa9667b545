"""Shared by all tests: a clean environment, and skips that say why."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rank_server import RankServer

# Tests that `make test` leaves to `make test-full`: see the head of the file.
SLOW = {
    line
    for line in (Path(__file__).parent / "slow.txt").read_text().splitlines()
    if line and not line.startswith("#")
}


def pytest_configure():
    # A shell starts what runs in the background with SIGINT and SIGQUIT ignored, nohup with SIGHUP,
    # and processes inherit that: nobody who is tested would hear Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ignored in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_DFL)


def pytest_collection_modifyitems(items):
    reasons = {
        "gpu": None if shutil.which("nvidia-smi") else "no NVIDIA GPU on this machine",
        "mpi": None if importlib.util.find_spec("mpi4py") else "mpi4py is not installed",
    }
    for item in items:
        if item.nodeid in SLOW or item.nodeid.split("[")[0] in SLOW:
            item.add_marker("slow")
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    """A variable of the developer's shell must not change what a test sees."""
    for name in list(os.environ):
        if name.startswith(("RABIT_", "HOROVOD_")) and name != "RABIT_LIBRARY":
            monkeypatch.delenv(name)
    # It makes a line of several arguments several writes, which the lines of other ranks come between.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    """Where ranks come from that use torch."""
    server = RankServer()
    yield server
    server.close()
