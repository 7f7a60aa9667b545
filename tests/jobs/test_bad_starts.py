"""Jobs that cannot start get a clear error, soon, on every rank that can tell."""

from __future__ import annotations

import socket

import pytest
from support.processes import run_processes

import rabit
from rabit import Config
from rabit.rendezvous.discovery import StoreServer

INIT = """
import sys
import rabit

try:
    rabit.init()
except rabit.RabitError as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(3)
"""

QUICK = {"RABIT_CONNECT_TIMEOUT": "2s"}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RABIT_LAMES": "2"}, "InvalidArgument: the environment variable RABIT_LAMES is unknown"),
        ({"RABIT_SIZE": "-2"}, "InvalidArgument: RABIT_SIZE is "),
        ({"RABIT_RANK": "5"}, "RABIT_RANK"),
        ({"RABIT_STORE_ADDRESS": "no-such-host.invalid:1234"}, "no-such-host.invalid"),
        ({"RABIT_STORE_ADDRESS": "nonsense"}, "RABIT_STORE_ADDRESS"),
        ({"RABIT_SECRET_FILE": "/nowhere/secret"}, "/nowhere/secret"),
        ({"RABIT_PS_STALENESS": "3"}, "InvalidArgument: ps_staleness is 3 on rank "),
        ({"RABIT_LIBRARY": "/nowhere/librabit.so"}, "Unsupported: the native library /nowhere"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_variable(environ, message, tmp_path):
    ended = run_processes(2, INIT, tmp_path, {**QUICK, **environ})

    for each in ended:
        assert each.status == 3, each.errors
        assert message in each.output


def test_a_wrong_secret(tmp_path):
    wrong = tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("ab" * 32)
    first, second = run_processes(2, INIT, tmp_path, QUICK, {1: {"RABIT_SECRET_FILE": str(wrong)}})

    assert (first.status, second.status) == (3, 3)
    assert "secret" in second.output


def test_a_secret_that_others_can_read(tmp_path):
    loose = tmp_path / "loose"
    loose.write_text("ab" * 32)
    loose.chmod(0o644)
    ended = run_processes(2, INIT, tmp_path, {**QUICK, "RABIT_SECRET_FILE": str(loose)})

    for each in ended:
        assert each.status == 3, each.errors
        assert str(loose) in each.output


def test_a_rank_that_does_not_come_is_named(tmp_path):
    script = "import rabit, sys\n" + "if Config.from_environ().rank == 1: sys.exit(0)\n" + INIT
    script = "from rabit import Config\n" + script
    first, _ = run_processes(2, script, tmp_path, QUICK)

    assert first.status == 3, first.errors
    assert first.output.startswith("TimedOut")
    assert "1" in first.output


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(rabit.RabitError, match=f"{port}") as caught:
            StoreServer("127.0.0.1", port, bytes(32))

        assert "in use" in str(caught.value).lower()


def test_a_job_of_two_without_a_store():
    with pytest.raises(rabit.InvalidArgument, match="store"):
        rabit.Engine(Config(rank=0, size=2, secret=bytes(32)))
