"""torch.distributed under rabitrun: the variables of torchrun, and a port that is kept."""

from __future__ import annotations

import socket

import pytest

from rabit.launch.options.environment import base_environ
from rabit.launch.torch_environ import master_environ

SHOW = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"


def test_ranks_find_the_variables_of_torchrun(rabitrun):
    job = rabitrun("-np", 2, "sh", "-c", SHOW)

    lines = sorted(job.out.splitlines())
    places, meetings = zip(*(line.rsplit(" ", 1) for line in lines), strict=True)
    assert places == ("[0] 0/2 0/2", "[1] 1/2 1/2")
    assert len(set(meetings)) == 1 and meetings[0].startswith("127.0.0.1:")


def test_marks_of_another_torchrun_do_not_reach_the_ranks():
    outer = {"RANK": "7", "GROUP_RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "A": "b"}

    assert base_environ(outer) == {"A": "b"}


def test_the_users_own_address_wins(rabitrun):
    flags = ["--env", "MASTER_ADDR=1.2.3.4", "--env", "MASTER_PORT=5"]

    job = rabitrun("-np", 1, *flags, "sh", "-c", SHOW)

    assert job.out == "[0] 0/1 0/1 1.2.3.4:5\n"


def test_the_port_is_kept_and_can_be_listened_on():
    with master_environ("", "127.0.0.1") as found, socket.socket() as stranger:
        place = (found["MASTER_ADDR"], int(found["MASTER_PORT"]))
        with pytest.raises(OSError, match="in use"):
            stranger.bind(place)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()
            socket.create_connection(place).close()


def test_a_port_of_another_host_is_drawn():
    with master_environ("node7", "") as found:
        assert found["MASTER_ADDR"] == "node7"
        assert 20_000 <= int(found["MASTER_PORT"]) < 30_000


@pytest.mark.parametrize("backend", ["gloo", "rabit"])
def test_init_process_group_works_as_under_torchrun(rabitrun, rank_server, tmp_path, backend):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "import rabit_torch\n"
        "dist.init_process_group(sys.argv[1])\n"
        "x = torch.ones(3) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(x)\n"
        "print(dist.get_backend(), x.tolist())\n"
        "dist.destroy_process_group()\n"
    )

    job = rabitrun("-np", 2, *rank_server.command, script, backend)

    assert job.status == 0, job.err
    assert sorted(job.out.splitlines()) == [f"[{r}] {backend} [3.0, 3.0, 3.0]" for r in (0, 1)]


@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize("where", ["env://", "file://"])
def test_a_rank_that_ends_without_init_process_group_ends_the_job(rabitrun, rank_server, tmp_path, where, early):
    """Rank 0 serves the store of env://; with a file ranks wait for what each has written there."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "early, where = int(sys.argv[1]), sys.argv[2]\n"
        "if int(os.environ['RANK']) == early: os._exit(0)\n"
        "import torch.distributed as dist, rabit_torch.distributed\n"
        "place = dict(rank=int(os.environ['RANK']), world_size=3)\n"
        "dist.init_process_group('rabit', init_method=where, **(place if where[:4] == 'file' else {}))\n"
    )
    meeting = where if where == "env://" else f"file://{tmp_path}/meeting"

    job = rabitrun("-np", 3, *rank_server.command, script, early, meeting)

    assert job.status == 1, job.err
    assert f"rabitrun: rank {early} of 3 (host localhost) ended without an error and without" in job.err
    assert "init_process_group(), in which rank" in job.err and "Traceback" not in job.err


def test_a_group_of_some_ranks_does_not_wait_for_the_others(rabitrun, rank_server, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 2: sys.exit(0)\n"
        "import torch, torch.distributed as dist, rabit_torch.distributed\n"
        "dist.init_process_group('rabit', init_method='file://' + sys.argv[1], rank=rank, world_size=2)\n"
        "x = torch.ones(1)\n"
        "dist.all_reduce(x)\n"
        "print(x.item())\n"
        "dist.destroy_process_group()\n"
    )

    job = rabitrun("-np", 3, *rank_server.command, script, tmp_path / "meeting")

    assert job.status == 0, job.err
    assert sorted(job.out.splitlines()) == ["[0] 2.0", "[1] 2.0"]
