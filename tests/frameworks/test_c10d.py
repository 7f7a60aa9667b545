"""Backend "rabit" of torch.distributed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.rank_server import RankServer

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node"]


def run(rank_server: RankServer, ranks: int, script: str, **environ: str) -> None:
    done = subprocess.run(
        [sys.executable, *TORCHRUN, str(ranks), *rank_server.command, str(SCRIPTS / script)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environ},
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.count("done ") == ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective_agrees_with_gloo(rank_server, ranks):
    run(rank_server, ranks, "c10d_collectives.py")


def test_operations_take_the_routes_of_the_job(rank_server):
    rules = "allreduce:>=4K:ps;broadcast:builtin/chain"

    run(rank_server, 2, "c10d_routes.py", RABIT_BACKEND="builtin,ps", RABIT_ROUTE=rules)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp_and_fsdp_train_to_the_parameters_of_gloo(rank_server, ranks):
    run(rank_server, ranks, "c10d_training.py")


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_call_different_collectives_are_told(rank_server, ranks):
    run(rank_server, ranks, "c10d_disagreements.py")


def test_what_torch_builds_on_process_groups_works(rank_server):
    run(rank_server, 2, "c10d_features.py")


def test_groups_on_the_default_engine_meet_after_a_join(on_ranks):
    """Ranks that have joined miss operations of the others."""
    script = """
    import torch.distributed as dist
    import rabit_torch.distributed

    dist.init_process_group("rabit", rank=rabit.rank(), world_size=rabit.size())
    sums = []
    for epoch in range(2):
        for _ in range(2 + rabit.rank()):
            dist.all_reduce(torch.ones(9))
        rabit.join()
        ones = torch.ones(9)
        dist.all_reduce(ones)
        sums.append(ones[0].item())
    dist.destroy_process_group()
    report(sums)
    """

    assert on_ranks(2, script) == [[2.0, 2.0]] * 2


def test_an_exception_inside_the_coalescing_manager_ends_the_coalescing(on_ranks):
    """torch neither ends it nor forgets it: works would be kept forever, and all_reduce would do nothing."""
    found = on_ranks(
        2,
        """
        import gc, weakref
        import torch.distributed as dist
        import rabit_torch.distributed

        dist.init_process_group("rabit")
        peer = 1 - dist.get_rank()
        inputs, outputs = torch.full((2,), float(peer)), torch.zeros(2)
        results = []
        for attempt in ("in the manager", "in batch_isend_irecv"):
            try:
                if attempt == "in the manager":
                    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True):
                        dist.broadcast(inputs, 0)
                        raise KeyError(attempt)
                receive = dist.P2POp(dist.irecv, outputs, peer)
                receive.op = lambda *args, **kwargs: {}[attempt]
                dist.batch_isend_irecv([receive])
            except KeyError:
                pass
            total, other = torch.ones(2), torch.ones(3)
            dist.all_reduce(total)
            work = dist.all_reduce(other, async_op=True)
            work.wait()
            kept = weakref.ref(work)
            del work
            gc.collect()
            results += [total.tolist(), other.tolist(), kept() is None]
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, torch.full((2,), 7.0), peer), dist.P2POp(dist.irecv, outputs, peer)]
        )
        for work in works:
            work.wait()
        report([*results, outputs.tolist()])
        dist.destroy_process_group()
        """,
    )

    assert found == [[[2, 2], [2, 2, 2], True] * 2 + [[7, 7]]] * 2


def test_each_group_of_a_process_has_a_record_of_its_own(on_ranks, tmp_path):
    """Two halves are made at the same time, and in each somebody is rank 0."""
    script = """
    import os
    import torch.distributed as dist
    import rabit_torch.distributed
    from rabit.diagnostics.look.look import look_at
    from rabit.diagnostics.metrics_server import text_of
    from rabit.record.reader import find_records, read_counters

    dist.init_process_group("rabit")
    rank = dist.get_rank()
    for turn in range(5):
        group = dist.new_group([rank % 2, rank % 2 + 2], use_local_synchronization=True)
        dist.all_reduce(torch.ones(4), group=group)
    dist.barrier()
    paths = find_records(Path(os.environ["RABIT_RECORD"]))
    headers = [read_counters(path).header for path in paths]
    seen = look_at(paths, "here", 0)["ranks"] if rank == 0 else {}
    report((
        os.getpid(),
        [(header["pid"], header["engine"], header["rank"], header["size"]) for header in headers],
        {each: found["header"]["pid"] for each, found in seen.items()},
        sorted(line for line in text_of(paths, "job").splitlines() if line.startswith("rabit_members{")),
    ))
    dist.barrier()
    """
    found = on_ranks(4, script, RABIT_RECORD=str(tmp_path / "records"))

    pids = [pid for pid, *_ in found]
    _, headers, seen, lines = found[0]
    assert sorted(headers) == sorted([pid, engine, rank, 4] for rank, pid in enumerate(pids) for engine in range(1, 7))
    assert seen == {str(rank): pid for rank, pid in enumerate(pids)}
    assert len({line.partition(" ")[0] for line in lines}) == len(lines) == 24
