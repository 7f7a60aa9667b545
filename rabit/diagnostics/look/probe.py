"""`python -m rabit.diagnostics.look.probe`: what a host is like before a job, for a launcher on another one.

It prints a line of JSON about its host, which has the port of a listener; it reads a line with the listeners of
other hosts, and prints which of them it reaches and how fast.  It ends with its standard input, or after 20 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import socket
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from rabit.diagnostics.look.process import host_facts
from rabit.errors import InvalidArgument
from rabit.record.places import host_facts as own_facts
from rabit.rendezvous.interfaces import interface_addresses
from rabit.threads import start_thread
from rabit.version import __version__

__all__ = ["describe", "main", "reach"]

_LONGEST_S = 20
_CONNECT_S = 2.0
# Over a network that nobody has named a host need not be there.
_OTHER_CONNECT_S = 0.5
_OTHERS_S = 3.0  # for all of them: the rest is not tried
_SENT_BYTES = 4 << 20
_VERSIONED = ("numpy", "torch", "mpi4py", "cloudpickle", "cffi")


def main() -> int:
    signal.alarm(_LONGEST_S)  # Whoever asked may be gone.
    is_dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    listener = socket.create_server(("", 0), family=family, dualstack_ipv6=is_dual)
    start_thread(lambda: _serve(listener), "probe")
    print(json.dumps({**describe(), "port": listener.getsockname()[1]}), flush=True)
    line = sys.stdin.readline()
    if line:
        asked = json.loads(line)
        reached = [reach(host, port) for host, port in asked["connect"]]
        until = time.monotonic() + _OTHERS_S
        others = []
        for host, port in asked.get("others", ()):
            if time.monotonic() > until:
                break
            others.append(reach(host, port, _OTHER_CONNECT_S))
        print(json.dumps({"reached": reached, "others": others}), flush=True)
    sys.stdin.read()
    return 0


def describe() -> dict[str, Any]:
    """Of this host: versions, names, time, limits, room and interfaces."""
    versions = {
        "rabit": __version__,
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
    }
    for name in _VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    name = socket.gethostname()
    began = time.monotonic()
    addresses: list[str] = []
    with contextlib.suppress(OSError):
        addresses = sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None)})
    flags = ""
    with contextlib.suppress(OSError):
        line = next(
            (
                line
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("flags")
            ),
            "",
        )
        flags = " ".join(
            sorted(word for word in line.split() if word.startswith(("avx", "f16c", "amx")))
        )
    return {
        "name": name,
        "versions": versions,
        "python": sys.executable,
        "addresses": addresses,
        "resolving_s": time.monotonic() - began,
        "time": time.time(),
        "flags": flags,
        "mtu": _mtus(),
        "networks": _networks(),
        "shm": _shared_memory(),
        "own": own_facts(),
        "facts": host_facts(set(), with_others=False),
        "left": _left_over(),
    }


def _mtus() -> dict[str, int]:
    found = {}
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError, ValueError):
            found[name] = int(Path(f"/sys/class/net/{name}/mtu").read_text())
    return found


def _networks() -> dict[str, list[str]]:
    """The addresses of each interface that is up, without the loopback's."""
    found = {}
    for _, name in socket.if_nameindex():
        with contextlib.suppress(InvalidArgument):
            found[name] = interface_addresses(name)
    return {name: addresses for name, addresses in found.items() if name != "lo"}


def _shared_memory() -> int:
    """Which memory /dev/shm is: two containers of one machine may have two."""
    with contextlib.suppress(OSError):
        return Path("/dev/shm").stat().st_dev
    return 0


def _left_over() -> list[dict[str, Any]]:
    """Processes of jobs whose launcher is gone: their parent is the first process, or one that adopts them."""
    found = []
    for each in Path("/proc").iterdir():
        if not each.name.isdigit() or int(each.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            environ = (each / "environ").read_bytes().split(b"\0")
            is_rank = any(word.startswith(b"RABIT_RANK=") for word in environ)
            words = (each / "stat").read_text().rpartition(")")[2].split()
            if is_rank and words[1] == "1":
                found.append({"pid": int(each.name)})
    return found


def reach(host: str, port: int, connect_s: float = _CONNECT_S) -> dict[str, Any]:
    """{"ms": to connect, "mb_s": sent} of a listener of another probe, or {"problem": …}."""
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=connect_s) as link:
            took = time.monotonic() - began
            link.settimeout(_CONNECT_S)
            block = bytes(1 << 16)
            sent, start = 0, time.monotonic()
            while sent < _SENT_BYTES and time.monotonic() - start < _CONNECT_S:
                link.sendall(block)
                sent += len(block)
            link.shutdown(socket.SHUT_WR)
            if link.recv(1) != b"\1":
                return {"problem": "what listens there is not the probe", "ms": took * 1e3}
            rate = sent / max(1e-6, time.monotonic() - start) / 1e6
            return {"ms": took * 1e3, "mb_s": rate, "is_whole": sent >= _SENT_BYTES}
    except socket.gaierror as error:
        return {"problem": f"its name does not resolve ({error.strerror})", "kind": "name"}
    except TimeoutError:
        is_connected = "link" in locals()
        what = "data gets stuck" if is_connected else "no answer"
        return {
            "problem": f"{what} within {_CONNECT_S if is_connected else connect_s:g} s",
            "kind": "stuck" if is_connected else "silent",
        }
    except OSError as error:
        return {"problem": error.strerror or str(error), "kind": "refused"}


def _serve(listener: socket.socket) -> None:
    while True:
        client, _ = listener.accept()
        start_thread(lambda link=client: _swallow(link), "probe-client")  # type: ignore[misc]


def _swallow(link: socket.socket) -> None:
    with contextlib.suppress(OSError), link:
        link.settimeout(_LONGEST_S)
        while link.recv(1 << 18):
            pass
        link.sendall(b"\1")


if __name__ == "__main__":
    sys.exit(main())
