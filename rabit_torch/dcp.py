"""Imports what torch.distributed.checkpoint has saved as a generation that rabit_torch.Checkpoint restores.

    rabit_torch.dcp.import_checkpoint("step-1000", "checkpoints", step=1000)
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from rabit import InvalidArgument
from rabit.checkpoint import Alone, NumpyAdapter
from rabit.checkpoint import Checkpoint as _Checkpoint
from rabit_torch.checkpoint import TorchAdapter

__all__ = ["import_checkpoint", "read"]

# What programs call the objects of a Checkpoint, the usual name first.
_USUAL = {"model": ("model",), "optimizer": ("optimizer", "optim")}


def import_checkpoint(
    source: str | Path,
    folder: str | Path,
    *,
    step: int = 0,
    places: Mapping[str, str] | None = None,
) -> int:
    """Writes a generation with what lies in `source`; returns its number.

    source: a folder that torch.distributed.checkpoint has saved, by any number of ranks.  step: that the
    generation is of, since such folders have none.
    places: where the state of an object lies, such as {"model": "app/net", "optimizer": "app/optim"};
    without it "model", and "optimizer" or "optim".  A folder that has nothing but tensors is a model.
    Everything else becomes `state` of what Checkpoint.restore() returns.
    torch pickles everything that is not a tensor, and reading a pickle runs code: import what you trust.
    Raises InvalidArgument for a folder that is not a checkpoint, and for an empty place.
    """
    tree = read(source)
    state = _divided(tree, _places(tree, places, Path(source)))
    adapters = (TorchAdapter(), NumpyAdapter())
    with _Checkpoint(folder, keep=2**31, peers=Alone(), adapters=adapters) as checkpoint:
        checkpoint.save(state, step=step)
        number = checkpoint.wait()
    assert number is not None  # wait() raises what a save has failed with.
    return number


def read(source: str | Path) -> dict[str, Any]:
    """The state dictionary that torch.distributed.checkpoint has saved, with whole tensors on the CPU."""
    if not (Path(source) / ".metadata").is_file():
        raise InvalidArgument(
            f"{source} has no file .metadata: it is not a checkpoint of torch.distributed.checkpoint. Give the "
            "folder that dcp.save() was given."
        )
    metadata = FileSystemReader(source).read_metadata()
    flat: dict[str, Any] = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        if isinstance(each, TensorStorageMetadata)
        else None
        for name, each in metadata.state_dict_metadata.items()
    }
    _load_alone(flat, FileSystemReader(source))
    paths: Mapping[str, tuple[str | int, ...]] = metadata.planner_data or {}
    tree: Any = {}
    for name, value in flat.items():
        tree = _put(tree, paths.get(name, (name,)), value)
    found: dict[str, Any] = tree
    return found


def _load_alone(flat: dict[str, Any], reader: FileSystemReader) -> None:
    """Fills `flat`, also in a process of a job, whose other ranks do not take part."""
    if "no_dist" in inspect.signature(load).parameters:
        load(flat, storage_reader=reader, no_dist=True)
        return
    # That of torch 2.4 cannot be told so. What can is deprecated, and newer ones may have it no more.
    from torch.distributed.checkpoint.state_dict_loader import load_state_dict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_state_dict(flat, reader, no_dist=True)


def _put(tree: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """`tree` with `value` at `path`; a number in a path is a place in a list."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        tree = [] if tree is None else tree
        tree += [None] * (key + 1 - len(tree))
        tree[key] = _put(tree[key], rest, value)
        return tree
    tree = {} if tree is None else tree
    tree[key] = _put(tree.get(key), rest, value)
    return tree


def _places(
    tree: Mapping[str, Any], given: Mapping[str, str] | None, source: Path
) -> dict[str, tuple[str, ...]]:
    """The path of each object's state."""
    if given:
        return {role: tuple(filter(None, place.split("/"))) for role, place in given.items()}
    found: dict[str, tuple[str, ...]] = {
        role: (name,)
        for role, names in _USUAL.items()
        for name in names
        if isinstance(tree.get(name), dict)
    }
    if not found and all(isinstance(each, torch.Tensor) for each in tree.values()):
        return {"model": ()}
    if not found:
        raise InvalidArgument(
            f"{source} has no 'model' and no 'optimizer', only {', '.join(map(repr, tree))}. Say where they lie: "
            "--as model=app/net, or places={'model': 'app/net'}."
        )
    return found


def _divided(
    tree: dict[str, Any], places: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """The states of the objects by role, and under "state" what is left."""
    found: dict[str, Any] = {}
    for role, place in places.items():
        inner, last = tree, None
        for key in place:
            if not isinstance(inner, dict) or key not in inner:
                raise InvalidArgument(
                    f"there is nothing at '{'/'.join(place)}' for {role}: '{key}' is not among "
                    f"{', '.join(map(repr, inner)) if isinstance(inner, dict) else 'tensors'}."
                )
            last, inner = inner, inner[key]
        if last is None:
            tree = {}
        else:
            del last[place[-1]]
        found[role] = _as_optimizer(inner) if role.startswith("optimizer") else inner
    return {**found, "state": tree or None}


def _as_optimizer(state: Any) -> Any:
    """As load_state_dict takes it: keys of parameters that were numbers are numbers again."""
    if not isinstance(state, dict) or "param_groups" not in state:
        return state
    keys = {str(key): key for group in state["param_groups"] for key in group["params"]}
    entries = {keys.get(name, name): each for name, each in state.get("state", {}).items()}
    return {**state, "state": entries}
