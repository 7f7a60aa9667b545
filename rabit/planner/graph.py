"""A network as the planner sees it: hosts, switches, and links with a capacity in each direction."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from rabit.errors import InvalidArgument
from rabit.planner.flow import FlowGraph

__all__ = ["Capacity", "Topology"]

Capacity = int | float | str | Fraction
# Short, so that no text costs much to read: Fraction("1e999999999") would take minutes.
_RATIONAL = re.compile(r"[0-9]{1,18}([./][0-9]{1,18})?")
_FILE = "a topology file is written as docs/reference/topology_file.md says"


@dataclass(frozen=True)
class Topology:
    """A directed graph. Node numbers index `names`; the hosts come first, in the order of their ranks.

    names: of every node. hosts: how many of them compute; the others are switches, which neither copy
    nor add what passes through them. capacity: (start, end) -> positive integer, parallel links summed.
    unit: what one unit of `capacity` is in the numbers that the user wrote.
    """

    names: tuple[str, ...]
    hosts: int
    capacity: Mapping[tuple[int, int], int]
    unit: Fraction = Fraction(1)

    @classmethod
    def of(
        cls,
        hosts: Iterable[str],
        links: Iterable[tuple[str, str, Capacity]],
        switches: Iterable[str] = (),
    ) -> Topology:
        """A topology of one-way links (start, end, capacity). Raises InvalidArgument, as `from_json` does."""
        hosts = list(hosts)
        names = (*hosts, *switches)
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgument(
                    f"topology: the node {name!r} is named twice. Give each node one name."
                )
        if len(hosts) < 2:
            raise InvalidArgument(
                f"topology: {len(hosts)} of the {len(names)} nodes are hosts. "
                'A plan needs two hosts: nodes without "switch": true.'
            )
        number = {name: index for index, name in enumerate(names)}
        exact: dict[tuple[int, int], Fraction] = {}
        for start, end, capacity in links:
            for name in (start, end):
                if name not in number:
                    raise InvalidArgument(
                        f"topology: a link from {start!r} to {end!r} names {name!r}, which is not a node. "
                        f"The nodes are {', '.join(names)}."
                    )
            if start == end:
                raise InvalidArgument(
                    f"topology: a link leads from {start!r} to itself. Remove it."
                )
            edge = (number[start], number[end])
            exact[edge] = exact.get(edge, Fraction(0)) + _positive(capacity, start, end)
        unit = Fraction(
            math.gcd(*(value.numerator for value in exact.values())) or 1,
            math.lcm(*(value.denominator for value in exact.values())),
        )
        topology = cls(
            names, len(hosts), {e: int(c / unit) for e, c in sorted(exact.items())}, unit
        )
        topology._check_connected()
        return topology

    @classmethod
    def from_json(cls, text: str, source: str = "topology") -> Topology:
        """Reads {"nodes": [{"name", "switch"}], "links": [{"a", "b", "capacity"} or {"from", "to", "capacity"}]}.

        A link with "a" and "b" has its capacity in each direction, one with "from" and "to" in one.
        Raises InvalidArgument that names `source` and the entry: not JSON, an unknown or missing key, a
        name that occurs twice, a capacity that is not positive, a host that another cannot reach.
        """
        try:
            given = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(
                f"{source}: not JSON: {error}. The file may be truncated; {_FILE}."
            ) from None
        try:
            hosts, switches = _nodes(given)
            return cls.of(hosts, _links(given), switches)
        except InvalidArgument as error:
            raise InvalidArgument(f"{source}: {str(error).removeprefix('topology: ')}") from None

    @classmethod
    def from_file(cls, path: str | Path) -> Topology:
        """Reads a file as `from_json` does. Raises OSError if it cannot be read."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"), str(path))
        except UnicodeDecodeError:
            raise InvalidArgument(f"{path}: not UTF-8 text; {_FILE}.") from None

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that name this topology: equal for equal nodes and capacities."""
        described = [self.names, self.hosts, str(self.unit), sorted(self.capacity.items())]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """The description that `from_json` reads, with one-way links."""
        nodes = [
            {"name": name} if node < self.hosts else {"name": name, "switch": True}
            for node, name in enumerate(self.names)
        ]
        links = [
            {
                "from": self.names[start],
                "to": self.names[end],
                "capacity": _number(value * self.unit),
            }
            for (start, end), value in self.capacity.items()
        ]
        return {"nodes": nodes, "links": links}

    def _check_connected(self) -> None:
        graph = FlowGraph(
            len(self.names), ((*edge, value) for edge, value in self.capacity.items())
        )
        for start in range(self.hosts):
            graph.flow(start, start, enough=0)
            reached = graph.source_side(start)
            for end in range(self.hosts):
                if end not in reached:
                    raise InvalidArgument(
                        f"topology: no path leads from {self.names[start]!r} to {self.names[end]!r}. "
                        "Every host has to reach every other one: add the link that is missing."
                    )


def _nodes(given: Any) -> tuple[list[str], list[str]]:
    if not isinstance(given, dict) or not isinstance(given.get("nodes"), list):
        raise InvalidArgument(f'there is no list "nodes"; {_FILE}.')
    hosts: list[str] = []
    switches: list[str] = []
    for place, node in enumerate(given["nodes"]):
        if not isinstance(node, dict) or not isinstance(node.get("name"), str) or not node["name"]:
            raise InvalidArgument(f'"nodes"[{place}] has no "name" that is a text; {_FILE}.')
        _check_keys(f'"nodes"[{place}]', node, {"name", "switch"})
        if not isinstance(node.get("switch", False), bool):
            raise InvalidArgument(
                f'"nodes"[{place}]: "switch" is {node["switch"]!r}; expected true or false.'
            )
        (switches if node.get("switch") else hosts).append(node["name"])
    return hosts, switches


def _links(given: dict[str, Any]) -> list[tuple[str, str, Capacity]]:
    if not isinstance(given.get("links"), list):
        raise InvalidArgument(f'there is no list "links"; {_FILE}.')
    _check_keys("the topology", given, {"nodes", "links"})
    links: list[tuple[str, str, Capacity]] = []
    for place, link in enumerate(given["links"]):
        where = f'"links"[{place}]'
        keys = set(link) if isinstance(link, dict) else set()
        if keys not in ({"a", "b", "capacity"}, {"from", "to", "capacity"}):
            found = ", ".join(sorted(map(str, keys))) or "none"
            raise InvalidArgument(
                f'{where} has the keys {found}; expected "a", "b" and "capacity" (both directions) '
                'or "from", "to" and "capacity" (one direction).'
            )
        start, end = (link["a"], link["b"]) if "a" in keys else (link["from"], link["to"])
        if not isinstance(start, str) or not isinstance(end, str):
            raise InvalidArgument(
                f"{where} connects {start!r} and {end!r}; expected names of nodes."
            )
        links.append((start, end, link["capacity"]))
        if "a" in keys:
            links.append((end, start, link["capacity"]))
    return links


def _check_keys(where: str, entry: dict[str, Any], known: set[str]) -> None:
    for key in entry:
        if key not in known:
            raise InvalidArgument(
                f"{where} has the unknown key {key!r}; known: {', '.join(sorted(known))}."
            )


def _positive(capacity: Capacity, start: str, end: str) -> Fraction:
    """An exact value; a float is taken as the decimal number that its user wrote."""
    try:
        if isinstance(capacity, bool) or (
            isinstance(capacity, str) and not _RATIONAL.fullmatch(capacity)
        ):
            raise ValueError
        value = Fraction(str(capacity)) if isinstance(capacity, float) else Fraction(capacity)
    except (TypeError, ValueError, ZeroDivisionError):
        raise InvalidArgument(
            f"topology: the link from {start!r} to {end!r} has the capacity {capacity!r}; expected a number."
        ) from None
    if value <= 0:
        raise InvalidArgument(
            f"topology: the link from {start!r} to {end!r} has the capacity {capacity}. "
            "A capacity is positive; leave out a link that carries nothing."
        )
    return value


def _number(value: Fraction) -> int | str:
    return value.numerator if value.denominator == 1 else str(value)
