"""Plans as files, and as tables over ranks."""

import json

import pytest
from support.topologies import direct, racks, star

from rabit.errors import InvalidArgument
from rabit.planner import Plan, Topology
from rabit.planner.document import described, document_of, read_plan
from rabit.planner.table import table_of

RACKS = racks(2, 2, 5)


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(described(Plan(RACKS))))
    return path


def reaches_root(parents, root):
    for rank in range(len(parents)):
        steps = 0
        while rank != root:
            rank, steps = parents[rank], steps + 1
            assert steps <= len(parents)


def read_table(text):
    """[(kind, root, weight, up, down)] and the other lines by their first word."""
    trees, others = [], {}
    for line in text.splitlines():
        word, *rest = line.split()
        if word in ("size", "bytes_min", "pipeline_bytes", "wide_sums", "order"):
            others[word] = [int(number) for number in rest]
            continue
        size = others["size"][0]
        ways = {}
        at = 2
        while at < len(rest):
            ways[rest[at]] = [int(number) for number in rest[at + 1 : at + 1 + size]]
            at += 1 + size
        trees.append((word, int(rest[0]), int(rest[1]), ways.get("up"), ways.get("down")))
    return trees, others


def test_a_plan_comes_back_from_its_file(plan_file):
    document = read_plan(plan_file)

    assert document.hosts == ("h0", "h1", "h2", "h3")
    assert document.topology == RACKS.digest
    assert {tree.kind for tree in document.trees} == {
        "allreduce", "broadcast", "reduce", "allgather", "reducescatter",
    }  # fmt: skip


def test_an_even_network_needs_no_trees_for_sums_and_gathers(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(described(Plan(star(10, 10, 10, 10)))))

    assert {tree.kind for tree in read_plan(path).trees} == {"broadcast", "reduce"}


def test_sums_of_narrow_floats_follow_trees_where_these_are_faster():
    """Towards the root they are twice as long: between racks of two that takes what sums in one place take."""
    assert not document_of(described(Plan(racks(2, 2, 5)))).wide_sums
    assert document_of(described(Plan(racks(2, 4, 5)))).wide_sums
    assert not document_of(described(Plan(star(5, 10, 10, 10)))).wide_sums


def test_every_host_has_trees_to_broadcast_and_to_be_reduced_to(plan_file):
    trees = read_plan(plan_file).trees

    for kind in ("broadcast", "reduce"):
        assert {tree.root for tree in trees if tree.kind == kind} == {0, 1, 2, 3}


def test_gatherings_of_hosts_in_a_bad_order_have_trees(tmp_path):
    """A ring of a gathering passes the ranks in their own order, whatever the best one is."""
    links = [(f"h{host}", f"s{host % 2}", 10) for host in range(4)] + [("s0", "s1", 10)]
    both_ways = [*links, *((end, start, capacity) for start, end, capacity in links)]
    plan = Plan(Topology.of([f"h{host}" for host in range(4)], both_ways, ["s0", "s1"]))

    document = document_of(described(plan))

    assert plan.ring(plan.order) == plan.allreduce == 2 * plan.ring()
    assert {tree.kind for tree in document.trees} >= {"allgather", "reducescatter"}
    assert document.followed() == {
        "allreduce": "ring in the order", "broadcast": "trees", "reduce": "trees", "allgather": "trees",
        "reducescatter": "trees", "allreduce of 16-bit floats": "as without a plan", "alltoall": "as without a plan",
    }  # fmt: skip


def test_a_truncated_file_is_refused(plan_file):
    plan_file.write_text(plan_file.read_text()[:-40])

    with pytest.raises(InvalidArgument, match=r"plan\.json cannot be used: it is not JSON.*may be truncated"):
        read_plan(plan_file)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.update(bytes_min=5), "it was changed after it was written"),
        (lambda d: d.pop("hash"), "it was changed after it was written"),
        (lambda d: d.update(version=9), "its version is 9, and this rabit reads 1"),
        (lambda d: d.pop("format"), "it is not a plan, such as a topology file"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(plan_file, change, reason):
    document = json.loads(plan_file.read_text())
    change(document)
    plan_file.write_text(json.dumps(document))

    with pytest.raises(InvalidArgument, match=reason):
        read_plan(plan_file)


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match="it cannot be read: No such file"):
        read_plan(tmp_path / "none.json")


def test_a_table_has_trees_over_all_ranks(plan_file):
    host_of = ["h2", "h0", "h0", "h1", "h3", "h2"]

    trees, others = read_table(table_of(read_plan(plan_file), host_of))

    assert others["size"] == [6]
    assert sorted(others["order"]) == list(range(6))
    for _, root, _, up, down in trees:
        for parents in (up, down):
            if parents:
                assert parents[root] == -1
                reaches_root(parents, root)
    # Every rank brings a part, of several ranks of a host too.
    assert {root for kind, root, *_ in trees if kind == "allgather"} == set(range(6))
    # Each link between hosts carries one copy: one rank of a host has a parent on another one.
    for kind, _, _, up, down in trees:
        for parents in (up, down):
            crossing = [
                rank for rank, parent in enumerate(parents or ()) if parent >= 0 and host_of[rank] != host_of[parent]
            ]
            assert len(crossing) in (0, 3), kind


def test_a_plan_of_other_hosts_is_refused_with_the_difference(plan_file):
    reason = "the job has h9, which it does not name; it names h3, where no rank runs"
    with pytest.raises(InvalidArgument, match=reason):
        table_of(read_plan(plan_file), ["h0", "h1", "h2", "h9"])


@pytest.mark.parametrize("topology", [direct(8, [(i, i + 1) for i in range(7)]), star(5, *[10] * 7)])
def test_trees_of_few_hosts_are_as_short_as_one_root_allows(topology):
    """A pipeline is empty for as long as the way to the root and back."""
    assert Plan(topology).trees[0].hops <= 8
