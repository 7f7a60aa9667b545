"""Ranks behind links of a given rate: a network namespace for each, on one bridge, and jobs that run in them.

Both ends of every link are shaped by a token bucket, so that sending and receiving are bounded as
on a switched network.  Needs root, ip, tc and the kernel's tbf; `why_not()` says what is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = [
    "LONG_QUEUE_SECONDS",
    "PACKET_BYTES",
    "QUEUE_SECONDS",
    "SEGMENT_BYTES",
    "Lab",
    "build",
    "finish",
    "in_lab",
    "lab_or_stop",
    "run_words",
    "step_times",
    "unwinding",
    "why_not",
]

BURST_SECONDS = 0.002
QUEUE_SECONDS = 0.004
LONG_QUEUE_SECONDS = 0.04  # room for all that many connections have under way
PACKET_BYTES = 64 << 10  # the longest that the kernel hands to a shaper
# Where several ranks send to one at a time: a queue that has room for two of the longest drops them whole,
# as no switch does, and what is measured is how long TCP waits for them.
SEGMENT_BYTES = 8 << 10


@dataclass(frozen=True)
class Lab:
    """Namespace r has the address of the bridge's network that ends in r + 1, on interface eth0."""

    namespaces: tuple[str, ...]
    bridge: str
    gateway: str  # its address

    def command(self, rank: int) -> list[str]:
        """What starts a program where `rank` is."""
        return ["ip", "netns", "exec", self.namespaces[rank]]

    def dropped(self) -> list[int]:
        """Packets that each rank's own shaper, and the one towards it, have dropped."""
        found = []
        for rank in range(len(self.namespaces)):
            for where in (["eth0"], [self.port(rank)]):
                inside = self.command(rank) if where == ["eth0"] else []
                text = subprocess.run(
                    [*inside, "tc", "-s", "-j", "qdisc", "show", "dev", *where],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                found.append(sum(each.get("drops", 0) for each in json.loads(text)))
        return found

    def port(self, rank: int) -> str:
        return f"{self.namespaces[rank].rsplit('r', 1)[0]}p{rank}"

    def address(self, rank: int) -> str:
        return f"{self.gateway.rsplit('.', 1)[0]}.{rank + 1}"

    def reshape(self, rank: int, rate_bits: float, queue_s: float) -> None:
        """Gives the link of a host that has one another rate, both ways, while a job runs."""
        for where in ([*self.command(rank)], []):
            device = "eth0" if where else self.port(rank)
            _run(*where, "tc", "qdisc", "del", "dev", device, "root")
            _shape(rate_bits, queue_s, *where, device)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


def _shape(rate_bits: float, queue_s: float, *where: str) -> None:
    burst = max(PACKET_BYTES, int(rate_bits / 8 * BURST_SECONDS))
    limit = max(2 * PACKET_BYTES, int(rate_bits / 8 * queue_s))
    shaper = ["root", "tbf", "rate", f"{int(rate_bits)}bit", "burst", str(burst)]
    _run(*where[:-1], "tc", "qdisc", "add", "dev", where[-1], *shaper, "limit", str(limit))


def why_not() -> str:
    """Empty where labs can be built; else the reason."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    try:
        with build(1, 1e9):
            return ""
    except (RuntimeError, OSError) as error:
        return str(error)


def finish(processes: Sequence[subprocess.Popen[bytes]], timeout: float) -> None:
    """Waits until all have ended, `timeout` seconds for each; none is left behind.

    Raises SystemExit with the exit codes unless all are zero.
    """
    try:
        codes = [each.wait(timeout=timeout) for each in processes]
    finally:
        for each in processes:
            each.kill()
    if any(codes):
        raise SystemExit(f"the ranks ended with {codes}")


def step_times(moments: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Seconds between the moments when the slowest rank began a step; moments: by rank and turn.

    The ranks are on one machine and have one clock.
    """
    times: list[float] = []
    for turns in zip(*moments, strict=True):
        latest = [max(moment) for moment in zip(*turns, strict=True)]
        times += [after - before for before, after in pairwise(latest)]
    return times


def _remove(made: list[tuple[str, str]]) -> None:
    """What was about to be made may be missing, which is why errors do not count.

    made: (kind, name).  The kernel removes the links of a namespace some time after the namespace: they are in
    `made` too, so that the names are free for the next lab of this process.
    """
    for kind, name in reversed(made):
        subprocess.run(["ip", kind, "delete", name], capture_output=True, check=False)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise SystemExit, so that what the program has made is removed.

    Python dies of them at once otherwise.  Does nothing outside of the main thread.
    """

    def unwind(number: int, _: FrameType | None) -> None:
        for each in before:  # A second signal must not interrupt the removal.
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for each in before:
            signal.signal(each, unwind)
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def build(
    ranks: int, rate_bits: float | Sequence[float], queue_s: float = QUEUE_SECONDS, segment_bytes: int = PACKET_BYTES
) -> Iterator[Lab]:
    """A lab of `ranks` namespaces; it is gone when the block ends, even by SIGTERM.

    rate_bits: of every link, or of each.
    queue_s: how long a packet waits at most in front of a link before it is dropped.
    segment_bytes: of the longest that the kernel hands to a shaper, and drops as one.
    Names and the network (10.x.y.0/24) derive from the process id, so that labs do not collide.
    """
    key = os.getpid() % 65000
    bridge, network = f"rb{key}", f"10.{200 + key // 256 % 50}.{key % 256}"
    lab = Lab(tuple(f"{bridge}r{rank}" for rank in range(ranks)), bridge, f"{network}.254")
    made: list[tuple[str, str]] = []
    with unwinding(), contextlib.ExitStack() as cleanup:
        cleanup.callback(_remove, made)
        made.append(("link", bridge))
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "address", "add", f"{lab.gateway}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for rank, namespace in enumerate(lab.namespaces):
            port = lab.port(rank)
            inside = ("ip", "netns", "exec", namespace)
            made.append(("netns", namespace))
            _run("ip", "netns", "add", namespace)
            made.append(("link", port))
            pair = ("type", "veth", "peer", "name", "eth0", "netns", namespace)
            _run("ip", "link", "add", port, *pair)
            _run("ip", "link", "set", port, "master", bridge, "up")
            _run(*inside, "ip", "address", "add", f"{lab.address(rank)}/24", "dev", "eth0")
            _run(*inside, "ip", "link", "set", "eth0", "up")
            _run(*inside, "ip", "link", "set", "lo", "up")
            longest = ("gso_max_size", str(segment_bytes))
            _run("ip", "link", "set", "dev", port, *longest)
            _run(*inside, "ip", "link", "set", "dev", "eth0", *longest)
            rate = rate_bits[rank] if isinstance(rate_bits, Sequence) else rate_bits
            _shape(rate, queue_s, port)
            _shape(rate, queue_s, *inside, "eth0")
        yield lab


@contextlib.contextmanager
def lab_or_stop(*arguments: Any, **how: Any) -> Iterator[Lab]:
    """`build`; where links cannot be shaped, a line says why and the program ends with status 0."""
    if why := why_not():
        print(f"skipped: links cannot be shaped here: {why}")
        raise SystemExit(0)
    with build(*arguments, **how) as lab:
        yield lab


def in_lab(lab: Lab, timeout: float, servers: int = 0, ranks_per_host: int = 1) -> Callable[[list[str], Path], None]:
    """The `run` of `on_ranks`: one rank in each namespace, or what `run_words` says."""
    return lambda words, folder: run_words(lab, folder, words, timeout, servers, ranks_per_host)


def run_words(
    lab: Lab, folder: Path, words: Sequence[str], timeout: float, servers: int = 0, ranks_per_host: int = 1
) -> None:
    """Runs Python with `words` on every rank.

    timeout: seconds; ranks that take longer are killed, and what they have written counts.
    servers: so many of the namespaces, the last ones, have a summation server, each of the others
    `ranks_per_host` ranks, which share memory.
    Raises SystemExit with the exit codes if a rank fails.
    """
    # Interpreters without rabit import this module too.
    from rabit.launch.plan import RankPlace, ServerPlace
    from rabit.rendezvous.discovery import StoreServer

    secret = secrets.token_bytes(32)
    secret_file = folder / "secret"
    secret_file.touch(mode=0o600)
    secret_file.write_text(secret.hex() + "\n")
    store = StoreServer(lab.gateway, 0, secret)
    hosts = len(lab.namespaces) - servers
    size = hosts * ranks_per_host
    everywhere = {
        **os.environ,
        "RABIT_STORE_ADDRESS": f"{lab.gateway}:{store.port}",
        "RABIT_SECRET_FILE": str(secret_file),
        "RABIT_SERVERS": str(servers),
        "RABIT_TRANSPORT": "tcp" if ranks_per_host == 1 else "auto",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
    }

    def start(where: int, place: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
        here = {"RABIT_HOST_KEY": f"lab{where}", "RABIT_BIND_ADDRESS": lab.address(where)}
        command = [*lab.command(where), sys.executable, *words]
        return subprocess.Popen(command, env={**everywhere, **here, **place})

    serving: list[subprocess.Popen[bytes]] = []
    try:
        for server in range(servers):
            place = ServerPlace(server, size + server).environ(size)
            serving.append(start(hosts + server, place, "-m", "rabit.server"))
        ranks = []
        for rank in range(size):
            host, local = divmod(rank, ranks_per_host)
            mine = RankPlace(rank, local, ranks_per_host, host, hosts).environ(size)
            ranks.append(start(host, mine, *words))
        try:
            finish(ranks, timeout)
        except subprocess.TimeoutExpired:  # A hook of a peer may hang: what was measured stays.
            print(f"the ranks have not ended after {timeout:g} s: figures may be missing")
    finally:
        for each in serving:  # They serve one job after the other until they are ended.
            each.kill()
            each.wait()
        store.close()
