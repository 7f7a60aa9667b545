"""What a probe finds of a network whose links are known.  Needs root, ip and tc."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

from harness import case, median, on_ranks, table
from harness import links as shaped_links
from harness.network import build_network
from plans import network


@case(hosts=8, mbit=100.0, uplink=50.0, slow=0, placements=5, seed=0)
def plan_probe(o: Any) -> bool:
    """A probe of hosts that stand in two racks at random: how long it takes, and how far off capacities are.

    slow: so many hosts have half the capacity. Errors are those of the worst host and of the uplink, against what TCP
    carries of the true capacity, by the median over all hosts and runs. Racks are right if no host is in another one.
    The last figure is the rate of an allreduce along the plan that was found, over that along the plan from the truth.
    """
    from rabit.planner import Plan, Topology
    from rabit.planner.document import described, document_of
    from rabit.planner.reach import reached

    if why := shaped_links.why_not():
        print(f"skipped: links cannot be shaped here: {why}")
        return True
    choose, rows, found = random.Random(o.seed), [], []
    for _ in range(o.placements):
        racks = [0] * (o.hosts // 2) + [1] * (o.hosts - o.hosts // 2)
        choose.shuffle(racks)
        slow = set(choose.sample(range(o.hosts), o.slow))
        true = {f"lab{host}": o.mbit / 2 if host in slow else o.mbit for host in range(o.hosts)}
        links = [{"a": name, "b": f"s{rack}", "capacity": true[name]} for name, rack in zip(true, racks, strict=True)]
        hidden = network(o.hosts, 2, [*links, {"a": "s0", "b": "s1", "capacity": o.uplink}])
        with build_network(hidden) as lab:
            probed = on_ranks(probing_rank, o, o.hosts, run=shaped_links.in_lab(lab, timeout=120))
        took, seen = max(each[0] for each in probed), Topology.from_json(json.dumps(probed[0][1]), "probed")
        along = document_of(described(Plan(seen)))
        truth = Topology.from_json(json.dumps(hidden), "hidden")
        near = reached(along, truth) / reached(document_of(described(Plan(truth))), truth)
        own, up = capacities(probed[0][1])
        is_right = len(up) == 1 and same_parts(probed[0][1], racks)
        of_link = {name: own[name] / true[name] for name in own}
        found.append((took, of_link, up[0] / o.uplink if up else 0.0, is_right, near))
    tcp = median([rate for _, of_link, _, _, _ in found for rate in of_link.values()])
    for placement, (took, of_link, of_uplink, is_right, near) in enumerate(found):
        worst = max(abs(rate / tcp - 1) for rate in of_link.values())
        rows.append([str(placement), f"{took:.1f} s", f"{worst:.0%}", f"{abs(of_uplink / tcp - 1):.0%}",
                     "right" if is_right else "wrong", f"{near:.2f}"])  # fmt: skip
    print(f"TCP carries {tcp:.1%} of a link")
    table(["", "probe", "worst host off by", "uplink off by", "racks", "plan of the probe / of the truth"], rows)
    return True


def capacities(seen: dict[str, Any]) -> tuple[dict[str, float], list[float]]:
    """Those of the hosts' links, and of the links between switches."""
    switches = {node["name"] for node in seen["nodes"] if node.get("switch")}
    own, up = {}, []
    for link in seen["links"]:
        ends = [link.get("a", link.get("from")), link.get("b", link.get("to"))]
        host = next((end for end in ends if end not in switches), None)
        if host is None:
            up.append(float(Fraction(link["capacity"])))
        else:
            own[host] = float(Fraction(link["capacity"]))
    return own, sorted(set(up))


def same_parts(seen: dict[str, Any], racks: list[int]) -> bool:
    """Whether hosts share a switch exactly where they share a rack."""
    switches = {node["name"] for node in seen["nodes"] if node.get("switch")}
    of: dict[str, str] = {}
    for link in seen["links"]:
        ends = [link.get("a", link.get("from")), link.get("b", link.get("to"))]
        if not set(ends) <= switches:
            host, switch = sorted(ends, key=switches.__contains__)
            of[host] = switch
    places = [of[f"lab{host}"] for host in range(len(racks))]
    return len({*zip(places, racks, strict=True)}) == len(set(places)) == len(set(racks))


def probing_rank(o: Any) -> tuple[float, dict[str, Any]]:
    import os
    import time

    os.environ["RABIT_PLAN"] = "off"
    import rabit
    from rabit.engine.current import current_engine
    from rabit.planned import host_name, hosts_of
    from rabit.probe import probe

    rabit.init()
    engine = current_engine()
    hosts = hosts_of(engine, host_name(engine.config.host_key))
    began = time.perf_counter()
    found = probe(engine, hosts)
    took = time.perf_counter() - began
    rabit.shutdown()
    return took, found.topology.to_json()
