"""Ranks in a network with several switches: a bridge for each, and a token bucket at both ends of every link.

The same namespaces as in `links`; a topology of the planner says who is linked to whom.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from .links import LONG_QUEUE_SECONDS, PACKET_BYTES, Lab, _remove, _run, _shape, unwinding

__all__ = ["build_network"]


@contextlib.contextmanager
def build_network(
    topology: dict[str, list[dict[str, object]]],
    queue_s: float = LONG_QUEUE_SECONDS,
    segment_bytes: int = PACKET_BYTES,
    interfaces: int = 1,
) -> Iterator[Lab]:
    """A lab of the hosts of `topology`, in their order; capacities are Mbit/s, links go both ways.

    topology: as in a topology file. A host with links to other hosts gets a switch of its own, which costs nothing, so
    that packets pass through it as through a router. Links form a tree: bridges know no other way.
    interfaces: so many of each host with one link, eth0, eth1 ..., each with a network and a capacity of its own.
    """
    key = os.getpid() % 65000
    base, network = f"rb{key}", f"10.{200 + key // 256 % 50}.{key % 256}"
    hosts = [str(node["name"]) for node in topology["nodes"] if not node.get("switch")]
    switches = [str(node["name"]) for node in topology["nodes"] if node.get("switch")]
    links = [(str(each["a"]), str(each["b"]), float(str(each["capacity"]))) for each in topology["links"]]
    routers = {h for h in hosts if sum(h in link[:2] for link in links) > 1}
    routers |= {name for link in links if not set(link[:2]) & set(switches) for name in link[:2]}
    bridges = {name: f"{base}b{place}" for place, name in enumerate([*switches, *sorted(routers)])}
    lab = Lab(tuple(f"{base}r{rank}" for rank in range(len(hosts))), base, f"{network}.254")
    made: list[tuple[str, str]] = []
    with unwinding(), contextlib.ExitStack() as cleanup:
        cleanup.callback(_remove, made)
        for place, bridge in enumerate(bridges.values()):
            made.append(("link", bridge))
            _run("ip", "link", "add", bridge, "type", "bridge")
            if place == 0:
                _run("ip", "address", "add", f"{lab.gateway}/24", "dev", bridge)
            _run("ip", "link", "set", bridge, "up")
        for rank, host in enumerate(hosts):
            mine = [link for link in links if host in link[:2]]
            rate = 0.0 if host in routers else mine[0][2]
            other = host if host in routers else next(n for n in mine[0][:2] if n != host)
            _add_host(lab, rank, bridges[other], rate, queue_s, segment_bytes, made)
            for number in range(1, interfaces):
                address = f"10.{250 + number}.{key % 256}.{rank + 1}/24"
                _add_interface(lab, rank, number, address, bridges[other], rate, queue_s, segment_bytes, made)
        for place, (a, b, capacity) in enumerate(links):
            if a in bridges and b in bridges:
                _add_link(base, place, bridges[a], bridges[b], capacity, queue_s, segment_bytes, made)
        yield lab


def _add_host(
    lab: Lab, rank: int, bridge: str, mbit: float, queue_s: float, segment_bytes: int, made: list[tuple[str, str]]
) -> None:
    namespace = lab.namespaces[rank]
    made.append(("netns", namespace))
    _run("ip", "netns", "add", namespace)
    inside = ("ip", "netns", "exec", namespace)
    _run(*inside, "ip", "link", "set", "lo", "up")
    # An interface answers for its own address alone: else one of them would get what is for another.
    _run(*inside, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")
    _add_interface(lab, rank, 0, f"{lab.address(rank)}/24", bridge, mbit, queue_s, segment_bytes, made)


def _add_interface(
    lab: Lab, rank: int, number: int, address: str, bridge: str, mbit: float, queue_s: float, segment_bytes: int,
    made: list[tuple[str, str]],
) -> None:  # fmt: skip
    namespace, name = lab.namespaces[rank], f"eth{number}"
    port = f"{lab.port(rank)}{'abcdefgh'[number - 1] if number else ''}"
    inside = ("ip", "netns", "exec", namespace)
    made.append(("link", port))
    _run("ip", "link", "add", port, "type", "veth", "peer", "name", name, "netns", namespace)
    _run("ip", "link", "set", port, "master", bridge, "up")
    _run(*inside, "ip", "address", "add", address, "dev", name)
    _run(*inside, "ip", "link", "set", name, "up")
    for where in ((), inside):
        device = name if where else port
        _run(*where, "ip", "link", "set", "dev", device, "gso_max_size", str(segment_bytes))
        if mbit:
            _shape(mbit * 1e6, queue_s, *where, device)


def _add_link(
    base: str, place: int, a: str, b: str, mbit: float, queue_s: float, segment_bytes: int, made: list[tuple[str, str]]
) -> None:
    ends = (f"{base}x{place}", f"{base}y{place}")
    made.append(("link", ends[0]))
    _run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
    for end, bridge in zip(ends, (a, b), strict=True):
        _run("ip", "link", "set", end, "master", bridge, "up")
        _run("ip", "link", "set", "dev", end, "gso_max_size", str(segment_bytes))
        _shape(mbit * 1e6, queue_s, end)
