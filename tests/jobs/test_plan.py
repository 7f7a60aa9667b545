"""Jobs that follow a plan."""

import json
import re

import numpy as np
import pytest
from support.topologies import direct, racks, star

import rabit
from rabit.errors import InvalidArgument
from rabit.planned import follow_plan, host_name
from rabit.planner import Plan
from rabit.planner.document import described, read_plan
from rabit.planner.table import table_of
from rabit.testing import run_ranks

COUNT = 100_003
NETWORKS = {"racks": racks(2, 2, 5), "slow host": star(5, 10, 10, 10), "triangle": direct(3, [(0, 1), (1, 2), (2, 0)])}


@pytest.fixture(params=NETWORKS)
def planned(request, tmp_path):
    """(path of a plan, names of its hosts)."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(described(Plan(NETWORKS[request.param]))))
    return path, read_plan(path).hosts


def written(tmp_path, name, topology):
    path = tmp_path / name
    path.write_text(json.dumps(described(Plan(topology))))
    return path


def test_collectives_along_a_plan_are_right(planned):
    path, hosts = planned
    size = len(hosts)

    def run(engine):
        follow_plan(engine, str(path), hosts[engine.rank])
        mine = np.arange(COUNT, dtype=np.float32) * (engine.rank + 1)
        total = np.arange(COUNT, dtype=np.float32) * (size * (size + 1) // 2)
        assert np.array_equal(rabit.allreduce(mine, name="sum", op=rabit.Sum), total)
        assert np.array_equal(rabit.allreduce(mine, name="least", op=rabit.Min), np.arange(COUNT))
        assert np.array_equal(rabit.broadcast(mine, 0, name="from 0"), np.arange(COUNT))
        assert np.array_equal(rabit.broadcast(mine, 1, name="from 1"), 2 * np.arange(COUNT))
        gathered = rabit.allgather(mine[: COUNT // 3 * (engine.rank + 1)], name="parts")
        assert np.array_equal(gathered[: COUNT // 3], np.arange(COUNT // 3))
        part = rabit.reducescatter(np.tile(mine[:30_000], size), name="parts of the sum", op=rabit.Sum)
        assert np.array_equal(part, total[:30_000])
        narrow = rabit.allreduce((mine % 100).astype(np.float16), name="narrow")
        return engine.statistics(), bytes(narrow)

    found = run_ranks(size, run)

    assert {each["plan"]["topology"] for each, _ in found} == {read_plan(path).topology}
    planned = {route["kind"] for route in found[0][0]["routes"] if route["algorithm"] == "plan" and route["exchanges"]}
    follows = found[0][0]["plan"]["follows"]
    assert planned == {kind for kind in follows if follows[kind] == "trees"} - {"reduce"}
    assert sum(route["exchanges"] for route in found[0][0]["routes"] if route["kind"] == "broadcast" and
               route["algorithm"] == "plan") == 2  # fmt: skip
    assert len({narrow for _, narrow in found}) == 1


def test_sums_have_the_same_bits_on_all_ranks_and_in_each_run(tmp_path):
    path = written(tmp_path, "plan.json", racks(2, 2, 5))
    values = np.random.default_rng(3).standard_normal((4, COUNT)).astype(np.float32)

    def run(engine):
        follow_plan(engine, str(path), f"h{engine.rank}")
        return bytes(rabit.allreduce(values[engine.rank], name="sum", op=rabit.Sum))

    assert len({*run_ranks(4, run), *run_ranks(4, run)}) == 1


def test_sums_that_repeat_their_bits_follow_one_tree_whatever_the_sizes(tmp_path):
    path = written(tmp_path, "plan.json", racks(2, 2, 5))
    choose = np.random.default_rng(4)
    values = [choose.standard_normal((4, count)).astype(np.float32) for count in (3, 700, 9_001, COUNT)]

    def run(engine):
        follow_plan(engine, str(path), f"h{engine.rank}")
        handles = [rabit.allreduce_async(each[engine.rank], name=str(each.size)) for each in values]
        sums = [bytes(rabit.synchronize(handle)) for handle in handles]
        mine = values[-1][engine.rank][:100_000]
        sums.append(bytes(rabit.allgather(rabit.reducescatter(mine, name="parts"), name="all")))
        return sums, engine.statistics()

    found = [
        each
        for partition, fusion in ((4 << 10, 0), (64 << 10, 1 << 20), (8 << 20, 8 << 20))
        for each in run_ranks(4, run, deterministic=True, partition_bytes=partition, fusion_bytes=fusion)
    ]

    assert len({tuple(sums) for sums, _ in found}) == 1
    assert found[0][1]["plan"]["follows"]["allreduce"] == "trees"
    for kind in ("allreduce", "reducescatter"):
        taken = {route["algorithm"] for route in found[0][1]["routes"] if route["kind"] == kind and route["exchanges"]}
        assert taken == {"plan"}


@pytest.mark.parametrize(
    ("network", "how", "kinds"),
    [
        ("triangle", {}, {"allreduce"}),
        ("racks", {"allreduce_algorithm": "allreduce:1M-inf@direct"}, {"allreduce", "reduce", "reducescatter"}),
    ],
)
def test_sums_whose_order_would_depend_on_sizes_follow_no_plan(tmp_path, network, how, kinds):
    path = written(tmp_path, "plan.json", NETWORKS[network])

    def run(engine):
        follow_plan(engine, str(path), read_plan(path).hosts[engine.rank])
        assert rabit.allreduce(np.ones(COUNT), name="sum", op=rabit.Sum)[0] == engine.size
        return engine.statistics()

    found = run_ranks(NETWORKS[network].hosts, run, deterministic=True, **how)

    follows = found[0]["plan"]["follows"]
    assert {follows[kind] for kind in kinds} == {"as without a plan"}
    assert follows["broadcast"] == "trees"
    assert "plan" not in {route["algorithm"] for route in found[0]["routes"] if route["kind"] == "allreduce"}


def test_several_ranks_of_a_host_follow_a_plan_of_hosts(tmp_path):
    path = written(tmp_path, "plan.json", star(5, 10, 10))
    hosts = ["h0", "h1", "h1", "h2", "h0"]

    def run(engine):
        follow_plan(engine, str(path), hosts[engine.rank])
        out = rabit.allreduce(np.full(COUNT, engine.rank + 1.0), name="sum", op=rabit.Sum)
        whole = rabit.broadcast(np.full(COUNT, engine.rank), 0, name="whole")
        return set(out.tolist()), set(whole.tolist())

    assert run_ranks(5, run) == [({15.0}, {0})] * 5


def test_ranks_keep_their_numbers_where_a_ring_has_another_order(tmp_path):
    """On an even network the plan is an order alone."""
    path = written(tmp_path, "plan.json", star(*[10] * 4))
    order = [2, 0, 3, 1]

    def run(engine):
        document = read_plan(path)
        table = table_of(document, document.hosts)
        engine.set_plan(re.sub("^order .*$", "order " + " ".join(map(str, order)), table, flags=re.M))
        out = rabit.allreduce(np.arange(COUNT) * (engine.rank + 1), name="sum", op=rabit.Sum)
        assert np.array_equal(out, np.arange(COUNT) * 10)
        return rabit.rank(), rabit.allgather([engine.rank], name="ranks").tolist()

    found = run_ranks(4, run, allreduce_algorithm="ring")

    assert found == [(rank, [0, 1, 2, 3]) for rank in range(4)]


def test_a_plan_is_taken_back(planned):
    path, hosts = planned

    def run(engine):
        follow_plan(engine, str(path), hosts[engine.rank])
        engine.set_plan("")
        return rabit.allreduce(np.ones(COUNT), name="sum", op=rabit.Sum)[0]

    assert run_ranks(len(hosts), run) == [len(hosts)] * len(hosts)


def refused(paths, hosts):
    """What each rank reports, with a plan of its own."""

    def run(engine):
        with pytest.raises(InvalidArgument) as caught:
            follow_plan(engine, str(paths[engine.rank]), hosts[engine.rank])
        # The job continues without a plan.
        assert rabit.allreduce(np.ones(COUNT), name="sum", op=rabit.Sum)[0] == len(hosts)
        return str(caught.value)

    return run_ranks(len(hosts), run)


def test_a_plan_of_other_hosts_is_refused_on_all_ranks(tmp_path):
    path = written(tmp_path, "plan.json", star(5, 10))

    for text in refused([path] * 2, ["h0", "node7"]):
        assert "the job has node7, which it does not name; it names h1, where no rank runs" in text


def test_plans_that_differ_between_ranks_are_refused_on_all_ranks(tmp_path):
    paths = [written(tmp_path, "a.json", star(5, 10)), written(tmp_path, "b.json", star(10, 5))]

    for text in refused(paths, ["h0", "h1"]):
        assert "differs between the ranks: rank 0 has the plan of topology" in text


def test_a_file_that_one_rank_cannot_read_is_reported_by_all(tmp_path):
    path = written(tmp_path, "plan.json", star(5, 10))
    cut = tmp_path / "cut.json"
    cut.write_text(path.read_text()[:100])

    for text in refused([path, cut], ["h0", "h1"]):
        assert text.startswith("on rank 1: ")
        assert "cut.json cannot be used: it is not JSON" in text


@pytest.mark.parametrize(
    ("key", "name"), [("4f1c:node3", "node3"), ("4f1c:vm/rack1", "rack1"), ("lab2", "lab2"), ("run_ranks", "run_ranks")]
)
def test_hosts_have_the_name_that_users_know(key, name):
    assert host_name(key) == name


def test_ranks_probe_the_network_and_follow_the_plan(capfd):
    def run(engine):
        follow_plan(engine, "auto", f"h{engine.rank}")
        assert rabit.allreduce(np.ones(COUNT), name="sum", op=rabit.Sum)[0] == 3
        return engine.statistics()["plan"]

    found = run_ranks(3, run)

    assert len({each["topology"] for each in found}) == 1
    assert {pair for a, b, rate in found[0]["rates_mbit"] for pair in [(a, b)] if rate > 0} == {
        ("h0", "h1"), ("h0", "h2"), ("h1", "h2"),
    }  # fmt: skip
    assert "rabit: the network of 3 hosts was probed in" in capfd.readouterr().err


def test_ranks_of_one_host_have_no_network_to_probe():
    def run(engine):
        follow_plan(engine, "auto", "h0")
        return "plan" in engine.statistics()

    assert run_ranks(2, run) == [False, False]
