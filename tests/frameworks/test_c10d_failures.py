"""A rank of a torch.distributed job ends: what the others get."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fsdp2 import needs_fsdp2
from support.processes import run_processes

SCRIPT = Path(__file__).parent / "scripts" / "c10d_failures.py"
ENDED = {"raise": 1, "kill": -9, "shutdown": 0}


@pytest.mark.parametrize("end", ENDED)
@pytest.mark.parametrize("mode", ["ddp", "hook", pytest.param("fsdp", marks=needs_fsdp2)])
def test_survivors_of_a_rank_get_its_end_as_an_exception(rank_server, tmp_path, mode, end):
    variables = {"MODE": mode, "END": end, "MEETING": str(tmp_path / "meeting")}
    variables["OMP_NUM_THREADS"] = "1"

    ended = run_processes(3, SCRIPT.read_text(), tmp_path, variables, command=rank_server.command)

    assert ended[1].status == ENDED[end], ended[1].errors
    for rank in (0, 2):
        assert ended[rank].status == 0, (rank, ended[rank])
        where = "forward" if mode == "fsdp" else "backward"
        assert f"survivor {rank}: {where} raised " in ended[rank].output
        assert "raised PeerLost: " in ended[rank].output or "raised Aborted: " in ended[rank].output
        assert "rank 1" in ended[rank].output
        assert "Traceback" not in ended[rank].errors


def test_the_traceback_of_the_rank_that_raises_is_the_only_one(rank_server, tmp_path):
    variables = {"MODE": "ddp", "END": "raise", "MEETING": str(tmp_path / "meeting")}

    ended = run_processes(2, SCRIPT.read_text(), tmp_path, variables, command=rank_server.command)

    assert ended[1].errors.count("Traceback") == 1, ended[1].errors
    assert "ValueError: the data of rank 1 is bad" in ended[1].errors
