"""The trees of a plan over the ranks of a job, as the text that `rabit_set_plan` takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rabit.errors import InvalidArgument
from rabit.planner.document import PlanDocument, PlannedTree

__all__ = ["table_of"]

_ALL_ROOTS_RANKS_MAX = 64  # of more, the first rank of each host alone has trees to broadcast


def table_of(document: PlanDocument, host_of: Sequence[str], source: str = "the plan") -> str:
    """The table for a job whose rank r runs on the host `host_of[r]`.

    One rank of each host stands in the trees over hosts, another one in each tree in turn; the other ranks of the host
    are its children. Raises InvalidArgument, with `source`, if the job has other hosts than the plan.
    """
    _check_hosts(document, host_of, source)
    ranks_of = [
        [rank for rank, name in enumerate(host_of) if name == host] for host in document.hosts
    ]
    lines = [
        f"size {len(host_of)}",
        f"bytes_min {document.bytes_min}",
        f"pipeline_bytes {document.pipeline_bytes}",
        f"wide_sums {int(document.wide_sums)}",
        " ".join(["order", *(str(rank) for host in document.order for rank in ranks_of[host])]),
    ]
    for turn, tree in enumerate(document.trees):
        lines += _lines(tree, turn, ranks_of)
    return "\n".join(lines) + "\n"


def _lines(tree: PlannedTree, turn: int, ranks_of: Sequence[Sequence[int]]) -> Iterator[str]:
    at_root = ranks_of[tree.root]
    # A part of an allgather belongs to one rank, and any rank may broadcast: each has trees of its own.
    roots = at_root
    if tree.kind == "allreduce":
        roots = [at_root[turn % len(at_root)]]
    elif tree.kind in ("broadcast", "reduce") and sum(map(len, ranks_of)) > _ALL_ROOTS_RANKS_MAX:
        roots = at_root[:1]
    for root in roots:
        first = [ranks[turn % len(ranks)] for ranks in ranks_of]
        first[tree.root] = root
        words = [tree.kind, str(root), str(tree.weight)]
        for way, parents in (("up", tree.up), ("down", tree.down)):
            if parents:
                words += [way, *map(str, _over_ranks(parents, first, ranks_of))]
        yield " ".join(words)


def _over_ranks(
    parents: Sequence[int], first: Sequence[int], ranks_of: Sequence[Sequence[int]]
) -> list[int]:
    found = [-1] * sum(map(len, ranks_of))
    for host, parent in enumerate(parents):
        for rank in ranks_of[host]:
            found[rank] = first[host]
        found[first[host]] = -1 if parent < 0 else first[parent]
    return found


def _check_hosts(document: PlanDocument, host_of: Sequence[str], source: str) -> None:
    planned, here = set(document.hosts), set(host_of)
    if planned == here:
        return
    differences = []
    if here - planned:
        differences.append(f"the job has {', '.join(sorted(here - planned))}, which it does not name")
    if planned - here:
        differences.append(f"it names {', '.join(sorted(planned - here))}, where no rank runs")
    raise InvalidArgument(
        f"{source} is of other hosts than this job: {'; '.join(differences)}. Make a plan of these hosts with "
        "'rabitrun plan', or set RABIT_PLAN=off."
    )
