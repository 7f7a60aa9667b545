"""Renewal: deep copies that go into the memory of older copies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Leaves", "Renewal"]


class Leaves(Protocol):
    """A kind of value whose contents can be copied into the memory of another one."""

    def place(self, value: Any, worn: Any) -> tuple[object, object] | None:
        """The memories of both if `value` fits into that of `worn`; None: it does not, or is of another kind.

        Where two values share a memory, and two worn ones as well, `value` is at the same place in it as `worn`.
        """

    def fill(self, worn: Any, value: Any) -> None:
        """Copies.  Doing it again does no harm."""


class Renewal:
    """A deep copy of `value` to come.  `worn` is an older one that no one needs any more, or None.

    A new copy next to the old one would take as much memory again, and a deep copy of a tensor many times what
    copying its bytes takes.  Where something fits into what `worn` has at its
    place, in dicts, lists and tuples, it goes there; the rest is copied again.  `worn` is whole until `fill`.
    """

    def __init__(self, value: Any, worn: Any, kinds: Sequence[Leaves]) -> None:
        self._kinds = kinds
        self._fills: list[tuple[Leaves, Any, Any]] = []
        self._places: dict[object, object] = {}  # memories of `worn`, and which of `value` goes there
        self._placed: dict[int, Any] = {}  # what deepcopy takes for the copies of these
        self._seen: set[int] = set()
        if kinds and worn is not None:
            self._match(value, worn)
        self._copy = copy.deepcopy(value, self._placed)

    def fill(self) -> Any:
        """The copy, whole.  After an error it may be called again, as long as `value` is as it was."""
        for kind, worn, value in self._fills:
            kind.fill(worn, value)
        return self._copy

    def _match(self, value: Any, worn: Any) -> None:
        if isinstance(value, dict) and type(value) is type(worn):
            pairs = [(item, worn[key]) for key, item in value.items() if key in worn]
        elif type(value) in (list, tuple) and type(value) is type(worn):
            pairs = list(zip(value, worn, strict=False))
        else:
            self._match_leaf(value, worn)
            return
        if id(value) in self._seen:  # It may hold itself.
            return
        self._seen.add(id(value))
        for pair, other in pairs:
            if not isinstance(pair, int | float | str | bytes | None):
                self._match(pair, other)

    def _match_leaf(self, value: Any, worn: Any) -> None:
        if id(value) in self._placed:
            return
        for kind in self._kinds:
            memories = kind.place(value, worn)
            # Two values in one memory would be one value: only what shared it in `value` may share it in the copy.
            if memories is not None and self._places.setdefault(memories[1], memories[0]) == memories[0]:
                self._placed[id(value)] = worn
                self._fills.append((kind, worn, value))
                return
