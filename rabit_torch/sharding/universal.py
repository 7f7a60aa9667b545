"""Imports a universal checkpoint of DeepSpeed: a folder for each parameter with its float32 values and moments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rabit import InvalidArgument
from rabit_torch.sharding.model import gathered
from rabit_torch.sharding.optimizer import ShardedOptimizer
from rabit_torch.sharding.states import MASTER

__all__ = ["load_universal"]

_VALUES, _STEP = "fp32", "step"


def load_universal(
    source: str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    step: int | None = None,
) -> None:
    """Gives `model` and `optimizer` what lies in a universal checkpoint of DeepSpeed (ds_to_universal.py).

    source: a folder that has zero/, or zero/ itself, with a folder for each parameter: fp32.pt, and a file for each
    moment, such as exp_avg.pt and exp_avg_sq.pt. optimizer: divided with any `shard`, or not. step: the steps that
    the optimizer has taken; None: those of step.pt, which not every version of DeepSpeed writes.
    Each rank reads the whole folder; files are mapped into memory and read without running code of a pickle. Blocks
    until every rank has called it. Raises InvalidArgument for other names or shapes, or if the steps are unknown.
    """
    folder = Path(source)
    folder = folder / "zero" if (folder / "zero").is_dir() else folder
    parameters = dict(model.named_parameters())
    _check_names(folder, parameters)
    with torch.no_grad(), gathered(model, write=True):
        for name, parameter in model.named_parameters():
            parameter.copy_(_read(folder / name / f"{_VALUES}.pt", parameter))
    if optimizer is None:
        return
    if isinstance(optimizer, ShardedOptimizer):
        own = optimizer.state_dict()
        state: Any = _States(folder, parameters, list(own["state"]), step)
        optimizer.load_state_dict({"state": state, "param_groups": own["param_groups"]})
        return
    names = {parameter: name for name, parameter in parameters.items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = _moments(folder, names[parameter], parameter, step)
            optimizer.state[parameter] = {key: value.clone() for key, value in moments.items()}


class _States(Mapping[str, dict[str, Any]]):
    """The state of each parameter, read when it is asked for."""

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, torch.Tensor],
        names: list[str],
        step: int | None,
    ) -> None:
        self._folder = folder
        self._parameters = parameters
        self._names = names
        self._step = step

    def __getitem__(self, name: str) -> dict[str, Any]:
        parameter = self._parameters[name]
        found = _moments(self._folder, name, parameter, self._step)
        if parameter.dtype in (torch.bfloat16, torch.float16):
            found[MASTER] = _read(self._folder / name / f"{_VALUES}.pt", parameter)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _check_names(folder: Path, parameters: Mapping[str, torch.Tensor]) -> None:
    there = {path.parent.name for path in folder.glob(f"*/{_VALUES}.pt")}
    if not there:
        raise InvalidArgument(
            f"load_universal: {folder} has no folder of a parameter with {_VALUES}.pt. Give what ds_to_universal.py "
            "has written"
        )
    missing = sorted(set(parameters) - there)
    if missing:
        raise InvalidArgument(
            f"load_universal: {folder} has no {', '.join(missing[:5])}, which the model has; it has "
            f"{', '.join(sorted(there)[:5])}"
        )


def _moments(folder: Path, name: str, parameter: torch.Tensor, step: int | None) -> dict[str, Any]:
    files = {path.stem: path for path in sorted((folder / name).glob("*.pt"))}
    found: dict[str, Any] = {
        key: _read(path, parameter) for key, path in files.items() if key not in (_VALUES, _STEP)
    }
    if step is None and _STEP not in files:
        raise InvalidArgument(
            f"load_universal: {folder / name} has no {_STEP}.pt. Pass step=, the steps that the optimizer has taken"
        )
    taken = _content(files[_STEP]) if step is None else step
    return {_STEP: torch.tensor(float(taken)), **found}


def _read(path: Path, parameter: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = _content(path)
    if found.numel() != parameter.numel():
        raise InvalidArgument(
            f"load_universal: {path} has {found.numel()} elements, and the parameter has the shape "
            f"{tuple(parameter.shape)}. Build the same model that was saved"
        )
    return found.view(parameter.shape)


def _content(path: Path) -> Any:
    """The tensor of a file, alone or as "param" of a dictionary."""
    found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return found["param"] if isinstance(found, dict) else found
