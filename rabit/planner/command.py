"""`rabitrun plan`: what a network allows at most, what ring, tree and plan reach of it, and the plan."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from rabit.command import run_command
from rabit.planner.document import described, followed
from rabit.planner.graph import Topology
from rabit.planner.picture import svg
from rabit.planner.plan import Plan
from rabit.printable import printable_lines

__all__ = ["main", "parse_probe", "show"]

_TREES_SHOWN = 8


def main(words: Sequence[str] | None = None) -> int:
    """Prints the plan of the topology that the command line names; the exit status."""
    parser = _parser()
    parser.add_argument("--topology", required=True, metavar="FILE", help="the network, as JSON")
    parsed = parser.parse_args(words)
    show(Plan(Topology.from_file(parsed.topology)), parsed)
    return 0


def parse_probe(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of `rabitrun -np N plan`, which probes the network of a job. Ends the process after --help."""
    return _parser().parse_args(words)


def show(plan: Plan, parsed: argparse.Namespace, measured: Sequence[str] = ()) -> None:
    """Writes, draws and prints a plan as the command line says, after the lines of `measured`."""
    if parsed.output:
        text = json.dumps(described(plan), indent=1) + "\n"
        parsed.output.write_text(text, encoding="utf-8")
    if parsed.svg:
        parsed.svg.write_text(svg(plan), encoding="utf-8")
    if parsed.json:
        print(json.dumps(plan.to_json(), indent=1))
    else:
        print(printable_lines("\n".join([*measured, *_lines(plan)])))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rabitrun plan",
        description="Shows how fast collectives can be on a network whose links differ, exactly, and the trees "
        "that reach it. With --topology it starts no process; 'rabitrun -np N -H ... plan' probes the network of "
        "the job's hosts.",
        epilog='A topology file holds {"nodes": [{"name": "h0"}, {"name": "s0", "switch": true}], "links": '
        '[{"a": "h0", "b": "s0", "capacity": 10}]}; "from" and "to" in place of "a" and "b" make a one-way link. '
        "Capacities have any unit that is the same for all. Rates are bytes of the tensor per unit of time.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON with exact fractions")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="also write the plan, for RABIT_PLAN=FILE"
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="also draw the network and the plan"
    )
    return parser


def _lines(plan: Plan) -> Iterator[str]:
    topology = plan.topology
    names = topology.names
    switches = len(names) - topology.hosts
    yield (
        f"topology {topology.digest}: {topology.hosts} hosts, {switches} switches, "
        f"{len(topology.capacity)} one-way links"
    )
    yield ""
    rows: list[tuple[str, Fraction, Fraction]] = [
        ("allreduce, plan", plan.allreduce, plan.allreduce),
        ("allreduce, ring in the order of the ranks", plan.ring(), plan.allreduce),
        ("allreduce, ring in the best order", plan.ring(plan.order), plan.allreduce),
        ("allreduce, binary tree", plan.tree, plan.allreduce),
        ("allgather, plan", plan.allgather, plan.allgather),
        (f"broadcast from {names[0]}, plan", plan.broadcast(), plan.broadcast()),
    ]
    width = max(len(label) for label, _, _ in rows)
    yield f"{'':{width}}  {'rate':>10}  of the optimum"
    for label, rate, optimum in rows:
        yield f"{label:{width}}  {float(rate):10.4g}  {float(rate / optimum):13.0%}"
    yield ""
    yield f"order on a ring: {', '.join(names[host] for host in plan.order)}"
    moved = sum(host != position for position, host in enumerate(plan.order))
    yield (
        f"{moved} of {topology.hosts} hosts change places" if moved else "no host changes its place"
    )
    yield ""
    for way, kinds in _by_way(followed(plan)).items():
        yield f"{way}: {', '.join(kinds)}"
    yield ""
    yield from _tree_lines(plan)


def _by_way(kinds: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind, way in kinds.items():
        found.setdefault(way, []).append(kind)
    return found


def _tree_lines(plan: Plan) -> Iterator[str]:
    names = plan.topology.names
    for pair in plan.trees[:_TREES_SHOWN]:
        yield f"{float(pair.share):.1%} of the bytes by root {names[pair.root]}:"
        for label, tree in (("reduce", pair.reduce), ("broadcast", pair.broadcast)):
            edges = ", ".join(f"{names[start]} > {names[end]}" for start, end in tree.edges)
            yield f"  {label:9}  {edges}"
    hidden = len(plan.trees) - _TREES_SHOWN
    if hidden > 0:
        yield f"and {hidden} more trees: --json lists all."


if __name__ == "__main__":
    sys.exit(run_command("rabitrun plan", main))
