"""State of gradient methods: trees of dataclasses whose leaves are arrays and numbers.

Methods put new values in place of old ones and never write into them.  What a tree was at some moment
is therefore a copy of its nodes alone, so that undoing a step costs nothing, and saving, loading and
resizing are written once for all methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rabit.errors import InvalidArgument

__all__ = ["Leaf", "Undo", "copied", "leaf", "leaves", "resized", "restored"]

Scope = Literal["replicated", "local"]
Elastic = Literal["copy", "mean", "zero"]
_UNSAID: tuple[Scope, Elastic] = ("replicated", "copy")


@dataclass(frozen=True)
class Leaf:
    """One value of a state, with what saving and resizing must know.

    scope: "replicated", equal on all ranks; "local", this rank's own.
    elastic: what becomes of a local value when ranks come or go. "mean": its mean over the ranks is
    conserved (a residual): those that stay scale theirs, those that come start with zero.  "zero":
    it starts anew, as the field's default if it has one: its shape may be that of a part. "copy":
    those that come take the first rank's.
    """

    value: Any
    scope: Scope
    elastic: Elastic


def leaf(
    default: Any = dataclasses.MISSING,
    *,
    scope: Scope = "replicated",
    elastic: Elastic = "copy",
) -> Any:
    """A field of a state; see Leaf.  Fields that are declared without it are replicated copies."""
    return dataclasses.field(default=default, metadata={"rabit": (scope, elastic)})


def copied(tree: Any) -> Any:
    """The tree as it is now; arrays are shared, since methods never write into them."""
    if _is_node(tree):
        return dataclasses.replace(
            tree, **{each.name: copied(getattr(tree, each.name)) for each in _fields(tree)}
        )
    if isinstance(tree, (list, tuple)):
        return type(tree)(copied(each) for each in tree)
    return tree


def leaves(tree: Any, prefix: str) -> dict[str, Leaf]:
    """The values of a tree by path: "conv1.weight/inner/q"."""
    found: dict[str, Leaf] = {}
    _collect(tree, prefix, _UNSAID, found)
    return found


def restored(tree: Any, prefix: str, saved: Mapping[str, Any]) -> Any:
    """A tree like `tree` with the values of `saved`, by the paths of `leaves`."""
    if _is_node(tree):
        return dataclasses.replace(
            tree,
            **{
                each.name: restored(getattr(tree, each.name), f"{prefix}/{each.name}", saved)
                for each in _fields(tree)
            },
        )
    if isinstance(tree, (list, tuple)):
        return type(tree)(
            restored(each, f"{prefix}/{index}", saved) for index, each in enumerate(tree)
        )
    if tree is None:
        return None
    if prefix not in saved:
        raise InvalidArgument(
            f"the saved state has no '{prefix}': it belongs to another method or model. Make the "
            "strategy with the arguments it was saved with."
        )
    return _checked(saved[prefix], tree, prefix)


def resized(tree: Any, before: int, now: int, is_new: bool) -> Any:
    """A tree for this rank after the number of ranks has changed from `before` to `now`.

    is_new: this rank was not there before.  Replicated values are for the caller to broadcast.
    """
    return _resized(tree, _UNSAID, before, now, is_new)


class Undo:
    """The states of slots as they were when the step began."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()

    def keep(self, slot: Any) -> None:
        """Notes the state of `slot`, unless it is noted already."""
        if id(slot) not in self._seen:
            self._seen.add(id(slot))
            self._before.append((slot, copied(slot.state)))

    def commit(self) -> None:
        """The step has happened."""
        self._before.clear()
        self._seen.clear()

    def undo(self) -> None:
        """The step has not happened: states are what they were."""
        for slot, state in self._before:
            slot.state = state
        self.commit()


def _is_node(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def _fields(tree: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(tree)


def _rules(field: dataclasses.Field[Any]) -> tuple[Scope, Elastic]:
    rules: tuple[Scope, Elastic] = field.metadata.get("rabit", _UNSAID)
    return rules


def _collect(tree: Any, prefix: str, rules: tuple[Scope, Elastic], found: dict[str, Leaf]) -> None:
    if _is_node(tree):
        for each in _fields(tree):
            scope, elastic = _rules(each)
            if rules[0] == "local":  # A tree that is this rank's own has no value that is not.
                scope = "local"
            _collect(getattr(tree, each.name), f"{prefix}/{each.name}", (scope, elastic), found)
    elif isinstance(tree, (list, tuple)):
        for index, each in enumerate(tree):
            _collect(each, f"{prefix}/{index}", rules, found)
    elif tree is not None:
        found[prefix] = Leaf(tree, *rules)


def _checked(value: Any, like: Any, path: str) -> Any:
    if isinstance(value, np.ndarray) and value.ndim and not isinstance(like, np.ndarray):
        return value.copy()  # What begins as a number and becomes an array.
    if isinstance(like, np.ndarray):
        array = np.asarray(value)
        if array.shape != like.shape:
            raise InvalidArgument(
                f"the saved state '{path}' has shape {array.shape} and {like.shape} is expected: the "
                "model or the strategy is another one. Load what was saved with this one."
            )
        return array.astype(like.dtype)
    return type(like)(value)


def _resized(tree: Any, rules: tuple[Scope, Elastic], before: int, now: int, is_new: bool) -> Any:
    if _is_node(tree):
        return dataclasses.replace(
            tree,
            **{
                each.name: each.default
                if _rules(each)[1] == "zero" and each.default is not dataclasses.MISSING
                else _resized(getattr(tree, each.name), _rules(each), before, now, is_new)
                for each in _fields(tree)
            },
        )
    if isinstance(tree, (list, tuple)):
        return type(tree)(_resized(each, rules, before, now, is_new) for each in tree)
    elastic = rules[1]
    if tree is None or elastic == "copy":
        return tree
    if elastic == "zero" or is_new:
        return tree * 0
    return tree * (now / before)
