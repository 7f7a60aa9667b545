"""State of gradient methods: trees of dataclasses whose leaves are arrays and numbers.

Methods put new values in place of old ones and never write into them.  What a tree was at some moment
is therefore a copy of its nodes alone, so that undoing a step costs nothing, and saving, loading and
resizing are written once for all methods.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rabit.errors import InvalidArgument

__all__ = ["Change", "Leaf", "Undo", "copied", "leaf", "leaves", "resized", "restored", "sequence_like"]

Scope = Literal["replicated", "local"]
Elastic = Literal["copy", "mean", "zero", "none"]
_UNSAID: tuple[Scope, Elastic] = ("replicated", "copy")


@dataclass(frozen=True)
class Leaf:
    """One value of a state, with what saving and resizing must know.

    scope: "replicated", equal on all ranks; "local", this rank's own.
    elastic: what becomes of a local value when ranks come or go. "mean": its mean over the ranks is
    conserved (a residual): those that stay scale theirs, those that come start with zero.  "zero":
    it starts again, as the field's default if it has one: its shape may be that of a part. "copy":
    those that come take the first rank's.  "none": other ranks cannot continue with it.
    """

    value: Any
    scope: Scope
    elastic: Elastic


def leaf(
    default: Any = dataclasses.MISSING,
    *,
    scope: Scope = "replicated",
    elastic: Elastic = "copy",
    follows: str = "",
) -> Any:
    """A field of a state; see Leaf.  Fields that are declared without it are replicated copies.

    follows: a field whose value it takes, on every rank, when any has come or gone.
    """
    return dataclasses.field(
        default=default, metadata={"rabit": (scope, elastic), "follows": follows}
    )


@dataclass(frozen=True)
class Change:
    """How the ranks that continue from a saved state differ from those that saved it.

    before, now: their numbers.  is_new: this rank was not among them; has_new: some rank was not.
    """

    before: int
    now: int
    is_new: bool = False
    has_new: bool = False

    @property
    def is_none(self) -> bool:
        return self.before == self.now and not self.has_new


def copied(tree: Any) -> Any:
    """The tree as it is now; arrays are shared, since methods never write into them."""
    if tree is None or isinstance(tree, np.ndarray):
        return tree
    if _is_node(tree):
        return _changed(tree, {field.name: copied(getattr(tree, field.name)) for field in _fields(tree)})
    if isinstance(tree, (list, tuple)):
        return sequence_like(tree, [copied(item) for item in tree])
    return tree


def leaves(tree: Any, prefix: str) -> dict[str, Leaf]:
    """The values of a tree by path: "conv1.weight/inner/q"."""
    found: dict[str, Leaf] = {}
    _collect(tree, prefix, _UNSAID, found)
    return found


def restored(tree: Any, prefix: str, saved: Mapping[str, Any]) -> Any:
    """A tree like `tree` with the values of `saved`, by the paths of `leaves`."""
    if _is_node(tree):
        return _changed(
            tree,
            {
                field.name: restored(getattr(tree, field.name), f"{prefix}/{field.name}", saved)
                for field in _fields(tree)
            },
        )
    if isinstance(tree, (list, tuple)):
        return sequence_like(
            tree, [restored(item, f"{prefix}/{index}", saved) for index, item in enumerate(tree)]
        )
    if tree is None:
        return None
    if prefix not in saved:
        raise InvalidArgument(
            f"the saved state has no '{prefix}': it belongs to another method or model. Make the "
            "strategy with the arguments it was saved with."
        )
    return _checked(saved[prefix], tree, prefix)


def resized(tree: Any, prefix: str, change: Change) -> Any:
    """A tree for this rank after a change, with the paths of `leaves`.

    Replicated values of a new rank are those of the others.
    """
    return _resized(tree, prefix, _UNSAID, change)


def sequence_like(tree: Any, items: Iterable[Any]) -> Any:
    """The items in a list or tuple of the type of `tree`; a named tuple takes them one by one."""
    return tree._make(items) if hasattr(tree, "_make") else type(tree)(items)


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


def _changed(node: Any, values: Mapping[str, Any]) -> Any:
    """A copy with other values, and all else that it has: fields that its __init__ does not take, attributes."""
    found = copy.copy(node)
    for name, value in values.items():
        object.__setattr__(found, name, value)  # A frozen one may be copied, too.
    return found


def _is_node(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def _fields(tree: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(tree)


def _rules(field: dataclasses.Field[Any]) -> tuple[Scope, Elastic]:
    rules: tuple[Scope, Elastic] = field.metadata.get("rabit", _UNSAID)
    return rules


def _collect(tree: Any, prefix: str, rules: tuple[Scope, Elastic], found: dict[str, Leaf]) -> None:
    if _is_node(tree):
        for field in _fields(tree):
            scope, elastic = _rules(field)
            if rules[0] == "local":  # A tree that is this rank's own has no value that is not.
                scope = "local"
            _collect(getattr(tree, field.name), f"{prefix}/{field.name}", (scope, elastic), found)
    elif isinstance(tree, (list, tuple)):
        for index, item in enumerate(tree):
            _collect(item, f"{prefix}/{index}", rules, found)
    elif tree is not None:
        found[prefix] = Leaf(tree, *rules)


def _checked(value: Any, like: Any, path: str) -> Any:
    if isinstance(value, np.ndarray) and value.ndim and not isinstance(like, np.ndarray):
        return value.copy()  # What begins as a number and becomes an array.
    if isinstance(like, np.ndarray):
        array = np.asarray(value)
        if array.shape != like.shape:
            raise InvalidArgument(
                f"the saved state '{path}' has shape {array.shape} and {like.shape} is expected: it "
                "comes from another model or strategy. Load a state of this model and strategy."
            )
        return array.astype(like.dtype)
    return type(like)(value)


def _resized(tree: Any, path: str, rules: tuple[Scope, Elastic], change: Change) -> Any:
    if _is_node(tree):
        found = {
            name.name: name.default
            if _rules(name)[1] == "zero" and name.default is not dataclasses.MISSING
            else _resized(getattr(tree, name.name), f"{path}/{name.name}", _rules(name), change)
            for name in _fields(tree)
        }
        for field in _fields(tree):
            if field.metadata.get("follows"):
                found[field.name] = found[field.metadata["follows"]]
        return _changed(tree, found)
    if isinstance(tree, (list, tuple)):
        parts = enumerate(tree)
        return sequence_like(tree, [_resized(saved, f"{path}/{at}", rules, change) for at, saved in parts])
    elastic = rules[1]
    if tree is None or elastic == "copy":
        return tree
    if elastic == "none":
        raise InvalidArgument(
            f"the saved state '{path}' is of {change.before} ranks, and {change.now} continue, or others: its ranks "
            "know each other, and it cannot be divided again. Start as many, or load no state of the strategy."
        )
    if elastic == "zero" or change.is_new:
        return tree * 0
    return tree * (change.now / change.before)
