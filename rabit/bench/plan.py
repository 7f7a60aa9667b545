"""What every rank of `rabitrun -np N plan` runs: it probes the network of the job's hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rabit import session
from rabit.command import run_command
from rabit.engine.current import current_engine
from rabit.errors import InvalidArgument
from rabit.planned import host_name, hosts_of
from rabit.planner.command import parse_probe, show
from rabit.planner.plan import Plan
from rabit.probe import Probe, probe

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Probes, and prints and writes the plan on rank 0; the exit status."""
    parsed = parse_probe(words)
    session.init()
    engine = current_engine()
    hosts = hosts_of(engine, host_name(engine.config.host_key))
    if len(set(hosts)) == 1:
        raise InvalidArgument(
            f"all {engine.size} ranks are on the host {hosts[0]}: there is no network to probe. Name several hosts "
            "with -H, or describe the network in a file for --topology."
        )
    found = probe(engine, hosts)
    if engine.rank == 0:
        lines = [] if parsed.json else list(_measured(found))
        show(Plan(found.topology), parsed, lines)
    session.shutdown()
    return 0


def _measured(found: Probe) -> Iterator[str]:
    topology = found.topology
    yield f"probed {topology.hosts} hosts in {found.seconds:.1f} s, {found.bytes_sent / 1e6:.0f} MB sent by each"
    yield "Mbit/s each way between two hosts, while all others exchanged too:"
    names = topology.names[: topology.hosts]
    rate = {frozenset(pair): value for *pair, value in found.rates}
    width = max(7, *map(len, names))
    yield " ".join(f"{name:>{width}}" for name in ("", *names))
    for name in names:
        cells = [rate.get(frozenset((name, other))) for other in names]
        yield " ".join([f"{name:>{width}}", *(f"{'' if c is None else f'{c:.0f}':>{width}}" for c in cells)])
    yield ""


if __name__ == "__main__":
    sys.exit(run_command("rabitrun plan", main))
