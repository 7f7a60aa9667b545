"""MXNet, imported after NumPy's removed names are back; the one module that imports it first."""

from __future__ import annotations

import builtins
import importlib
import types
from typing import Any

import numpy as np

_INSTALL = "Install the set that works: pip install 'mariza-rabit[mxnet]' (mxnet 1.9.1, numpy < 1.27)."


def _restore_removed_names() -> list[str]:
    """Puts back the names of Python types that NumPy 1.24 removed; returns those."""
    missing = [
        each
        for each in ("bool", "int", "float", "complex", "object", "str")
        if each not in vars(np)
    ]
    for each in missing:
        setattr(np, each, getattr(builtins, each))
    return missing


def _import_mxnet() -> types.ModuleType:
    try:
        mxnet: types.ModuleType = importlib.import_module("mxnet")
    except ModuleNotFoundError as error:
        if error.name != "mxnet":
            raise
        raise ModuleNotFoundError(
            f"rabit_mxnet needs MXNet, and it is not installed. {_INSTALL}", name="mxnet"
        ) from error
    except (AttributeError, ImportError) as error:
        raise ImportError(
            f"MXNet cannot be imported with NumPy {np.__version__}: {error}. {_INSTALL}"
        ) from error
    return mxnet


RESTORED: list[str] = _restore_removed_names() if np.lib.NumpyVersion(np.__version__) < "2.0.0" else []
mx: Any = _import_mxnet()


def notice() -> str | None:
    """What was changed in NumPy so that MXNet can be imported; None if nothing."""
    if not RESTORED:
        return None
    names = ", ".join(f"np.{each}" for each in RESTORED)
    return (
        f"NumPy {np.__version__} lacks {names}, which MXNet {mx.__version__} uses; they are put back "
        "in this process"
    )
