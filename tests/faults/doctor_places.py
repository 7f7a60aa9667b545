"""What the doctor's campaign does to a job from outside: control groups, mounts, networks, other processes.

Each is a context manager over a Place; it gives the words that go before the job's command, and undoes all of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.links import Lab, build
from faults.slow_files import slow_files

HOSTS = 3
SECOND_NETWORK = "172.31.255"


@dataclass
class Place:
    """Where a fault is: `who` is its rank or its host.  folder: of this job alone.  environ: added to the job's."""

    folder: Path
    who: int
    strength: float
    environ: dict[str, str] = field(default_factory=dict)
    lab: Lab | None = None
    at_once: Callable[[], None] | None = None  # what happens when all ranks have begun
    sign: str = ""  # what the fix holds if it is of this fault, and not of what others do on this machine
    network: str = ""  # of the addresses that -H names, without their last number; "": the lab's


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


# Of one host.


@contextlib.contextmanager
def control_group(controller: str, **settings: str) -> Iterator[Path]:
    """A group below this process's own; the processes in it are killed at the end."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(line.split(":", 2)[2] for line in lines if line.split(":")[1] == controller)
    folder = Path(f"/sys/fs/cgroup/{controller}{own.rstrip('/')}/rabit-doctor-{os.getpid()}")
    folder.mkdir()
    try:
        for name, value in settings.items():
            (folder / name.replace("__", ".")).write_text(value)
        yield folder
    finally:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.05)


def _inside(folder: Path) -> list[str]:
    return ["sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh"]


@contextlib.contextmanager
def throttled(place: Place) -> Iterator[list[str]]:
    """Processors for a part of what the ranks want."""
    quota = str(int(80_000 / place.strength))
    with control_group("cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000") as folder:
        yield _inside(folder)


@contextlib.contextmanager
def little_memory(place: Place) -> Iterator[list[str]]:
    """A limit for the whole job, as a container has."""
    with control_group("memory", memory__limit_in_bytes="500M") as folder:
        yield _inside(folder)


@contextlib.contextmanager
def thrashing(place: Place) -> Iterator[list[str]]:
    """A group that the rank enters by itself, and a file larger than its limit."""
    file = Path("/var/tmp") / f"rabit-doctor-{os.getpid()}"
    with file.open("wb") as written:
        written.write(os.urandom(1 << 20) * int(120 * place.strength))
        written.flush()
        os.fsync(written.fileno())
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        with control_group("memory", memory__limit_in_bytes="90M") as folder:
            place.environ.update(DOCTOR_GROUP=str(folder), DOCTOR_FILE=str(file))
            yield []
    finally:
        file.unlink()


@contextlib.contextmanager
def foreign_load(place: Place) -> Iterator[list[str]]:
    """Two processes for each core, which are not of the job."""
    with burners(2 * len(os.sched_getaffinity(0))):
        yield []


@contextlib.contextmanager
def burners(count: int) -> Iterator[None]:
    """Processes that compute."""
    burning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for burner in burning:
            burner.kill()
            burner.wait()


@contextlib.contextmanager
def slow_reads(place: Place) -> Iterator[list[str]]:
    """A disk that takes 40 to 160 ms for a block."""
    with slow_files(place.folder / "slow", 0.04 * place.strength, "read") as file:
        place.environ["DOCTOR_FILE"] = str(file)
        yield []


@contextlib.contextmanager
def slow_saves(place: Place) -> Iterator[list[str]]:
    """A disk that takes its time to have written."""
    with slow_files(place.folder / "slow", 0.1 * place.strength, "fsync") as file:
        place.environ["DOCTOR_FILE"] = str(file)
        yield []


@contextlib.contextmanager
def dead_files(place: Place) -> Iterator[list[str]]:
    """A server of files that answers no read."""
    with slow_files(place.folder / "dead", float("inf"), "read") as file:
        place.environ["DOCTOR_FILE"] = str(file)
        yield []


@contextlib.contextmanager
def full_disk(place: Place) -> Iterator[list[str]]:
    """A file system of 1 MiB."""
    disk = place.folder / "disk"
    disk.mkdir()
    _run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk))
    try:
        place.environ["DOCTOR_FILE"] = str(disk / "log")
        yield []
    finally:
        _run("umount", "-l", str(disk))


@contextlib.contextmanager
def full_shm(place: Place) -> Iterator[list[str]]:
    """/dev/shm of 1 MiB, or as the fix says, as small containers have, for the job alone."""
    script = 'mount -t tmpfs -o size=${DOCTOR_FIX:-1m} tmpfs /dev/shm && exec "$@"'
    yield ["unshare", "-m", "sh", "-c", script, "sh"]


@contextlib.contextmanager
def few_open_files(place: Place) -> Iterator[list[str]]:
    """A shell with a low limit, in which rabitrun is typed."""
    yield ["sh", "-c", '${DOCTOR_FIX:-ulimit -n 120}; exec "$@"', "sh"]


@contextlib.contextmanager
def taken_port(place: Place) -> Iterator[list[str]]:
    """A process that listens where the rank is to listen."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        place.environ["DOCTOR_PORT"] = str(server.getsockname()[1])
        yield []


@contextlib.contextmanager
def other_program(place: Place) -> Iterator[list[str]]:
    """A rank runs an older copy of the program, in which a tensor has another name."""
    script = Path(__file__).with_name("doctor_ranks.py").read_text()
    (place.folder / "doctor_ranks.py").write_text(script.replace('NAME = "grad"', 'NAME = "gradient"'))
    place.environ["DOCTOR_OTHER"] = str(place.folder / "doctor_ranks.py")
    yield []


# Of several hosts: namespaces on one bridge, which a program called ssh reaches.


@contextlib.contextmanager
def lab(place: Place, setup: dict[int, str] | None = None, rate_bits: float = 1e9) -> Iterator[Lab]:
    """HOSTS namespaces that take themselves for hosts.  setup: of each what its shell runs first."""
    with build(HOSTS, rate_bits, 0.04) as found:
        for host in range(HOSTS):
            (place.folder / f"boot-{host}").write_text(f"00000000-0000-0000-0000-{host:012}\n")
            (place.folder / f"hosts-{host}").write_text(
                f"127.0.0.1 localhost\n{found.address(host)} {os.uname().nodename}\n"
            )
            (place.folder / f"setup-{host}").write_text(
                f"mount --bind {place.folder}/boot-{host} /proc/sys/kernel/random/boot_id\n"
                f"mount --bind {place.folder}/hosts-{host} /etc/hosts\n{(setup or {}).get(host, '')}\n"
            )
        (place.folder / "ssh").write_text(
            '#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\n'
            "host=$((${2##*.} - 1))\n"
            f"exec ip netns exec {found.namespaces[0][:-1]}$host sh -c "
            f'". {place.folder}/setup-$host; $3"\n'
        )
        (place.folder / "ssh").chmod(0o755)
        place.environ["PATH"] = f"{place.folder}:{os.environ['PATH']}"
        place.lab = found
        yield found


def hosts_of(place: Place, ranks: int = 0) -> str:
    """For -H."""
    assert place.lab is not None
    network = place.network or place.lab.gateway.rpartition(".")[0]
    slots = f":{ranks}" if ranks else ""
    return ",".join(f"{network}.{host + 1}{slots}" for host in range(HOSTS))


def address_of(place: Place) -> str:
    assert place.lab is not None
    return place.lab.address(place.who)


def _in(found: Lab, host: int, *words: str) -> None:
    _run("ip", "netns", "exec", found.namespaces[host], *words)


@contextlib.contextmanager
def slow_link(place: Place) -> Iterator[list[str]]:
    """The link of one host has a small part of the rate of the others."""
    with lab(place) as found:
        rate = f"{int(60e6 / place.strength)}bit"
        shape = ("root", "tbf", "rate", rate, "burst", "70000", "limit", "300000")
        _run("tc", "qdisc", "replace", "dev", found.port(place.who), *shape)
        _in(found, place.who, "tc", "qdisc", "replace", "dev", "eth0", *shape)
        yield []


@contextlib.contextmanager
def lossy_link(place: Place) -> Iterator[list[str]]:
    """The link of one host is away for some milliseconds, again and again, as with a bad cable."""
    ends = threading.Event()
    with lab(place) as found:

        def flap() -> None:
            port = found.port(place.who)
            while not ends.wait(0.12):
                for state in ("down", "up"):
                    subprocess.run(["ip", "link", "set", port, state], check=False)

        flapping = threading.Thread(target=flap)
        flapping.start()
        try:
            yield []
        finally:
            ends.set()
            flapping.join()


@contextlib.contextmanager
def dead_link(place: Place) -> Iterator[list[str]]:
    """Once the job trains, nothing passes the link of one host."""
    with lab(place) as found:
        place.at_once = lambda: _run("ip", "link", "set", found.port(place.who), "down")
        yield []


@contextlib.contextmanager
def far_host(place: Place) -> Iterator[list[str]]:
    """Packets to and from one host are under way for some milliseconds."""
    with lab(place) as found, _tunnel(found, place.who) as ends, _delayed(ends, 0.004 * place.strength):
        yield []


@contextlib.contextmanager
def _tunnel(found: Lab, host: int) -> Iterator[tuple[int, int]]:
    """The host's address is at one end, on a device of its own, and the bridge at the other: this process carries."""
    names = f"{found.bridge}i", f"{found.bridge}o"
    ends = [os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK) for _ in names]
    try:
        for end, name in zip(ends, names, strict=True):
            # TUNSETIFF: packets of IP, without a header.
            fcntl.ioctl(end, 0x400454CA, struct.pack("16sH22x", name.encode(), 0x1001))
        address = found.address(host)
        _run("ip", "link", "set", names[0], "netns", found.namespaces[host])
        _in(found, host, "ip", "address", "flush", "dev", "eth0")
        _in(found, host, "ip", "address", "add", f"{address}/24", "dev", names[0])
        _in(found, host, "ip", "link", "set", names[0], "up")
        _run("ip", "link", "set", names[1], "up")
        _run("ip", "route", "add", f"{address}/32", "dev", names[1], "src", found.gateway)
        settings = Path("/proc/sys/net/ipv4/conf")
        (settings / found.bridge / "proxy_arp").write_text("1")
        for name in (found.bridge, names[1]):
            (settings / name / "forwarding").write_text("1")
        yield ends[0], ends[1]
    finally:
        for end in ends:
            os.close(end)


@contextlib.contextmanager
def _delayed(ends: tuple[int, int], delay_s: float) -> Iterator[None]:
    """What comes out of one end goes into the other so much later."""
    over = threading.Event()
    other = {ends[0]: ends[1], ends[1]: ends[0]}

    def carry() -> None:
        # This thread is the wire, which waits for no core.
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        waiting: list[tuple[float, int, int, bytes]] = []
        number = 0
        while not over.is_set():
            until = waiting[0][0] - time.monotonic() if waiting else 0.1
            for end in select.select(ends, [], [], max(0.0, min(0.1, until)))[0]:
                number += 1
                heapq.heappush(waiting, (time.monotonic() + delay_s, number, other[end], os.read(end, 1 << 16)))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(waiting)
                os.write(end, packet)

    carrying = threading.Thread(target=carry)
    carrying.start()
    try:
        yield
    finally:
        over.set()
        carrying.join()


@contextlib.contextmanager
def allocation(place: Place) -> Iterator[list[str]]:
    """An allocation of several tasks, in whose script srun is missing."""
    folder = place.folder / f"rabit-{os.getuid()}" / "records-own"
    place.environ.update(SLURM_NTASKS=str(int(2 * place.strength)), RABIT_RECORD=str(folder))
    yield []


# Before a job.


@contextlib.contextmanager
def healthy_hosts(place: Place) -> Iterator[list[str]]:
    with lab(place):
        yield []


def _with_setup(text: str):  # type: ignore[no-untyped-def]
    """The host `who` runs this first; {folder} is the job's."""

    @contextlib.contextmanager
    def around(place: Place) -> Iterator[list[str]]:
        with lab(place, {place.who: text.format(folder=place.folder)}):
            yield []

    return around


other_python = _with_setup("exec echo 'bash: python: command not found' >&2; exit 127")
no_key = _with_setup("echo 'Permission denied (publickey).' >&2; exit 255")
small_shm = _with_setup("mount -t tmpfs -o size=16m tmpfs /dev/shm")
full_tmp = _with_setup("mount -t tmpfs -o size=32m tmpfs /tmp")
few_files = _with_setup("ulimit -S -n 80")
little_locked = _with_setup("ulimit -l 64")
loopback_name = _with_setup(
    "echo '127.0.1.1 '$(hostname) > {folder}/hosts-bad; mount --bind {folder}/hosts-bad /etc/hosts"
)


@contextlib.contextmanager
def silent_names(place: Place) -> Iterator[list[str]]:
    """A server of names that answers nothing."""
    (place.folder / "silent.py").write_text(
        "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.bind(('127.0.0.9', 53))\ntime.sleep(30)\n"
    )
    text = (
        f"echo 127.0.0.1 localhost > {place.folder}/hosts-bad; mount --bind {place.folder}/hosts-bad /etc/hosts; "
        f"echo 'nameserver 127.0.0.9' > {place.folder}/resolv; "
        f"echo 'options timeout:1 attempts:2' >> {place.folder}/resolv; "
        f"mount --bind {place.folder}/resolv /etc/resolv.conf; "
        f"{sys.executable} {place.folder}/silent.py >/dev/null 2>&1 & sleep 0.3"
    )
    with lab(place, {place.who: text}):
        yield []


@contextlib.contextmanager
def other_version(place: Place) -> Iterator[list[str]]:
    """A host whose NumPy says that it is another one."""
    info = place.folder / "other" / "numpy-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9\n")
    with lab(place, {place.who: f"export PYTHONPATH={place.folder}/other:$PYTHONPATH"}):
        yield []


@contextlib.contextmanager
def other_clock(place: Place) -> Iterator[list[str]]:
    """A host whose clock is some seconds ahead."""
    (place.folder / "clock.c").write_text(
        "#define _GNU_SOURCE\n#include <time.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n"
        "int clock_gettime(clockid_t id, struct timespec *t) {\n"
        "  long r = syscall(SYS_clock_gettime, id, t);\n"
        f"  if (id == CLOCK_REALTIME) t->tv_sec += {int(4 * place.strength)};\n  return r;\n}}\n"
    )
    shared = place.folder / "clock.so"
    _run("gcc", "-shared", "-fPIC", "-o", str(shared), str(place.folder / "clock.c"))
    with lab(place, {place.who: f"export LD_PRELOAD={shared}"}):
        yield []


@contextlib.contextmanager
def firewall(place: Place) -> Iterator[list[str]]:
    """A host that lets no connection out to high ports."""
    yield from _high_ports(place, "dport", "unreachable")


@contextlib.contextmanager
def silent_firewall(place: Place) -> Iterator[list[str]]:
    """A host whose answers on high ports are dropped."""
    yield from _high_ports(place, "sport", "blackhole")


def _high_ports(place: Place, end: str, fate: str) -> Iterator[list[str]]:
    """end: "dport" or "sport", whose packets the host of the fault treats as `fate` says."""
    with lab(place) as found:
        _in(found, place.who, "ip", "rule", "add", end, "1024-65534", "ipproto", "tcp", fate)
        yield []


@contextlib.contextmanager
def mtu_hole(place: Place) -> Iterator[list[str]]:
    """Hosts of 9,000 bytes a packet, and a switch that drops those at the port of one."""
    with lab(place) as found:
        for host in range(HOSTS):
            _in(found, host, "ip", "link", "set", "eth0", "mtu", "9000", "gso_max_segs", "1")
            if host != place.who:
                _run("ip", "link", "set", found.port(host), "mtu", "9000", "gso_max_segs", "1")
        yield []


@contextlib.contextmanager
def slow_network(place: Place) -> Iterator[list[str]]:
    """The host is named by an address of a slow interface, and has a fast one."""
    with lab(place, rate_bits=2e9) as found:
        for host in range(HOSTS):
            fast = f"{found.bridge}f{host}"
            pair = ("type", "veth", "peer", "name", "eth1", "netns", found.namespaces[host])
            _run("ip", "link", "add", fast, *pair)
            _run("ip", "link", "set", fast, "master", found.bridge, "up")
            _in(found, host, "ip", "address", "add", f"{SECOND_NETWORK}.{host + 1}/24", "dev", "eth1")
            _in(found, host, "ip", "link", "set", "eth1", "up")
            # Each interface answers for its own address alone.
            _in(found, host, "sysctl", "-w", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")
        _shape_thin(found, place)
        yield []


@contextlib.contextmanager
def one_family(place: Place) -> Iterator[list[str]]:
    """A host of a network with IPv6 alone."""
    with lab(place) as found:
        _in(found, place.who, "ip", "address", "flush", "dev", "eth0")
        _in(found, place.who, "ip", "address", "add", f"fd00::{place.who + 1}/64", "dev", "eth0", "nodad")
        yield []


@contextlib.contextmanager
def containers(place: Place) -> Iterator[list[str]]:
    """Two hosts are containers of one machine, each with a /dev/shm of its own."""
    other = (place.who + 1) % HOSTS
    text = (
        f"mount --bind {place.folder}/boot-{other} /proc/sys/kernel/random/boot_id; "
        "mount -t tmpfs -o size=1g tmpfs /dev/shm"
    )
    with lab(place, {place.who: text}):
        yield []


@contextlib.contextmanager
def thin_link(place: Place) -> Iterator[list[str]]:
    """The link of one host has a twentieth of the rate of the others."""
    with lab(place, rate_bits=2e9) as found:
        _shape_thin(found, place)
        yield []


def _shape_thin(found: Lab, place: Place) -> None:
    rate = f"{int(100e6 / place.strength)}bit"
    shape = ("root", "tbf", "rate", rate, "burst", "70000", "limit", "300000")
    _in(found, place.who, "tc", "qdisc", "replace", "dev", "eth0", *shape)


@contextlib.contextmanager
def quota(place: Place) -> Iterator[list[str]]:
    """A host on which a control group allows half a processor."""
    with (
        control_group("cpu", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000") as group,
        lab(
            place,
            {
                # ip netns has mounted another /sys.
                place.who: "mount -t tmpfs tmpfs /sys/fs/cgroup; mkdir /sys/fs/cgroup/cpu; "
                f"mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu; echo $$ > {group}/cgroup.procs"
            },
        ),
    ):
        yield []


@contextlib.contextmanager
def left_over(place: Place) -> Iterator[list[str]]:
    """A rank whose launcher is gone."""
    with lab(place):
        orphan = _orphan()
        place.sign = str(orphan)
        try:
            yield []
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)


def _orphan() -> int:
    done = subprocess.run(
        ["sh", "-c", "RABIT_RANK=3 sleep 60 >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def missing() -> str:
    """Why namespaces, control groups and mounts cannot be made here; "": they can."""
    if os.geteuid() != 0:
        return "it takes root"
    absent = [name for name in ("ip", "tc", "mount", "unshare") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""
