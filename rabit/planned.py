"""A job follows the plan that RABIT_PLAN names: it is read or probed, compared, and put in force at the start."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rabit.engine.engine import Engine
from rabit.errors import InvalidArgument, RabitError
from rabit.ops.collectives import allgather
from rabit.planner.document import PlanDocument, described, document_of, read_plan
from rabit.planner.graph import Topology
from rabit.planner.plan import Plan
from rabit.planner.table import table_of
from rabit.probe import Probe, probe

__all__ = ["FollowedPlan", "exchanged", "follow_plan", "host_name", "hosts_of", "put_in_force", "report_probe"]

_AUTO = "auto"


@dataclass(frozen=True)
class FollowedPlan:
    """What a probe has found, and the plan that was made of it. hosts: by rank."""

    hosts: list[str]
    found: Probe
    document: PlanDocument

    @property
    def topology(self) -> Topology:
        return self.found.topology


def follow_plan(engine: Engine, wanted: str, host: str) -> FollowedPlan | None:
    """Puts the plan `wanted` in force on `engine`, whose rank is on `host`: a file, or "auto", which probes.

    Collective, of all ranks, before anything else is submitted; blocks until all have called it. None if nothing was
    probed. Raises InvalidArgument on every rank if one of them has no plan that can be read, or a plan of other hosts,
    or another plan.
    """
    began = time.perf_counter()
    if wanted != _AUTO:
        document, hosts = _read(engine, wanted, host)
        put_in_force(engine, document, hosts, wanted, began)
        return None
    hosts = hosts_of(engine, host)
    if len(set(hosts)) == 1:
        return None
    followed = _probed(engine, hosts)
    put_in_force(engine, followed.document, hosts, wanted, began)
    return followed


def put_in_force(engine: Engine, document: PlanDocument, hosts: Sequence[str], wanted: str, began: float) -> None:
    """Has the collectives of all ranks follow `document`, and says so in the statistics; collective.

    hosts: by rank. wanted: the value of RABIT_PLAN. began: when the work on the plan did, of time.perf_counter().
    """
    document = _sized(document, engine)
    if engine.config.deterministic:
        document = _repeatable(document, engine, wanted)
    engine.set_plan(table_of(document, hosts, f"the plan {wanted}"))
    engine.reports["plan"] = {
        **engine.reports.get("plan", {}),
        "source": wanted,
        "topology": document.topology,
        "hosts": list(document.hosts),
        "order": [document.hosts[host] for host in document.order],
        "trees": len(document.trees),
        "follows": _followed(document, engine),
        "seconds": time.perf_counter() - began,
    }


def _repeatable(document: PlanDocument, engine: Engine, wanted: str) -> PlanDocument:
    """The plan without the sums that other sizes of buckets, or another run, might add up in another order.

    Of several trees, an element takes one by its place in the bucket; rules choose by the size of the bucket; and what
    is probed may differ from run to run.
    """
    config = engine.config
    is_fixed = wanted != _AUTO and not (config.allreduce_algorithm or config.route or config.route_table)
    ways = Counter((tree.kind, tree.kind != "allreduce" and tree.root) for tree in document.trees)
    several = {kind for (kind, _), trees in ways.items() if trees > 1}
    trees = [tree for tree in document.trees if not tree.up or (is_fixed and tree.kind not in several)]
    return replace(document, trees=tuple(trees))


def _followed(document: PlanDocument, engine: Engine) -> dict[str, str]:
    """What each kind of exchange does; a sum that has to repeat its bits takes no ring."""
    found = document.followed()
    if engine.config.deterministic:
        summed = {tree.kind for tree in document.trees if tree.up}
        sums = (kind for kind in found if kind.startswith(("allreduce", "reduce")) and kind.split()[0] not in summed)
        found |= dict.fromkeys(sums, "as without a plan")
    return found


def host_name(host_key: str) -> str:
    """The name of a host by the key that its ranks share: what `uname -n` prints, or the name that rabitrun knows."""
    return host_key.rpartition("/")[2].rpartition(":")[2]


def hosts_of(engine: Engine, host: str) -> list[str]:
    """The host of each rank; collective."""
    return [given["host"] for given in exchanged(engine, {"host": host})]


def _sized(document: PlanDocument, engine: Engine) -> PlanDocument:
    """The plan with chunks as the links want them that the ranks have measured together when they started."""
    link = engine.statistics()["backend_details"].get("builtin", {}).get("link", {})
    if not link.get("is_measured"):
        return document
    return replace(document, pipeline_bytes=int(link["bytes_per_us"] * link["latency_us"]))


def _read(engine: Engine, path: str, host: str) -> tuple[PlanDocument, list[str]]:
    """The plan of a file, and the host of each rank. What is wrong on one rank, all of them raise."""
    document, error = None, ""
    try:
        document = read_plan(path)
    except RabitError as caught:
        error = str(caught)
    told = exchanged(engine, {"host": host, "error": error, "topology": document and document.topology})
    for rank, each in enumerate(told):
        if each["error"]:
            raise InvalidArgument(f"on rank {rank}: {each['error']}")
    for rank, each in enumerate(told):
        if each["topology"] != told[0]["topology"]:
            raise InvalidArgument(
                f"RABIT_PLAN={path} differs between the ranks: rank 0 has the plan of topology {told[0]['topology']}, "
                f"rank {rank} that of {each['topology']}. Copy one file to all hosts."
            )
    assert document is not None
    return document, [each["host"] for each in told]


def _probed(engine: Engine, hosts: list[str]) -> FollowedPlan:
    """The plan of what a probe has found; rank 0 makes it for all."""
    found = probe(engine, hosts)
    began = time.perf_counter()
    mine: dict[str, Any] = {}
    if engine.rank == 0:
        plan = Plan(found.topology)
        mine = described(plan)
        _print_reach(found, plan, time.perf_counter() - began)
    report_probe(engine, found)
    return FollowedPlan(hosts, found, document_of(exchanged(engine, mine)[0]))


def report_probe(engine: Engine, found: Probe) -> None:
    """Shows a probe in the statistics of `engine`."""
    engine.reports["plan"] = {
        **engine.reports.get("plan", {}),
        "probe_seconds": found.seconds,
        "probe_bytes": found.bytes_sent,
        "rates_mbit": [list(rate) for rate in found.rates],
        "network": found.topology.to_json(),
    }


def _print_reach(found: Probe, plan: Plan, planning_s: float) -> None:
    ring, best = plan.ring(), plan.ring(plan.order)
    print(
        f"rabit: the network of {found.topology.hosts} hosts was probed in {found.seconds:.1f} s and planned in "
        f"{planning_s:.1f} s: an allreduce can reach {float(plan.allreduce):.4g} Mbit/s, a ring "
        f"{float(ring):.4g}, and {float(best):.4g} in the best order",
        file=sys.stderr,
    )


def exchanged(engine: Engine, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What every rank brings, by rank; a rank that has joined brings nothing. Collective."""
    text = np.frombuffer((json.dumps(mine) + "\n").encode(), np.uint8)
    joined = allgather(text, name="rabit.plan.hosts", engine=engine)
    return [json.loads(line) for line in bytes(joined).decode().splitlines()]
