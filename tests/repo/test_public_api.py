"""__all__ is exactly the sorted public names, and every one of them is documented."""

from __future__ import annotations

import importlib
import types

import pytest

PACKAGES = ["rabit", "rabit_torch"]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_the_sorted_public_names(name):
    package = importlib.import_module(name)
    assert package.__all__  # `rabit` loads its names at the first use.
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
