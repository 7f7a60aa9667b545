"""How ranks of several hosts meet without a file that somebody has copied."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import subprocess
import sys
import threading

import pytest

from rabit.errors import InvalidArgument, TimedOut
from rabit.rendezvous.boards import Found, HomeBoard, PmiBoard, board_of
from rabit.rendezvous.derived_secret import derived_secret, hkdf
from rabit.rendezvous.environments import read_marks
from rabit.rendezvous.placement import given_secret


def free_port():
    """One that nobody listens on now; below those that the kernel gives out by itself."""
    while True:
        port = secrets.choice(range(20_000, 30_000))
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


TEXT = Found("10.0.0.1:23456", bytes(range(32))).to_json()


class PmiServer:
    """The launcher's side of PMI 1 for some ranks, as srun and Hydra speak it."""

    def __init__(self, size):
        self._values = {}
        self._barrier = threading.Barrier(size)
        self.clients = []
        for _ in range(size):
            ours, theirs = socket.socketpair()
            self.clients.append(theirs)
            threading.Thread(target=self._serve, args=(ours,), daemon=True).start()

    def _serve(self, connection):
        for line in connection.makefile("r"):
            words = dict(word.split("=", 1) for word in line.split())
            connection.sendall((self._answer(words) + "\n").encode())

    def _answer(self, words):
        if words["cmd"] == "init":
            return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
        if words["cmd"] == "get_my_kvsname":
            return "cmd=my_kvsname kvsname=7.0"
        if words["cmd"] == "put":
            self._values[words["key"]] = words["value"]
            return "cmd=put_result rc=0 msg=success"
        if words["cmd"] == "barrier_in":
            with contextlib.suppress(threading.BrokenBarrierError):
                self._barrier.wait(20)
            return "cmd=barrier_out"
        return f"cmd=get_result rc=0 msg=success value={self._values[words['key']]}"


def test_pmi_carries_the_text_from_rank_0():
    server = PmiServer(3)
    boards = [PmiBoard(each.fileno(), rank, 20.0) for rank, each in enumerate(server.clients)]
    taken = []
    takers = [threading.Thread(target=lambda b=board: taken.append(b.take())) for board in boards[1:]]
    for taker in takers:
        taker.start()

    boards[0].put(TEXT)

    for taker in takers:
        taker.join(20)
    assert taken == [TEXT, TEXT]
    assert Found.from_json(taken[0]) == ("10.0.0.1:23456", bytes(range(32)))


def test_pmi_waits_with_a_deadline():
    server = PmiServer(2)

    with pytest.raises(TimedOut, match=r"rank 1 waited 0\.2 s for PMI"):
        PmiBoard(server.clients[1].fileno(), 1, 0.2).take()


def test_a_program_with_many_files_open_waits_as_well():
    server = PmiServer(2)
    high = fcntl.fcntl(server.clients[1].fileno(), fcntl.F_DUPFD, 1024)
    try:
        with pytest.raises(TimedOut, match="waited"):
            PmiBoard(high, 1, 0.1).take()
    finally:
        os.close(high)


def test_a_launcher_that_closes_pmi_is_an_error_in_words():
    ours, theirs = socket.socketpair()
    ours.close()

    with pytest.raises(InvalidArgument, match=r"cannot use PMI .*Start the ranks with srun --mpi=pmi2"):
        PmiBoard(theirs.fileno(), 0, 5.0).put(TEXT)


def test_a_file_in_a_shared_home_is_the_users_alone(tmp_path):
    rank_0, rank_1 = (HomeBoard(tmp_path, "srun (Slurm) 7.0 0", 20.0) for _ in range(2))
    rank_0.put(TEXT)

    assert rank_1.take() == TEXT
    (file,) = (tmp_path / ".rabit").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_another_job_has_another_file(tmp_path):
    HomeBoard(tmp_path, "srun (Slurm) 7.0 0", 5.0).put(TEXT)

    with pytest.raises(TimedOut, match=r"rank 0 has not written .* within 0.1 s"):
        HomeBoard(tmp_path, "srun (Slurm) 7.0 1", 0.1).take()


SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "n[1-2]",
}  # fmt: skip


def test_pmi_comes_before_the_home():
    marks = read_marks(SLURM)

    assert isinstance(board_of(marks, {**SLURM, "PMI_FD": "5"}, 1.0), PmiBoard)
    assert isinstance(board_of(marks, SLURM, 1.0), HomeBoard)
    assert board_of(marks._replace(launcher="mpiexec (MPICH)"), {}, 1.0) is None


def test_hkdf_is_that_of_the_rfc():
    """RFC 5869, test case 1."""
    found = hkdf(b"\x0b" * 22, bytes(range(0xF0, 0xFA)), 42, bytes(range(13)))

    assert found.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_a_mounted_file_gives_each_job_a_secret_of_its_own(tmp_path):
    (tmp_path / "key").write_text("correct horse battery staple")
    environ = {"RABIT_SECRET_KEY_FILE": str(tmp_path / "key"), "RABIT_JOB_NAME": "a"}

    assert len(given_secret(environ, 0)) == 32
    assert given_secret(environ, 0) == given_secret(environ, 1) == derived_secret(str(tmp_path / "key"), "a")
    assert given_secret(environ, 0) != given_secret({**environ, "RABIT_JOB_NAME": "b"}, 0)


def test_a_short_key_is_refused(tmp_path):
    (tmp_path / "key").write_text("short")

    with pytest.raises(InvalidArgument, match="has 5 bytes: expected 16"):
        derived_secret(str(tmp_path / "key"), "a")


PODS = """
import numpy as np, rabit
rabit.init()
print(rabit.rank(), rabit.size(), rabit.allreduce(np.ones(1), name="x", op=rabit.Sum))
"""


def test_pods_of_an_indexed_job_meet_at_the_name_of_the_first(tmp_path):
    (tmp_path / "key").write_text("correct horse battery staple")
    port = free_port()
    pods = [
        subprocess.Popen(
            [sys.executable, "-c", PODS],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ, "JOB_COMPLETION_INDEX": str(index), "RABIT_SIZE": "2", "HOSTNAME": f"train-{index}",
                "RABIT_STORE_ADDRESS": f"127.0.0.1:{port}", "RABIT_SECRET_KEY_FILE": str(tmp_path / "key"),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )
        for index in range(2)
    ]  # fmt: skip

    assert sorted(pod.communicate(timeout=60)[0] for pod in pods) == ["0 2 [2.]\n", "1 2 [2.]\n"]


TORCHRUN = "import rabit_torch, " + PODS.strip().removeprefix("import ")


def test_torchrun_on_two_hosts_meets_in_its_own_store(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TORCHRUN)
    port = free_port()
    hosts = [
        subprocess.Popen(
            [
                sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
                "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port), "train.py",
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ, "RABIT_BIND_ADDRESS": "127.0.0.1", "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )
        for node in range(2)
    ]  # fmt: skip

    assert sorted(host.communicate(timeout=280)[0] for host in hosts) == ["0 2 [2.]\n", "1 2 [2.]\n"]
