"""The largest flow between two nodes of a graph with integer capacities.

Source: Dinic, Algorithm for Solution of a Problem of Maximum Flow in Networks with Power Estimation (1970).
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FlowGraph"]


class FlowGraph:
    """Nodes are numbers from 0 to `nodes` - 1. Edges may be parallel. Not thread-safe."""

    def __init__(self, nodes: int, edges: Iterable[tuple[int, int, int]] = ()) -> None:
        self._out: list[list[int]] = [[] for _ in range(nodes)]
        # Edge 2i and its reverse 2i + 1 stand next to each other.
        self._head: list[int] = []
        self._capacity: list[int] = []
        self._left: list[int] = []
        for start, end, capacity in edges:
            self.add(start, end, capacity)

    def add(self, start: int, end: int, capacity: int) -> int:
        """Adds an edge and returns its index, which `set_capacity` takes."""
        index = len(self._head)
        self._out[start].append(index)
        self._out[end].append(index + 1)
        self._head += [end, start]
        self._capacity += [capacity, 0]
        return index

    def set_capacity(self, index: int, capacity: int) -> None:
        self._capacity[index] = capacity

    def flow(self, source: int, sink: int, enough: int | None = None) -> int:
        """The largest flow from `source` to `sink`, or some value of at least `enough`.

        A caller that only compares with a bound passes it as `enough`, and saves the rest of the work.
        """
        self._left = self._capacity.copy()
        total = 0
        while enough is None or total < enough:
            levels = self._levels(source, sink)
            if levels[sink] < 0:
                break
            total += self._blocking_flow(source, sink, levels)
        return total

    def source_side(self, source: int) -> set[int]:
        """The nodes that `source` still reaches after `flow`: with no bound, the smallest minimum cut."""
        reached, waiting = {source}, [source]
        while waiting:
            for edge in self._out[waiting.pop()]:
                end = self._head[edge]
                if self._left[edge] and end not in reached:
                    reached.add(end)
                    waiting.append(end)
        return reached

    def _levels(self, source: int, sink: int) -> list[int]:
        levels = [-1] * len(self._out)
        levels[source] = 0
        queue = [source]
        for node in queue:  # Grows while it is read.
            for edge in self._out[node]:
                end = self._head[edge]
                if levels[end] < 0 and self._left[edge]:
                    levels[end] = levels[node] + 1
                    queue.append(end)
            if levels[sink] >= 0:
                break
        return levels

    def _blocking_flow(self, source: int, sink: int, levels: list[int]) -> int:
        head, left, out = self._head, self._left, self._out
        next_edge = [0] * len(out)
        total = 0
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                pushed = min(left[edge] for edge in path)
                total += pushed
                back_to = len(path)
                for place, edge in enumerate(path):
                    left[edge] -= pushed
                    left[edge ^ 1] += pushed
                    if not left[edge]:
                        back_to = min(back_to, place)
                node = head[path[back_to] ^ 1]
                del path[back_to:]
            edges = out[node]
            place = next_edge[node]
            while place < len(edges):
                edge = edges[place]
                if left[edge] and levels[head[edge]] == levels[node] + 1:
                    break
                place += 1
            next_edge[node] = place
            if place < len(edges):
                path.append(edges[place])
                node = head[edges[place]]
            elif path:
                # A dead end: the node before it continues with its next edge.
                node = head[path.pop() ^ 1]
                next_edge[node] += 1
            else:
                return total
