"""A drawing of a topology as SVG: hosts around, switches inside, links as wide as their capacity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from rabit.planner.graph import Topology
from rabit.planner.plan import Plan
from rabit.printable import printable

__all__ = ["svg"]

_WIDTH, _HEIGHT = 640, 560
_CENTRE = (_WIDTH / 2, 270.0)
_RADIUS = 210.0
_LINE_WIDTHS = (1.0, 6.0)
_COLOURS = ("#0b6bcb", "#c2410c", "#15803d", "#a21caf", "#b45309", "#0e7490")
_STYLE = """
  text { font: 13px sans-serif; fill: #1f2328; text-anchor: middle }
  .link { stroke: #8b949e; fill: none }
  .node { fill: #ffffff; stroke: #1f2328; stroke-width: 1.5 }
  .tree { fill: none; stroke-width: 2; stroke-dasharray: 7 4 }
  .rate { font-size: 11px; fill: #57606a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .rate { fill: #9198a1 } .node { fill: #0d1117; stroke: #e6edf3 }
  }
"""

Point = tuple[float, float]


def svg(plan: Plan) -> str:
    """An SVG document: the topology, and dashed on top the plan's first trees towards the hosts."""
    places = _places(plan)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<style>{_STYLE}</style>",
        *_links(plan.topology, places),
        *_trees(plan, places),
        *_nodes(plan.topology, places),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(plan: Plan) -> dict[int, Point]:
    """Hosts in the order of the ring, so that those of one switch are neighbours; a switch near its own."""
    topology = plan.topology
    places: dict[int, Point] = {}
    for position, host in enumerate(plan.order):
        angle = 2 * math.pi * position / topology.hosts - math.pi / 2
        places[host] = (
            _CENTRE[0] + _RADIUS * math.cos(angle),
            _CENTRE[1] + _RADIUS * math.sin(angle),
        )
    for switch in range(topology.hosts, len(topology.names)):
        near = [
            places[end]
            for start, end in topology.capacity
            if start == switch and end < topology.hosts
        ]
        x = sum(place[0] for place in near) / len(near) if near else _CENTRE[0]
        y = sum(place[1] for place in near) / len(near) if near else _CENTRE[1]
        # Half of the way in, so that the switch of all hosts is in the middle and no link hides another.
        places[switch] = (
            _CENTRE[0] + (x - _CENTRE[0]) * 0.55,
            _CENTRE[1] + (y - _CENTRE[1]) * 0.55,
        )
    return places


def _links(topology: Topology, places: dict[int, Point]) -> Iterator[str]:
    widest = max(topology.capacity.values())
    thin, thick = _LINE_WIDTHS
    for (start, end), capacity in topology.capacity.items():
        back = topology.capacity.get((end, start))
        if back == capacity and start > end:
            continue  # One line stands for both directions.
        (x1, y1), (x2, y2) = places[start], places[end]
        width = thin + (thick - thin) * capacity / widest
        yield f'<path class="link" stroke-width="{width:.1f}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'
        text = f"{float(capacity * topology.unit):g}" + ("" if back == capacity else " →")
        # Two thirds of the way, so that the two directions of an uneven link are told apart.
        x, y = x1 + (x2 - x1) * 0.62, y1 + (y2 - y1) * 0.62
        yield f'<text class="rate" x="{x:.1f}" y="{y - 4:.1f}">{text}</text>'


def _trees(plan: Plan, places: dict[int, Point]) -> Iterator[str]:
    names = plan.topology.names
    for number, (pair, colour) in enumerate(zip(plan.trees, _COLOURS, strict=False)):
        for start, end in pair.broadcast.edges:
            (x1, y1), (x2, y2) = places[start], places[end]
            # A bow, another one for each tree, keeps lines between the same hosts apart.
            bow = 14 + 9 * number
            length = math.hypot(x2 - x1, y2 - y1) or 1.0
            x = (x1 + x2) / 2 - (y2 - y1) / length * bow
            y = (y1 + y2) / 2 + (x2 - x1) / length * bow
            yield (
                f'<path class="tree" stroke="{colour}" d="M{x1:.1f} {y1:.1f}Q{x:.1f} {y:.1f} {x2:.1f} {y2:.1f}"/>'
            )
        y = _HEIGHT - 8 - 16 * number
        yield (
            f'<text x="12" y="{y}" style="text-anchor:start;fill:{colour}">'
            f"{float(pair.share):.0%} from {escape(printable(names[pair.root]))}</text>"
        )


def _nodes(topology: Topology, places: dict[int, Point]) -> Iterator[str]:
    for node, (x, y) in places.items():
        name = escape(printable(topology.names[node]))
        if node < topology.hosts:
            yield f'<circle class="node" cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
            yield f'<text x="{x:.1f}" y="{y - 15:.1f}">{name}</text>'
        else:
            yield f'<rect class="node" x="{x - 8:.1f}" y="{y - 8:.1f}" width="16" height="16"/>'
            yield f'<text x="{x:.1f}" y="{y + 22:.1f}">{name}</text>'
