"""Allreduce between network namespaces that a token bucket limits, beside what TCP itself carries.

    python tests/bench/shaped.py [--ranks 4] [--mbit 1000] [--sizes 16M] [--algorithms auto,ring]

Every rank has a namespace of its own, joined by a bridge; `tc tbf` limits what each sends.  First a
ring of plain TCP flows measures the goodput G of one rank with all of them sending at once; a tensor
of S bytes on n ranks then needs at least 2 (n - 1) / n S / G.  The figure is that bound over the
median time.  Needs root, ip and tc.
"""

from __future__ import annotations

import argparse
import os
import secrets
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shaped_links

BRIDGE = "rbench-br"
RING_PORT = 17017
STORE_PORT = 17018
RING_SECONDS = 3.0


def parse_size(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def address(rank: int) -> str:
    return f"10.211.0.{rank + 1}"


def namespace(rank: int) -> str:
    return f"rbench{rank}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """The namespaces and the bridge between them; gone again at the end."""

    def __init__(self, ranks: int, mbit: int) -> None:
        self.ranks, self.mbit = ranks, mbit

    def __enter__(self) -> Network:
        self.remove()
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for rank in range(self.ranks):
            name, outside = namespace(rank), f"rbench-v{rank}"
            ip("netns", "add", name)
            ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", outside, "master", BRIDGE, "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "address", "add", f"{address(rank)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            bucket = f"tbf rate {self.mbit}mbit burst 256kb latency 50ms".split()
            limit = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *bucket]
            subprocess.run(limit, check=True, capture_output=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        for rank in range(self.ranks):
            command = ["ip", "netns", "delete", namespace(rank)]
            subprocess.run(command, check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)

    def run(self, role: str, args: argparse.Namespace, environment: dict[str, str]) -> None:
        """This file as `role` in every namespace at once."""
        started = []
        for rank in range(self.ranks):
            words = ["ip", "netns", "exec", namespace(rank), sys.executable]
            words += [str(Path(__file__).resolve()), "--role", role, "--ranks", str(self.ranks)]
            words += ["--sizes", args.sizes, "--result", args.result, "--rounds", str(args.rounds)]
            mine = {
                **os.environ,
                **environment,
                "RABIT_RANK": str(rank),
                "RABIT_SIZE": str(self.ranks),
                "RABIT_LOCAL_RANK": "0",
                "RABIT_LOCAL_SIZE": "1",
                "RABIT_CROSS_RANK": str(rank),
                "RABIT_CROSS_SIZE": str(self.ranks),
                "RABIT_HOST_KEY": namespace(rank),
                "RABIT_BIND_ADDRESS": address(rank),
            }
            started.append(subprocess.Popen(words, env=mine))
        shaped_links.finish(started, timeout=200)


def ring(args: argparse.Namespace) -> None:
    """One rank of the ring: sends to the next and counts what comes from the one before."""
    rank = int(os.environ["RABIT_RANK"])
    listener = socket.create_server((address(rank), RING_PORT))
    peer = (address((rank + 1) % args.ranks), RING_PORT)
    deadline = time.monotonic() + 20
    while True:
        try:
            out = socket.create_connection(peer, timeout=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
    incoming, _ = listener.accept()
    out.setblocking(False)
    incoming.setblocking(False)
    data, room = bytes(256 << 10), bytearray(256 << 10)
    start, received, warm = time.perf_counter(), 0, None
    while (now := time.perf_counter() - start) < RING_SECONDS:
        if warm is None and now > RING_SECONDS / 4:
            warm = (now, received)  # slow start is over
        readable, writable, _ = select.select([incoming], [out], [], 0.1)
        try:
            if writable:
                out.send(data)
            if readable:
                received += incoming.recv_into(room)
        except ConnectionError:
            break  # a neighbour's time was up a little earlier
    taken = time.perf_counter() - start - warm[0]
    Path(f"{args.result}.{rank}").write_text(str((received - warm[1]) / taken))


def work(args: argparse.Namespace) -> None:
    import numpy as np

    import rabit
    from rabit.rendezvous.discovery import StoreServer

    where, port = os.environ["RABIT_STORE_ADDRESS"].split(":")
    secret = bytes.fromhex(Path(os.environ["RABIT_SECRET_FILE"]).read_text())
    store = StoreServer(where, int(port), secret) if os.environ["RABIT_RANK"] == "0" else None
    rabit.init()
    lines = []
    for size in map(parse_size, args.sizes.split(",")):
        array = np.ones(max(size // 4, 1), dtype=np.float32)
        seconds = []
        for turn in range(args.rounds + 3):
            rabit.barrier()
            start = time.perf_counter()
            rabit.allreduce_(array, name=f"bench.{size}", op=rabit.Max)
            if turn >= 3:
                seconds.append(time.perf_counter() - start)
        lines.append(f"{size} {statistics.median(seconds)}")
    if rabit.rank() == 0:
        Path(args.result).write_text("\n".join(lines))
    rabit.barrier()
    rabit.shutdown()
    if store is not None:
        store.close()


def show(size: int, seconds: float, best: float, bound: float, name: str) -> None:
    print(
        f"{size:>10} B  {name:<20}{seconds * 1e3:10.2f} ms   {bound / seconds:6.3f} of the bound"
        f"   {best / seconds:6.3f} of the fastest"
    )


def compare(args: argparse.Namespace) -> None:
    with (
        shaped_links.unwinding(),
        tempfile.TemporaryDirectory() as folder,
        Network(args.ranks, args.mbit) as network,
    ):
        args.result = f"{folder}/result"
        network.run("ring", args, {})
        flows = [float(Path(f"{args.result}.{rank}").read_text()) for rank in range(args.ranks)]
        goodput = min(flows)
        print(f"{args.ranks} namespaces, {args.mbit} Mbit/s, goodput {goodput / 1e6:.1f} MB/s")
        secret = Path(folder) / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        times: dict[int, dict[str, float]] = {}
        for turn, algorithm in enumerate(args.algorithms.split(",")):
            environment = {
                "RABIT_STORE_ADDRESS": f"{address(0)}:{STORE_PORT + turn}",
                "RABIT_SECRET_FILE": str(secret),
                "RABIT_TRANSPORT": "tcp",
                "RABIT_ALLREDUCE_ALGORITHM": "" if algorithm == "auto" else algorithm,
            }
            network.run("work", args, environment)
            for line in Path(args.result).read_text().splitlines():
                size, seconds = line.split()
                times.setdefault(int(size), {})[algorithm] = float(seconds)
        for size, by_name in times.items():
            bound = 2 * (args.ranks - 1) / args.ranks * size / goodput
            for name, seconds in by_name.items():
                show(size, seconds, min(by_name.values()), bound, name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, help="namespaces (default 4)")
    parser.add_argument("--mbit", type=int, default=1000, help="of each namespace (default 1000)")
    parser.add_argument("--sizes", default="16M", help="bytes, comma separated (default 16M)")
    parser.add_argument("--algorithms", default="auto", help="auto or names, comma separated")
    parser.add_argument("--rounds", type=int, default=9, help="operations of each (default 9)")
    parser.add_argument("--role", default="compare", help=argparse.SUPPRESS)
    parser.add_argument("--result", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "compare":
        if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
            raise SystemExit("shaped.py makes network namespaces: run it as root, with ip and tc")
        compare(args)
    else:
        {"ring": ring, "work": work}[args.role](args)


if __name__ == "__main__":
    main()
