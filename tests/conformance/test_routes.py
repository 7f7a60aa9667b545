"""Rules and tables of routes: who runs what, that results do not change, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import oracle

import rabit
from rabit import DType, InvalidArgument, ReduceOp
from rabit.config.config import Config
from rabit.testing import run_ranks
from rabit.tuning.route_table import seal, table_path, topology_of


def taken(engine) -> set[tuple[str, str, str]]:
    """(kind, algorithm, row) of everything that was exchanged."""
    return {
        (each["kind"], each["algorithm"], each["row"]) for each in engine.statistics()["routes"]
    }


ROUTE = "allreduce:<64K:builtin/tree;allreduce.int64:builtin/direct;*:builtin"


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_rules_choose_by_kind_type_and_size_and_do_not_change_results(transport):
    def on_rank(engine):
        for dtype, count in ((DType.FLOAT32, 5000), (DType.INT64, 9001), (DType.FLOAT64, 20_000)):
            arrays = [oracle.values(dtype, (count,), rank) for rank in range(3)]
            found = rabit.allreduce(arrays[engine.rank], name=f"{dtype}", op=rabit.Sum)
            oracle.assert_equal(found, oracle.reduced(arrays, ReduceOp.SUM), dtype, str(dtype))
        joined = rabit.allgather(np.full(4, engine.rank), name="g")
        assert joined.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        return taken(engine)

    found = run_ranks(3, on_rank, transport, route=ROUTE, inline_bytes=0)

    assert found[0] == found[1] == found[2]
    assert found[0] >= {
        ("allreduce", "tree", "route_rule"),
        ("allreduce", "direct", "route_rule"),
        ("allgather", "direct", "route_rule"),
    }
    assert {row for _, _, row in found[0]} == {"route_rule"}


def test_a_mean_of_16_bits_is_not_sent_around_the_ring_that_a_setting_names():
    def on_rank(engine):
        tensor = np.full(9000, 40_000, np.float16)
        mean = rabit.allreduce(tensor, name="mean")
        assert mean.tolist() == tensor.tolist()  # the sum would be inf
        rabit.allreduce(np.ones(9000, np.float32), name="wide")
        return taken(engine)

    found = run_ranks(3, on_rank, allreduce_algorithm="ring", inline_bytes=0)

    rows = {("allreduce", "direct", "user_rule"), ("allreduce", "ring", "user_rule")}
    assert found[0] == found[1] == found[2] == rows


def test_even_alltoalls_are_routed_by_their_size_and_others_by_the_mean():
    route = "alltoall:<1K:builtin;alltoall:4000-5000:builtin"

    def on_rank(engine):
        size, rows = engine.size, {}
        for count, splits in ((20, None), (400, None), (1000, None), (1001, [1, 1000])):
            before = {each["row"]: each["bytes"] for each in engine.statistics()["routes"]}
            tensor = np.zeros(count * size if splits is None else count, np.float32)
            rabit.alltoall(tensor, splits, name=f"{count}")
            after = {each["row"]: each["bytes"] for each in engine.statistics()["routes"]}
            rows[count] = {row: after[row] - before.get(row, 0) for row in after}
        return rows

    found = run_ranks(2, on_rank, route=route, inline_bytes=0)

    assert found[0] == found[1]
    assert found[0][20] == {"route_rule": 160}
    assert found[0][400] == {"route_rule": 0, "only": 3200}
    # The rows themselves are exchanged first: 16 bytes.
    assert found[0][1001] == {"route_rule": 16 + 4004, "only": 0}


def test_ordered_calls_take_the_same_routes():
    def on_rank(engine):
        array = np.full(5000, engine.rank + 1.0, np.float32)
        rabit.ordered_allreduce_(array, rabit.Sum)
        assert array.tolist() == [6.0] * 5000
        return taken(engine)

    assert (
        run_ranks(3, on_rank, route="allreduce:builtin/double_tree")
        == [{("allreduce", "double_tree", "route_rule")}] * 3
    )


def test_a_process_set_has_a_backend_of_its_own():
    def on_rank(engine):
        mine = rabit.add_process_set(rabit.ProcessSet([0, 1], backend="builtin"))
        rabit.allreduce(np.ones(4000), name="x", process_set=mine)
        with pytest.raises(InvalidArgument, match="backend 'mpi' is not ready on rank"):
            rabit.allreduce(np.ones(4000), name="x", process_set=mine, backend="mpi")
        with pytest.raises(InvalidArgument, match="unknown backend 'nccl'"):
            rabit.add_process_set(rabit.ProcessSet([0], backend="nccl"))

    run_ranks(2, on_rank)


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ("alltoall:ps", "position 10: this job runs without backend 'ps'; start summation servers with"),
        (
            "alltoall:mpi",
            "without backend 'mpi': it has builtin; add it with RABIT_BACKEND=builtin,",
        ),
        ("allreduce:builtin/rnig", "unknown allreduce algorithm 'rnig'; known: direct, gather_all"),
        ("allreduce:64:builtin", "'64' are no sizes: expected *, <64K, >=64K or 4K-64K"),
    ],
)
def test_a_rule_that_cannot_work_ends_the_start(route, said):
    with pytest.raises(InvalidArgument) as told:
        run_ranks(2, lambda engine: None, route=route)

    assert said in str(told.value)
    assert "RABIT_ROUTE '" in str(told.value)


# --- tables ---------------------------------------------------------------------------------------


def topology(size: int = 2) -> dict:
    return topology_of(Config(rank=0, size=size, local_rank=0, local_size=size))


def write(path: Path, document: dict) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def test_the_table_of_rank_0_holds_for_all_ranks(tmp_path):
    path = write(tmp_path / "t.json", seal(topology(), {"rules": "allreduce:<64K:builtin/tree"}))

    def on_rank(engine):
        rabit.allreduce(np.ones(5000, np.float32), name="x")
        rabit.allreduce(np.ones(5000, np.float16), name="y")
        return taken(engine)

    found = run_ranks(2, on_rank, route_table=path)

    assert found[0] == found[1] >= {("allreduce", "tree", "route_table")}


def test_the_table_says_how_tensors_are_cut_unless_the_user_does(tmp_path):
    sizes = {"partition_bytes": 1 << 20, "lanes": 1}
    path = write(tmp_path / "t.json", seal(topology(), {"rules": "", "tunables": sizes}))

    def on_rank(engine):
        rabit.allreduce(np.ones(2 << 20, np.float32), name="x")
        found = engine.statistics()["tunables"]
        return found["partition_bytes"], found["lanes"]

    assert run_ranks(2, on_rank, route_table=path) == [(1 << 20, 1)] * 2
    assert run_ranks(2, on_rank, route_table=path, partition_bytes=2 << 20) == [(2 << 20, 1)] * 2


def test_in_a_folder_the_table_of_this_topology_is_found(tmp_path):
    for size, algorithm in ((2, "tree"), (3, "ring")):
        document = seal(topology(size), {"rules": f"allreduce:builtin/{algorithm}"})
        write(table_path(tmp_path, topology(size)), document)

    def on_rank(engine):
        rabit.allreduce(np.ones(5000, np.float32), name="x")
        return taken(engine)

    found = run_ranks(2, on_rank, route_table=str(tmp_path))

    assert found == [{("allreduce", "tree", "route_table")}] * 2
    with pytest.raises(InvalidArgument, match=r"no table of this topology, .* \w+.json"):
        run_ranks(4, on_rank, route_table=str(tmp_path))


def test_a_rule_of_the_user_comes_before_the_table(tmp_path):
    path = write(tmp_path / "t.json", seal(topology(), {"rules": "allreduce:builtin/tree"}))

    def on_rank(engine):
        rabit.allreduce(np.ones(5000, np.float32), name="x")
        return taken(engine)

    settings = {"route_table": path, "route": "allreduce:builtin/ring"}
    assert run_ranks(2, on_rank, **settings) == [{("allreduce", "ring", "route_rule")}] * 2


def damaged(document: dict) -> dict:
    return {**document, "rules": "allreduce:builtin/ring"}


TABLES = {
    "edited": (lambda: damaged(seal(topology(3), {"rules": ""})), "it is damaged or was edited"),
    "another size": (
        lambda: seal(topology(4), {"rules": ""}),
        "on another topology: ranks is 4 there and 3 here; ranks_per_host is 4 there and 3 here",
    ),
    "another version": (lambda: {"format": "x", "version": 2}, "it is not a table of this version"),
    "a list": (lambda: [1], "it is not a JSON object"),
    "wrong rules": (
        lambda: seal(topology(3), {"rules": "allreduce:builtin/rnig"}),
        "RABIT_ROUTE_TABLE, whose rules are 'allreduce:builtin/rnig', position 19: unknown",
    ),
}


@pytest.mark.parametrize("name", list(TABLES))
def test_a_table_that_cannot_be_used_is_told_to_every_rank(tmp_path, monkeypatch, name):
    make, said = TABLES[name]
    path = write(tmp_path / "t.json", make())
    errors = []
    start = rabit.testing.Engine.__init__

    def starting(self, *arguments, **more):
        try:
            start(self, *arguments, **more)
        except InvalidArgument as error:
            errors.append(str(error))
            raise

    monkeypatch.setattr(rabit.testing.Engine, "__init__", starting)
    with pytest.raises(InvalidArgument):
        run_ranks(3, lambda engine: None, route_table=path)

    assert [said in each for each in errors] == [True] * 3, errors


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path):
    (tmp_path / "bad.json").write_text("{")

    for name, said in (("none.json", "it cannot be read: No such file"), ("bad.json", "it is not JSON")):
        with pytest.raises(InvalidArgument, match=said):
            run_ranks(2, lambda engine: None, route_table=str(tmp_path / name))
