"""A state as a JSON document and tensors: dictionaries, lists and plain values, without pickle.

What JSON has no form for is an object with the key "$": {"$": "tuple", "items": […]}.
"""

from __future__ import annotations

import base64
import math
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rabit.checkpoint.leaves import Adapter, Leaf, Part
from rabit.errors import InvalidArgument

__all__ = ["Encoded", "PartLeaf", "decode", "encode", "first_difference"]

_DEEPEST = 100
_TAG = "$"


@dataclass(frozen=True)
class PartLeaf:
    """The rows that this rank has of a divided tensor; see Part."""

    leaf: Leaf
    start: int
    length: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return (self.length, *self.leaf.shape[1:])


@dataclass
class Encoded:
    """A state: the document, and the tensors by the paths that stand in it, in order."""

    document: Any = None
    leaves: dict[str, Leaf] = field(default_factory=dict)
    parts: dict[str, PartLeaf] = field(default_factory=dict)


def encode(tree: Any, adapters: Sequence[Adapter], *, allow_pickle: bool = False) -> Encoded:
    """`tree` as a document and tensors.

    Raises InvalidArgument with the path of what is neither plain nor a tensor, unless
    `allow_pickle`; Unsupported for element types that files do not hold.
    """
    encoder = _Encoder(adapters, allow_pickle)
    encoder.found.document = encoder.encode(tree, ())
    return encoder.found


def decode(
    document: Any,
    tensor: Callable[[str, str], Any],
    part: Callable[[str, str], Part],
    *,
    allow_pickle: bool = False,
) -> Any:
    """The tree of a document.

    tensor, part: give the tensor of a path, for the adapter of this name.
    Raises InvalidArgument if the document has pickles, unless `allow_pickle`.
    """
    return _Decoder(tensor, part, allow_pickle).decode(document)


def first_difference(one: Any, other: Any, path: str = "") -> str:
    """Where two documents differ first: a path and the two values; "" if they are equal."""
    if type(one) is type(other) and isinstance(one, dict):
        for key in [*one, *(item for item in other if item not in one)]:
            if key not in one or key not in other:
                return f"'{path}/{key}' is only on one of them"
            found = first_difference(one[key], other[key], f"{path}/{key}")
            if found:
                return found
        return "" if list(one) == list(other) else f"the keys of '{path}' have another order"
    if type(one) is type(other) and isinstance(one, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next(
            (found for at, two in pairs if (found := first_difference(*two, f"{path}/{at}"))), ""
        )
    same = type(one) is type(other) and one == other
    return "" if same else f"'{path}' is {_short(one)} and {_short(other)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _Encoder:
    def __init__(self, adapters: Sequence[Adapter], allow_pickle: bool) -> None:
        self.found = Encoded()
        self._adapters = adapters
        self._allow_pickle = allow_pickle

    def encode(self, value: Any, keys: tuple[str, ...]) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {_TAG: "float", "value": str(value)}
        if len(keys) > _DEEPEST:
            raise InvalidArgument(
                f"the state is deeper than {_DEEPEST} levels at '{_text(keys[:3])}/…': does it hold "
                "itself? Leave that out."
            )
        if type(value) in (dict, OrderedDict):
            return self._mapping(value, keys)
        if type(value) is list:
            return self._items(value, keys)
        if type(value) is tuple:
            return {_TAG: "tuple", "items": self._items(value, keys)}
        if type(value) is Counter:
            return {_TAG: "counter", "items": self._pairs(value, keys)}
        if type(value) is bytes:
            return {_TAG: "bytes", "base64": base64.b64encode(value).decode()}
        return self._other(value, keys)

    def _items(self, value: Sequence[Any], keys: tuple[str, ...]) -> list[Any]:
        return [self.encode(item, (*keys, str(index))) for index, item in enumerate(value)]

    def _mapping(self, value: Mapping[Any, Any], keys: tuple[str, ...]) -> Any:
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: self.encode(item, (*keys, key)) for key, item in value.items()}
        return {_TAG: "dict", "items": self._pairs(value, keys)}

    def _pairs(self, value: Mapping[Any, Any], keys: tuple[str, ...]) -> list[list[Any]]:
        return [
            [self.encode(key, (*keys, "(key)")), self.encode(item, (*keys, str(key)))]
            for key, item in value.items()
        ]

    def _other(self, value: Any, keys: tuple[str, ...]) -> Any:
        path = _text(keys)
        if isinstance(value, Part):
            return self._part(value, path)
        leaf = self._leaf(value, path)
        if leaf is not None:
            name = self._unused(path)
            self.found.leaves[name] = leaf
            return {_TAG: "tensor", "path": name, "as": leaf.adapter}
        if self._allow_pickle:
            data = pickle.dumps(value, protocol=4)
            return {_TAG: "pickle", "base64": base64.b64encode(data).decode()}
        kind = _name_of(type(value))
        if any(_name_of(base) == "torch.Tensor" for base in type(value).__mro__):
            raise InvalidArgument(
                f"the state has a {kind} at '{path}'. Save it with rabit_torch.Checkpoint, which takes the same "
                "arguments and tensors of torch, or as an array."
            )
        raise InvalidArgument(
            f"the state has an object of {kind} at '{path}', and a checkpoint takes tensors, numbers, "
            "text, bytes, None, and dictionaries, lists and tuples of them. Put in what it is made of "
            "(its state_dict(), vars() or the like), leave it out, or allow pickle with "
            "Checkpoint(..., allow_pickle=True): loading such a checkpoint runs code that it holds."
        )

    def _leaf(self, value: Any, path: str) -> Leaf | None:
        for adapter in self._adapters:
            leaf = adapter.leaf(value, path)
            if leaf is not None:
                return leaf
        return None

    def _part(self, value: Part, path: str) -> Any:
        leaf = self._leaf(value.value, path)
        if leaf is None or not leaf.shape:
            raise InvalidArgument(
                f"the Part at '{path}' holds {type(value.value).__name__}: expected a tensor of at "
                "least one dimension, whose rows are divided over the ranks."
            )
        if not 0 <= value.start <= value.start + leaf.shape[0] <= value.length:
            raise InvalidArgument(
                f"the Part at '{path}' has rows {value.start} to {value.start + leaf.shape[0]} of "
                f"{value.length}. Rows count from 0."
            )
        name = self._unused(path)
        self.found.parts[name] = PartLeaf(leaf, value.start, value.length)
        return {_TAG: "part", "path": name, "as": leaf.adapter}

    def _unused(self, path: str) -> str:
        """{"a/b": x, "a": {"b": y}} has two tensors of one path."""
        while path in self.found.leaves or path in self.found.parts:
            path += "'"
        return path


class _Decoder:
    def __init__(
        self,
        tensor: Callable[[str, str], Any],
        part: Callable[[str, str], Part],
        allow_pickle: bool,
    ) -> None:
        self._tensor = tensor
        self._part = part
        self._allow_pickle = allow_pickle

    def decode(self, document: Any) -> Any:
        if isinstance(document, list):
            return [self.decode(item) for item in document]
        if not isinstance(document, dict):
            return document
        if _TAG not in document:
            return {key: self.decode(item) for key, item in document.items()}
        kind = document[_TAG]
        if kind in ("dict", "counter"):
            made = {self.decode(key): self.decode(item) for key, item in document["items"]}
            return made if kind == "dict" else Counter(made)
        if kind == "tuple":
            return tuple(self.decode(item) for item in document["items"])
        if kind == "float":
            return float(document["value"])
        if kind == "tensor":
            return self._tensor(document["path"], document["as"])
        if kind == "part":
            return self._part(document["path"], document["as"])
        return self._bytes(kind, document)

    def _bytes(self, kind: str, document: Mapping[str, str]) -> Any:
        data = base64.b64decode(document["base64"])
        if kind == "bytes":
            return data
        if kind != "pickle":
            raise InvalidArgument(
                f"the checkpoint has a value of kind {kind!r}, which this version of rabit does not "
                "know. Load it with the version that saved it, or a newer one."
            )
        if not self._allow_pickle:
            raise InvalidArgument(
                "the checkpoint holds pickles, and loading them runs code that it brings along. If you "
                "trust its writer, load it with allow_pickle=True."
            )
        try:
            return pickle.loads(data)
        except Exception as error:
            raise InvalidArgument(
                f"the checkpoint has a pickle that cannot be loaded here: {type(error).__name__}: {error}. Make "
                "what defines the object importable, or load it with the versions that saved it."
            ) from error


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _text(keys: Sequence[str]) -> str:
    return "/".join(keys)
