"""The doctor's table of hosts: faults that a job would meet at its start, found before it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rabit.diagnostics.doctor.cause import Found

__all__ = ["HOST_ROWS", "HostRow", "HostsView"]

_MIB = 1 << 20


@dataclass(frozen=True)
class HostsView:
    """What probes have found.  hosts: those that answered.  silent: the problem of others, and what to type by hand.
    reached: by host and by the host to which it connected."""

    hosts: Mapping[str, Mapping[str, Any]]
    silent: Mapping[str, tuple[str, str]]
    reached: Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class HostRow:
    """A fault of hosts; its signature gives one finding for each place.  The rest is as in Row."""

    name: str
    title: str
    signature: Callable[[HostsView], Sequence[Found]]
    query: str
    fix: str


def _no_start(view: HostsView) -> list[Found]:
    return [
        Found(
            0.97,
            (),
            [host],
            "",
            [problem],
            {"by_hand": by_hand or "rabitrun on that host", "host": host},
        )
        for host, (problem, by_hand) in view.silent.items()
    ]


def _versions(view: HostsView) -> list[Found]:
    """The hosts whose version is not that of most; what only some have installed is no fault by itself."""
    found = []
    names = {name for facts in view.hosts.values() for name in facts["versions"]}
    for name in sorted(names):
        by_host = {host: facts["versions"].get(name, "none") for host, facts in view.hosts.items()}
        usual = Counter(by_host.values()).most_common(1)[0][0]
        odd = [host for host, version in by_host.items() if version != usual]
        if not odd:
            continue
        shown = ", ".join(f"{host} {version}" for host, version in by_host.items())
        score = 0.95 if name in ("rabit", "python", "torch") else 0.65
        found.append(
            Found(score, (), odd, "", [f"{name}: {shown}"], {"name": name, "version": usual})
        )
    return found


def _loopback_name(view: HostsView) -> list[Found]:
    # On one machine all ranks reach the loopback.
    if len({facts["own"]["boot"] for facts in view.hosts.values()}) < 2:
        return []
    return [
        Found(
            0.9,
            (),
            [host],
            "",
            [f"on {host} its own name {facts['name']} is {', '.join(facts['addresses'])}"],
            {"host": host, "name": facts["name"]},
        )
        for host, facts in view.hosts.items()
        if facts["addresses"]
        and all(each.startswith("127.") or each == "::1" for each in facts["addresses"])
    ]


def _slow_names(view: HostsView) -> list[Found]:
    return [
        Found(
            0.8,
            (),
            [host],
            "",
            [f"{host} takes {facts['resolving_s']:.1f} s to look itself up"],
            {"host": host},
        )
        for host, facts in view.hosts.items()
        if facts["resolving_s"] > 1.0
    ]


def _unreachable(view: HostsView, kinds: Sequence[str]) -> list[Found]:
    found = []
    for host, by_peer in view.reached.items():
        for peer, answer in by_peer.items():
            if answer.get("kind") in kinds:
                back = view.reached.get(peer, {}).get(host, {})
                way = "one way only" if "problem" not in back and back else "both ways"
                text = f"{host} to {peer}: {answer['problem']} ({way})"
                found.append(
                    Found(0.93, (), [host, peer], "", [text], {"host": peer, "from": host})
                )
    return found


def _firewall(view: HostsView) -> list[Found]:
    return _unreachable(view, ("silent", "refused", "probe"))


def _unknown_name(view: HostsView) -> list[Found]:
    return _unreachable(view, ("name",))


def _stuck(view: HostsView) -> list[Found]:
    found = _unreachable(view, ("stuck",))
    for each in found:
        mtus = [f"{host} {view.hosts[host]['mtu']}" for host in each.hosts if host in view.hosts]
        found[found.index(each)] = Found(
            each.score,
            (),
            each.hosts,
            "",
            [*each.evidence, f"MTU of their interfaces: {'; '.join(mtus)}"],
            each.values,
        )
    return found


def _slow_link(view: HostsView) -> list[Found]:
    rates = {
        (host, peer): answer["mb_s"]
        for host, by_peer in view.reached.items()
        for peer, answer in by_peer.items()
        if "mb_s" in answer
    }
    if len(rates) < 3:
        return []
    best = max(rates.values())
    slow = {pair: rate for pair, rate in rates.items() if rate < 0.2 * best}
    if not slow:
        return []
    (host, peer), rate = min(slow.items(), key=lambda item: item[1])
    evidence = [f"{host} to {peer} carries {rate:.0f} MB/s, the best pair {best:.0f} MB/s"]
    hosts = _common(slow, [pair for pair in rates if pair not in slow]) or [host, peer]
    return [Found(0.62, (), hosts, "", evidence, {"hosts": " and ".join(hosts)})]


def _common(slow: Iterable[tuple[str, str]], fast: Iterable[tuple[str, str]]) -> list[str]:
    """A host that is in all slow pairs and in no other."""
    return [
        host
        for host in sorted(set[str]().union(*slow))
        if all(host in pair for pair in slow) and not any(host in pair for pair in fast)
    ]


def _slow_network(view: HostsView) -> list[Found]:
    """Hosts are named by addresses of a network that is far slower than another one between them."""
    gains: dict[str, dict[tuple[str, str], tuple[float, float]]] = defaultdict(dict)
    for host, by_peer in view.reached.items():
        for peer, answer in by_peer.items():
            for name, other in answer.get("networks", {}).items():
                if "mb_s" in answer and "mb_s" in other:
                    gains[name][host, peer] = answer["mb_s"], other["mb_s"]
    for name, by_pair in gains.items():
        slow = {pair: rates for pair, rates in by_pair.items() if rates[1] > 4 * rates[0]}
        if not slow:
            continue
        (host, peer), (named, other) = max(slow.items(), key=lambda item: item[1][1] / item[1][0])
        hosts = _common(slow, [pair for pair in by_pair if pair not in slow]) or [host, peer]
        evidence = [f"{host} to {peer} carries {named:.0f} MB/s as named with -H, and {other:.0f} MB/s over {name}"]
        return [Found(0.85, (), hosts, "", evidence, {"interface": name, "hosts": " and ".join(hosts)})]
    return []


def _families(view: HostsView) -> list[Found]:
    """Some hosts have addresses of one family only, and others of the other."""
    families = {
        host: {6 if ":" in address else 4 for each in facts.get("networks", {}).values() for address in each}
        for host, facts in view.hosts.items()
    }
    families = {host: found for host, found in families.items() if found}
    if len(families) < 2 or set.intersection(*families.values()):
        return []
    usual = 4 if sum(4 in found for found in families.values()) >= len(families) / 2 else 6
    odd = [host for host, found in families.items() if usual not in found]
    evidence = [f"{', '.join(odd)} has no IPv{usual} address, and the others have"]
    return [Found(0.95, (), odd, "", evidence, {"family": f"IPv{usual}", "hosts": " and ".join(odd)})]


def _apart(view: HostsView) -> list[Found]:
    """Containers of one machine that do not have one /dev/shm."""
    machines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for host, facts in view.hosts.items():
        if facts["own"]["boot"] and "shm" in facts:  # An older rabit does not say.
            machines[facts["own"]["boot"]][facts["shm"]].append(host)
    return [
        Found(
            0.9, (), (hosts := [host for found in by_memory.values() for host in found]), "",
            [f"{', '.join(hosts)} are on one machine and have {len(by_memory)} /dev/shm: ranks use TCP between them"],
            {"hosts": " and ".join(hosts)},
        )
        for by_memory in machines.values()
        if len(by_memory) > 1
    ]  # fmt: skip


def _clocks(view: HostsView) -> list[Found]:
    if len(view.hosts) < 2:
        return []
    usual = sorted(facts["clock_s"] for facts in view.hosts.values())[(len(view.hosts) - 1) // 2]
    return [
        Found(
            0.75,
            (),
            [host],
            "",
            [f"{host} is off by {facts['clock_s'] - usual:+.2f} s"],
            {"host": host},
        )
        for host, facts in view.hosts.items()
        if abs(facts["clock_s"] - usual) > 0.1 + 2 * facts["clock_error_s"] + 1.0
    ]


def _small_shm(view: HostsView) -> list[Found]:
    return [
        Found(
            0.85, (), [host], "", [f"/dev/shm of {host} has {free / _MIB:.0f} MiB left"], {"host": host}
        )
        for host, facts in view.hosts.items()
        if (free := facts["facts"].get("shm_free_bytes", 1 << 40)) < 128 * _MIB
    ]  # fmt: skip


def _few_files(view: HostsView) -> list[Found]:
    need = 64 + 16 * len(view.hosts)
    return [
        Found(
            0.8,
            (),
            [host],
            "",
            [f"{host} allows {limit} open files; a job needs {need} and more"],
            {"need": 4096},
        )
        for host, facts in view.hosts.items()
        if 0 <= (limit := facts["own"]["limits"]["open_files"]) < max(need, 256)
    ]


def _locked_memory(view: HostsView) -> list[Found]:
    limits = {host: facts["own"]["limits"]["locked_bytes"] for host, facts in view.hosts.items()}
    most = max((limit if limit >= 0 else 1 << 62 for limit in limits.values()), default=0)
    return [
        Found(
            0.65, (), [host], "", [f"{host} allows {limit >> 10} KiB of locked memory, another host more"],
            {"host": host},
        )
        for host, limit in limits.items()
        if 0 <= limit <= 64 << 10 and limit < most
    ]  # fmt: skip


def _full_disk(view: HostsView) -> list[Found]:
    return [
        Found(
            0.8, (), [host], "", [f"/tmp of {host} has {free / _MIB:.0f} MiB left"], {"host": host}
        )
        for host, facts in view.hosts.items()
        if (free := facts["facts"].get("disk_free_bytes", 1 << 40)) < 64 * _MIB
    ]


def _quota(view: HostsView) -> list[Found]:
    return [
        Found(
            0.7, (), [host], "",
            [f"{host} has {facts['facts']['processors']} processors and a quota of {quota / 100:g}"],
            {"quota": f"{quota / 100:g}", "host": host},
        )
        for host, facts in view.hosts.items()
        if 0 < (quota := facts["facts"].get("quota_processors_100", 0)) < 100 * facts["facts"]["processors"]
    ]  # fmt: skip


def _instructions(view: HostsView) -> list[Found]:
    flags = {host: facts["flags"] for host, facts in view.hosts.items()}
    if len(set(flags.values())) < 2:
        return []
    usual = Counter(flags.values()).most_common(1)[0][0]
    odd = [host for host, flag in flags.items() if flag != usual]
    return [
        Found(
            0.5, (), odd, "", [f"{', '.join(odd)} have other vector instructions than the rest"], {}
        )
    ]


def _left_over(view: HostsView) -> list[Found]:
    return [
        Found(
            0.9, (), [host], "", [f"{len(left)} ranks of a job whose launcher is gone run on {host}"],
            {"pids": " ".join(str(each["pid"]) for each in left), "host": host},
        )
        for host, facts in view.hosts.items()
        if (left := facts["left"])
    ]  # fmt: skip


HOST_ROWS: tuple[HostRow, ...] = (
    HostRow("no-start", "a host cannot start ranks", _no_start, "ssh, its shell, its Python and the import of rabit, "
            "in turn", "try it by hand: {by_hand}"),
    HostRow("versions-differ", "hosts have different versions", _versions, "versions of each host",
            "install {name} {version} on every host"),
    HostRow("loopback-name", "a host takes its own name for the loopback", _loopback_name, "addresses of its name",
            "correct the line of {name} in /etc/hosts of {host}, or name the network: --network-interfaces"),
    HostRow("slow-names", "names take long to look up", _slow_names, "time of a look-up of the host's own name",
            "add {host} to /etc/hosts, or use addresses with -H; see /etc/resolv.conf"),
    HostRow("unknown-name", "a host does not know the name of another", _unknown_name, "look-up of each host on each",
            "add {host} to the names that {from} knows, or use addresses with -H"),
    HostRow("unreachable", "a host does not reach another", _firewall, "a connection each way to a free port",
            "open ports above 1024 on {host} for {from} (firewall, security group), or choose another network: "
            "--network-interfaces"),
    HostRow("data-stuck", "connections open and data gets stuck", _stuck, "4 MiB each way after the connection",
            "give the interfaces of both hosts one MTU, or sysctl -w net.ipv4.tcp_mtu_probing=2"),
    HostRow("slow-link", "a link is far slower than the others", _slow_link, "4 MiB each way, against the best pair",
            "see ethtool of {hosts}: negotiated speed, cable, shared port"),
    HostRow("slow-network", "hosts are named in a slow network", _slow_network, "4 MiB each way over each network that "
            "two hosts have", "rabitrun --network-interfaces {interface}, or the addresses of {interface} with -H"),
    HostRow("families-differ", "hosts have IPv4 or IPv6, and not the same", _families, "addresses of each host",
            "give {hosts} an {family} address, or name interfaces of one family: --network-interfaces"),
    HostRow("apart", "containers of one machine do not share memory", _apart, "boot and /dev/shm of each host",
            "share one /dev/shm between {hosts} (docker run --ipc=host, hostIPC: true), and set RABIT_HOST_KEY to one "
            "name there"),
    HostRow("clocks-differ", "clocks differ", _clocks, "time of each host against the middle of the request",
            "start NTP (chrony) on {host}"),
    HostRow("small-shm", "/dev/shm is small", _small_shm, "room in /dev/shm",
            "docker run --shm-size=1g, an emptyDir of medium Memory, or RABIT_SHM_RING_BYTES=65536"),
    HostRow("few-files", "the limit of open files is low", _few_files, "ulimit -n against what a job needs",
            "ulimit -n {need}, or nofile in /etc/security/limits.conf"),
    HostRow("locked-memory", "the limit of locked memory is low", _locked_memory, "ulimit -l",
            "for RDMA and CUDA: memlock unlimited in /etc/security/limits.conf of {host}"),
    HostRow("disk-full", "the disk for temporary files is full", _full_disk, "room in /tmp", "make room on {host}"),
    HostRow("quota", "a control group allows fewer processors than are there", _quota, "cpu.max of the control group",
            "start at most {quota} ranks or threads on {host}, or raise the limit"),
    HostRow("instructions-differ", "processors differ", _instructions, "vector instructions of each host",
            "binaries that are built for one of them may end by SIGILL on the others"),
    HostRow("left-over", "ranks of an earlier job still run", _left_over, "ranks whose parent is the first process",
            "on {host}: kill {pids}"),
)  # fmt: skip
