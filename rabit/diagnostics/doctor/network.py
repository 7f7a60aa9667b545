"""Signatures of faults of the network: what the kernel says of the links of each pair of hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rabit.diagnostics.doctor.bound import bound_of
from rabit.diagnostics.doctor.cause import Found
from rabit.diagnostics.doctor.picture import Picture
from rabit.diagnostics.look.stacks import ranks_text

__all__ = ["dead_link", "far_host", "lossy_link", "slow_link"]

# A link that carried less in a look says nothing of its rate.
_BUSY_BYTES = 200_000
_SILENT_MS = 1000
_FAR_US = 3000
_NEVER_US = (1 << 32) - 1  # as the kernel says of a link that has measured nothing
_COUNTS = ("acked_bytes", "busy_us", "retransmitted", "segments")


@dataclass
class _Pair:
    """Both directions between two hosts, over all their ranks, in one look."""

    rate: float = 0.0  # bytes a second while something was under way, of the faster direction
    retransmitted: int = 0
    segments: int = 0
    rtt_us: int = 0  # the shortest round trip of all links; 0: nobody knows
    stuck_ms: int = 0  # since something was acknowledged, of a link with data under way


def _pairs(picture: Picture) -> dict[tuple[str, str], _Pair]:
    """By the names of two hosts in alphabetical order."""
    host_of = {
        str(link["local"]): view.host for view in picture.ranks.values() for link in view.links
    }
    found: dict[tuple[str, str], _Pair] = defaultdict(_Pair)
    for view in picture.ranks.values():
        before = {_key(link): link for link in view.links_before}
        for link in view.links:
            peer = host_of.get(str(link["peer"]), str(link["peer"]))
            # A connection to what is not of the job, such as a server of data, is no link of it.
            if peer == view.host or str(link["peer"]) not in host_of:
                continue
            old = before.get(_key(link), link)
            pair = found[min(view.host, peer), max(view.host, peer)]
            grown = {name: int(link.get(name, 0)) - int(old.get(name, 0)) for name in _COUNTS}
            if grown["acked_bytes"] > _BUSY_BYTES:
                pair.rate = max(pair.rate, grown["acked_bytes"] / max(1, grown["busy_us"]) * 1e6)
            pair.retransmitted += grown["retransmitted"]
            pair.segments += grown["segments"]
            rtt_us = int(link.get("min_rtt_us", 0))
            if 0 < rtt_us < _NEVER_US:
                pair.rtt_us = min(pair.rtt_us or rtt_us, rtt_us)
            if link.get("unacked", 0) and link.get("retries", 0):
                pair.stuck_ms = max(pair.stuck_ms, int(link.get("last_ack_ms", 0)))
    return dict(found)


def _key(link: Mapping[str, Any]) -> tuple[Any, ...]:
    return link["local_port"], link["peer"], link["peer_port"]


def _common(pairs: list[tuple[str, str]], others: list[tuple[str, str]]) -> list[str]:
    """The host that is in all these pairs and in none of the others; else the hosts of the first pair."""
    hosts = set(pairs[0]).intersection(*map(set, pairs))
    alone = [host for host in sorted(hosts) if not any(host in pair for pair in others)]
    return alone if len(pairs) > 1 and alone else sorted(pairs[0])


def _named(picture: Picture, hosts: list[str]) -> list[int]:
    return [rank for rank, view in picture.ranks.items() if view.host in hosts]


def slow_link(picture: Picture) -> Found | None:
    """Some pairs of hosts carry far less than the best, and ranks wait for what they carry."""
    pairs = _pairs(picture)
    # What two hosts exchange that are far from each other takes its time at any rate.
    far = _far(pairs)
    rates = {names: pair.rate for names, pair in pairs.items() if pair.rate and names not in far}
    share = picture.communication_share
    if len(rates) < 2 or share < 0.3:
        return None
    best = max(rates.values())
    slow = sorted(
        (names for names, rate in rates.items() if rate < 0.4 * best),
        key=lambda names: rates[names],
    )
    if not slow:
        return None
    hosts = _common(slow, [names for names in rates if names not in slow])
    worst = slow[0]
    evidence = [
        f"{worst[0]} and {worst[1]} exchange {rates[worst] / 1e6:.1f} MB/s, the best pair {best / 1e6:.1f} MB/s",
        f"operations take {share:.0%} of the time",
    ]
    values = {
        "host": " and ".join(hosts),
        "rate": f"{rates[worst] / 1e6:.1f}",
        "best": f"{best / 1e6:.1f}",
    }
    score = 0.91 if rates[worst] < 0.2 * best else 0.8
    return Found(
        score, _named(picture, hosts) if len(hosts) == 1 else (), hosts, "", evidence, values
    )


def _far(pairs: Mapping[tuple[str, str], _Pair]) -> list[tuple[str, str]]:
    """The pairs between which a packet is under way for far longer than between the nearest."""
    known = {names: pair.rtt_us for names, pair in pairs.items() if pair.rtt_us}
    nearest = min(known.values(), default=0)
    return [names for names, rtt_us in known.items() if rtt_us > max(10 * nearest, _FAR_US)]


def far_host(picture: Picture) -> Found | None:
    """Packets take long to some hosts, and steps wait for them."""
    pairs = _pairs(picture)
    far = _far(pairs)
    bound = bound_of(picture)
    if not far or bound is None:
        return None
    share = bound.shares["communication"] + bound.shares["waiting"]
    hosts = _common(far, [names for names in pairs if names not in far])
    worst = max(far, key=lambda names: pairs[names].rtt_us)
    nearest = min(pair.rtt_us for pair in pairs.values() if pair.rtt_us)
    evidence = [
        f"a packet between {worst[0]} and {worst[1]} takes {pairs[worst].rtt_us / 1e3:.1f} ms both ways, between the "
        f"nearest hosts {nearest / 1e3:.1f} ms",
        f"ranks wait {share:.0%} of the time",
    ]
    score = 0.91 if share > 0.3 else 0.6
    ranks = _named(picture, hosts) if len(hosts) == 1 else ()
    return Found(score, ranks, hosts, "", evidence, {"host": " and ".join(hosts)})


def lossy_link(picture: Picture) -> Found | None:
    """Packets of some pairs of hosts are sent again, and those of others are not."""
    pairs = _pairs(picture)
    lossy = [
        names
        for names, pair in pairs.items()
        if pair.retransmitted >= 3 and pair.retransmitted > 0.001 * pair.segments
    ]
    if not lossy:
        return None
    lossy.sort(key=lambda names: -pairs[names].retransmitted / max(1, pairs[names].segments))
    # What a pair loses now and then next to one that loses much is no cause of its own.
    most = pairs[lossy[0]].retransmitted / max(1, pairs[lossy[0]].segments)
    lossy = [
        names for names in lossy if pairs[names].retransmitted > 0.1 * most * pairs[names].segments
    ]
    hosts = _common(lossy, [names for names in pairs if names not in lossy])
    first = pairs[lossy[0]]
    evidence = [
        f"between {lossy[0][0]} and {lossy[0][1]} {first.retransmitted} of {first.segments} packets were sent again "
        "while the doctor looked"
    ]
    clean = [names for names in pairs if names not in lossy]
    if clean:
        evidence.append(
            f"between {clean[0][0]} and {clean[0][1]} {pairs[clean[0]].retransmitted} were"
        )
    score = 0.92 if most > 0.003 and clean else 0.75
    return Found(
        score,
        _named(picture, hosts) if len(hosts) == 1 else (),
        hosts,
        "",
        evidence,
        {"host": " and ".join(hosts)},
    )


def dead_link(picture: Picture) -> Found | None:
    """Nothing that is sent between two hosts is acknowledged; or ranks took each other for lost and lived."""
    if picture.phase == "ended":
        return _lost_alive(picture)
    pairs = _pairs(picture)
    dead = [names for names, pair in pairs.items() if pair.stuck_ms > _SILENT_MS]
    if not dead:
        return None
    hosts = _common(dead, [names for names in pairs if names not in dead])
    longest = max(pairs[names].stuck_ms for names in dead)
    evidence = [
        f"what {dead[0][0]} and {dead[0][1]} send each other has not been acknowledged for {longest / 1e3:.1f} s"
    ]
    return Found(0.93, _named(picture, hosts), hosts, "", evidence, {"host": " and ".join(hosts)})


def _lost_alive(picture: Picture) -> Found | None:
    """Who was taken for lost has taken the others for lost, and did not end by itself."""
    lost = {
        rank: int(view.end.get("lost", -1))
        for rank, view in picture.ranks.items()
        if int(view.end.get("lost", -1)) >= 0
    }
    blamed = sorted(
        {
            other
            for rank, other in lost.items()
            if lost.get(other, -1) in picture.ranks and other != rank
        }
    )
    mutual = [rank for rank in blamed if lost.get(rank, -1) != rank]
    if not mutual or any(
        view.end.get("raised") and view.end.get("lost", -1) < 0 for view in picture.ranks.values()
    ):
        return None
    counts = {rank: sum(other == rank for other in lost.values()) for rank in mutual}
    most = max(counts.values())
    ranks = [rank for rank in mutual if counts[rank] == most]
    hosts = sorted({picture.ranks[rank].host for rank in ranks})
    if len({view.host for view in picture.ranks.values()}) < 2:
        return None
    evidence = [
        f"{ranks_text(ranks)} on {', '.join(hosts)} was taken for lost by {most} ranks, took rank {lost[ranks[0]]} for "
        "lost itself, and had not ended"
    ]
    return Found(0.9, ranks, hosts, "", evidence, {"host": " and ".join(hosts)})
