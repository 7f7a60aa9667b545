"""__all__ is exactly the sorted public names, and every one of them is documented."""

from __future__ import annotations

import ast
import importlib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["rabit", "rabit_torch"]
# MXNet's engine has to run dry at both ends.
OWN_IN_MXNET = {"init", "shutdown"}


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_the_sorted_public_names(name):
    package = importlib.import_module(name)
    for each in package.__all__:  # `rabit` loads its names at the first use.
        getattr(package, each)
    public = sorted(
        key
        for key, value in vars(package).items()
        if not key.startswith("_")
        and key != "annotations"
        and (not isinstance(value, types.ModuleType) or key in package.__all__)
    )

    assert list(package.__all__) == sorted(package.__all__)
    assert [key for key in package.__all__ if not key.startswith("__")] == public


@pytest.mark.parametrize("name", PACKAGES)
def test_public_callables_have_docstrings(name):
    package = importlib.import_module(name)
    silent = [
        key
        for key in package.__all__
        if callable(getattr(package, key)) and not (getattr(package, key).__doc__ or "").strip()
    ]

    assert not silent


def test_names_come_from_where_type_checkers_find_them():
    tree = ast.parse((ROOT / "rabit" / "api.py").read_text())
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    told = {
        name.name: each.module
        for each in imports
        if str(each.module).startswith("rabit.")
        for name in each.names
    }

    assert told == importlib.import_module("rabit.api")._MODULE_OF


def names_from_rabit(package):
    """What a package for a framework passes on; read from its text, since MXNet is rarely there."""
    for node in ast.parse((ROOT / package / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module == "rabit":
            return {each.name for each in node.names}
    raise AssertionError(f"{package} imports nothing of rabit")


def test_packages_for_frameworks_pass_on_the_same_names():
    assert names_from_rabit("rabit_mxnet") | OWN_IN_MXNET == names_from_rabit("rabit_torch")


def test_all_of_rabit_mxnet_is_its_sorted_public_names():
    found, listed = set(), []
    for node in ast.parse((ROOT / "rabit_mxnet" / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            found |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = ast.literal_eval(node.value)
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(each) for each in node.targets}

    assert listed == sorted(found)
