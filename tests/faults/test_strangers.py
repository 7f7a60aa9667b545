"""Strangers at the ports of a live job can neither stop it nor change its result."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import pytest
from support.job import wait_for_files
from support.ports import listening_ports

WORK = """
import sys, time
from pathlib import Path
import numpy as np
import rabit

rabit.init()
folder = Path(sys.argv[1])
data = np.empty(4096, dtype=np.float64)
wrong = 0
rabit.barrier()
(folder / f"ready.{rabit.rank()}").touch()
while True:
    data[:] = rabit.rank() + 1
    rabit.allreduce_(data, name="work", op=rabit.Sum)
    wrong += int((data != sum(range(1, rabit.size() + 1))).any())
    done = np.array([1 if (folder / "stop").exists() else 0], dtype=np.int32)
    rabit.allreduce_(done, name="done", op=rabit.Max)
    if done[0]:
        break
print("WRONG", wrong)
rabit.shutdown()
"""


def garbage(rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 64))
    if kind == 1:
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    if kind == 2:
        return struct.pack("<Q", 2 ** rng.randrange(31, 64) - 1) + rng.randbytes(40)
    if kind == 3:
        return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100)
    if kind == 4:
        return rng.randbytes(5000)
    return b"RABI" + rng.randbytes(rng.randrange(0, 120))


def attack(address: tuple[str, int], count: int, seed: int) -> None:
    rng = random.Random(seed)
    silent = []
    for index in range(count):
        with contextlib.suppress(OSError):
            stranger = socket.create_connection(address, timeout=2)
            with contextlib.suppress(OSError):
                stranger.sendall(garbage(rng))
            if index % 50 == 0:
                silent.append(stranger)  # says something and then nothing, for ever
            else:
                stranger.close()
    for stranger in silent:
        stranger.close()


@pytest.mark.timeout(300)
def test_ten_thousand_random_byte_strings_change_nothing(job):
    started = job(2, WORK, RABIT_TRANSPORT="tcp")
    wait_for_files(started.folder, "ready.*", 2)
    store_host, store_port = started.store_address.rsplit(":", 1)
    data_ports = listening_ports([process.pid for process in started.processes])
    assert len(data_ports) >= 2, "no data port was found: the test would prove nothing"

    targets = [(store_host, int(store_port)), *sorted(data_ports)]
    for index, address in enumerate(targets):
        attack(address, 10_000 // len(targets) + 1, seed=index)
    (started.folder / "stop").touch()

    assert started.wait(timeout=60) == [0, 0], started.output(0) + started.output(1)
    assert "WRONG 0" in started.output(0)
    assert "WRONG 0" in started.output(1)


def test_silent_connections_do_not_delay_a_start(job):
    probe = job(1, "import rabit; rabit.init()")
    host, port = probe.store_address.rsplit(":", 1)
    idle = [socket.create_connection((host, int(port)), timeout=5) for _ in range(200)]
    probe.wait(timeout=60)

    # Longer than the wait below: a start that waits for the silent ones is late.
    started = job(2, WORK, RABIT_CONNECT_TIMEOUT="600s")
    host, port = started.store_address.rsplit(":", 1)
    idle += [socket.create_connection((host, int(port)), timeout=5) for _ in range(200)]
    wait_for_files(started.folder, "ready.*", 2, timeout=120)
    (started.folder / "stop").touch()

    assert started.wait(timeout=120) == [0, 0]
    for connection in idle:
        connection.close()


def test_all_ports_of_a_one_host_job_are_on_loopback(job):
    started = job(2, WORK)
    wait_for_files(started.folder, "ready.*", 2)

    ports = listening_ports([process.pid for process in started.processes])
    (started.folder / "stop").touch()

    assert ports
    assert all(address.startswith("127.") for address, _ in ports)
    assert started.wait(timeout=60) == [0, 0]


def test_a_rank_with_the_wrong_secret_is_refused_and_told_why(job, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("11" * 32)

    started = job(
        2, "import rabit; rabit.init()", RABIT_SECRET_FILE=str(wrong), RABIT_CONNECT_TIMEOUT="5s"
    )
    codes = started.wait(timeout=60)

    assert all(code != 0 for code in codes)
    assert "secret" in started.output(0)
