"""A plan as a file: what `rabitrun plan -o` writes, and what jobs read; see docs/reference/topology_file.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from rabit.errors import InvalidArgument
from rabit.planner.order import all_pairs_rate, shortest_paths
from rabit.planner.plan import Plan
from rabit.planner.trees import Tree

__all__ = ["PlanDocument", "PlannedTree", "described", "document_of", "followed", "read_plan"]

_FORMAT = "rabit plan"
_VERSION = 1
# Weights are whole numbers of so many parts: links differ by noise, and a table of small numbers is short.
_PARTS = 10_000
# A ring that reaches so much of the optimum needs no trees: its steps are fewer.
_RING_IS_ENOUGH = 0.98
# What a link carries in the latency of a message, where a job does not measure it when it starts.
_PIPELINE_BYTES = 4096
_BYTES_MIN = 64 << 10
# Of more hosts only broadcasts and reductions of the first one have trees: a table of all would be long.
_ALL_ROOTS_HOSTS_MAX = 16
# Sums of 16-bit floats follow the trees where these are so much faster than sums in one place.
_WORTH_WIDE_SUMS = 1.05
_KINDS = ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")


@dataclass(frozen=True)
class PlannedTree:
    """A tree over hosts by their place in `PlanDocument.hosts`; parents, -1 for the root.

    kind: "allreduce" has `up` and `down`, "broadcast" and "allgather" `down`, the others `up`.
    """

    kind: str
    root: int
    weight: int
    up: tuple[int, ...]
    down: tuple[int, ...]


@dataclass(frozen=True)
class PlanDocument:
    """The part of a plan that jobs execute.

    topology: the hash of the network that it was made for. order: places in `hosts`. pipeline_bytes: what a
    link carries in the time of one message's latency. bytes_min: exchanges below it do not follow the plan.
    wide_sums: an allreduce that sums in a wider type than the tensor's, such as one of 16-bit floats, follows it too.
    """

    topology: str
    hosts: tuple[str, ...]
    order: tuple[int, ...]
    trees: tuple[PlannedTree, ...]
    pipeline_bytes: int = _PIPELINE_BYTES
    bytes_min: int = _BYTES_MIN
    wide_sums: bool = False

    def followed(self) -> dict[str, str]:
        """What a job does with each kind of exchange: "trees", "ring in the order" or "as without a plan"."""
        roots = {kind: {tree.root for tree in self.trees if tree.kind == kind} for kind in _KINDS}
        found = {kind: "trees" if roots[kind] else "as without a plan" for kind in _KINDS}
        if not roots["allreduce"]:
            found["allreduce"] = "ring in the order"
        for kind in ("broadcast", "reduce"):
            if len(roots[kind]) < len(self.hosts):
                found[kind] = f"trees from {self.hosts[0]}, else as without a plan"
        found["allreduce of 16-bit floats"] = "trees" if self.wide_sums else "as without a plan"
        return {**found, "alltoall": "as without a plan"}  # The first half of many codecs.


def described(plan: Plan) -> dict[str, Any]:
    """The whole file of a plan, as JSON; its hash covers all of it."""
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        **plan.to_json(),
        "network": plan.topology.to_json(),
        "pipeline_bytes": _PIPELINE_BYTES,
        "bytes_min": _BYTES_MIN,
        "wide_sums": _has_wide_sums(plan),
        "execution": [
            [each.kind, each.root, each.weight, list(each.up), list(each.down)]
            for each in _executed(plan)
        ],
    }
    return {**document, "hash": _digest(document)}


def followed(plan: Plan) -> dict[str, str]:
    """What a job that follows `plan` does with each kind of exchange; see PlanDocument.followed."""
    return document_of(described(plan)).followed()


def read_plan(path: str | Path) -> PlanDocument:
    """Raises InvalidArgument, with the path, for a file that cannot be read, was changed or is not a plan."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        _refuse(path, f"it cannot be read: {error.strerror}")
    except ValueError as error:
        _refuse(path, f"it is not JSON: {error}; the file may be truncated")
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        _refuse(path, "it is not a plan, such as a topology file")
    if document.get("version") != _VERSION:
        _refuse(path, f"its version is {document.get('version')!r}, and this rabit reads {_VERSION}")
    if document.pop("hash", None) != _digest(document):
        _refuse(path, "it was changed after it was written, or is incomplete")
    try:
        return document_of(document)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        _refuse(path, f"its contents do not fit together: {type(error).__name__}: {error}")


def document_of(document: Mapping[str, Any]) -> PlanDocument:
    """The part that jobs execute of what `described` returns."""
    hosts = tuple(map(str, document["hosts"]))
    size = len(hosts)
    trees = []
    for kind, root, weight, up, down in document["execution"]:
        if kind not in _KINDS or not all(len(way) in (0, size) for way in (up, down)):
            raise ValueError(f"a tree of {kind!r} with {len(up)} and {len(down)} parents")
        trees.append(PlannedTree(kind, int(root), int(weight), tuple(map(int, up)), tuple(map(int, down))))
    order = tuple(hosts.index(name) for name in document["order"])
    return PlanDocument(
        str(document["topology"]), hosts, order, tuple(trees),
        int(document["pipeline_bytes"]), int(document["bytes_min"]), bool(document.get("wide_sums", False)),
    )  # fmt: skip


def _executed(plan: Plan) -> Iterable[PlannedTree]:
    """Trees for each kind whose ring, which an allreduce alone takes in the best order, does not reach the optimum."""
    size = plan.topology.hosts
    if _has_trees(plan):
        for pair in plan.trees:
            if weight := round(pair.share * _PARTS):
                yield PlannedTree(
                    "allreduce", pair.root, weight,
                    _parents(size, ((child, parent) for child, parent in pair.reduce.edges)),
                    _parents(size, ((child, parent) for parent, child in pair.broadcast.edges)),
                )  # fmt: skip
    ring = 2 * float(plan.ring())  # The same steps once, for a gathering, whose parts keep their places.
    for kind, optimum, forest in (
        ("allgather", plan.allgather, plan.gather_trees),
        ("reducescatter", plan.reducescatter, plan.scatter_trees),
    ):
        if ring / float(optimum) < _RING_IS_ENOUGH:
            yield from _forest(kind, size, forest())
    for root in range(size if size <= _ALL_ROOTS_HOSTS_MAX else 1):
        yield from _forest("broadcast", size, plan.broadcast_trees(root))
        yield from _forest("reduce", size, plan.reduce_trees(root))


def _has_trees(plan: Plan) -> bool:
    return float(plan.ring(plan.order) / plan.allreduce) < _RING_IS_ENOUGH


def _has_wide_sums(plan: Plan) -> bool:
    """Whether the trees, with sums of twice the bytes on their way to the root, are faster than sums in one place."""
    if not _has_trees(plan):
        return False
    paths = shortest_paths(plan.topology)
    loads: dict[tuple[int, int], Fraction] = {}
    for pair in plan.trees:
        for edges, times in ((pair.reduce.edges, 2), (pair.broadcast.edges, 1)):
            for edge in edges:
                for link in paths[edge]:
                    loads[link] = loads.get(link, Fraction(0)) + times * pair.share
    slowest = max(load / plan.topology.capacity[link] for link, load in loads.items())
    return slowest * _WORTH_WIDE_SUMS < 1 / all_pairs_rate(plan.topology)


def _forest(kind: str, size: int, trees: Sequence[Tree]) -> Iterable[PlannedTree]:
    """Weights are parts of what the trees of one root carry."""
    totals: dict[int, Any] = {}
    for tree in trees:
        totals[tree.root] = totals.get(tree.root, 0) + tree.rate
    for tree in trees:
        weight = max(1, round(tree.rate / totals[tree.root] * _PARTS))
        if kind in ("broadcast", "allgather"):
            parents = _parents(size, ((child, parent) for parent, child in tree.edges))
            yield PlannedTree(kind, tree.root, weight, (), parents)
        else:
            yield PlannedTree(kind, tree.root, weight, _parents(size, tree.edges), ())


def _parents(size: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """edges: (child, parent)."""
    found = dict(edges)
    return tuple(found.get(host, -1) for host in range(size))


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _refuse(path: str | Path, reason: str) -> NoReturn:
    raise InvalidArgument(
        f"the plan {path} cannot be used: {reason}. Write it with 'rabitrun plan -o' and copy it to all hosts as it is."
    )
