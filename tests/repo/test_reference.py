"""The pages of the API name all that is public, and docstrings say what a caller must know."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pages import program_of

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))

import tables

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "reference" / "api"
PACKAGES = ["rabit", "rabit_torch", "rabit_mxnet"]
DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|py:data):: (\w+)", re.M)
SAME_AS_IN_RABIT = re.compile(r"\{py:obj\}`~rabit\.(\w+)`")
BLOCKS = re.compile(
    r"\b([Bb]locks?|[Dd]oes not block|Returns when|[Ww]aits|at once|See `|of every tensor of the list)\b|^Like `|See `"
)
# They look something up, or are values.
TRIVIAL = {
    *("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    *("is_initialized", "is_homogeneous", "default_engine"),
    *("capabilities", "statistics", "summary", "start_timeline", "stop_timeline"),
    *("mpi_built", "mpi_enabled", "mpi_threads_supported", "gloo_built", "gloo_enabled"),
    *("nccl_built", "cuda_built", "ccl_built", "ddl_built", "rocm_built"),
}


def public_names(package: str) -> list[str]:
    """__all__ as it is written: rabit_mxnet cannot be imported everywhere."""
    if package == "rabit.strategies":
        return list(importlib.import_module("rabit.strategies.names").PUBLIC)
    path = ROOT / package / ("api.py" if package == "rabit" else "__init__.py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{path} has no __all__")


def page_of(package: str) -> str:
    """As docs/conf.py gives it to Sphinx."""
    text = (PAGES / f"{package.removeprefix('rabit.')}.md").read_text()
    return tables.public_strategies(text) if package == "rabit.strategies" else text


@pytest.mark.parametrize("package", [*PACKAGES, "rabit.strategies"])
def test_every_public_name_is_on_its_page_once(package):
    text = page_of(package)
    listed = text.partition("## The same as in rabit")[2].partition("\n\n`Horovod")[0]
    named = DIRECTIVE.findall(text) + SAME_AS_IN_RABIT.findall(listed)
    elsewhere = {"elastic", "strategies", "jax", "keras", "lightgbm", "ray", "xgboost", "HorovodInternalError"}

    assert len(named) == len(set(named))
    assert set(public_names(package)) - set(named) <= elsewhere
    assert set(named) - set(public_names(package)) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_example(package):
    text = page_of(package)
    used = set(re.findall(r"\brabit\.(\w+)", program_of(text)))
    own = set(DIRECTIVE.findall(text))
    # Nobody makes these happen in two lines: the pages of errors say when they come.
    errors = set(re.findall(r"^\.\. autoexception:: (\w+)", text, re.M))
    for_runtimes_in_c = {"Job", "JobRuntime"}

    assert own - used - errors - for_runtimes_in_c == set()


def arguments_of(thing: Any) -> list[str]:
    names = list(inspect.signature(thing).parameters)
    return [each for each in names if each not in ("self", "args", "kwargs")]


def common_arguments() -> set[str]:
    """Those that the page of rabit explains for all functions."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page_of("rabit"), re.M)
    return {name for row in rows for name in re.findall(r"\w+", row)}


def documented_functions() -> Iterator[tuple[str, Any]]:
    for package in ("rabit", "rabit_torch"):
        module = importlib.import_module(package)
        for name in public_names(package):
            thing = getattr(module, name)
            if inspect.isfunction(thing) and name not in TRIVIAL:
                yield f"{package}.{name}", thing


def test_docstrings_name_every_argument():
    """Those of the table and those of the function that a docstring refers to are known."""
    missing = []
    for name, thing in documented_functions():
        text = thing.__doc__
        referred = re.search(r"(?:[Ll]ike|See|^)\s*`?(\w+)`?(?:\.|,| of every)", text)
        known = common_arguments() | {"tensor", "tensors"}
        if referred:
            known |= set(arguments_of(getattr(sys.modules[thing.__module__], referred[1], len)))
        missing += [
            f"{name}: {each}"
            for each in arguments_of(thing)
            if each not in known and not re.search(rf"\b{each}\b", text)
        ]

    assert not missing, "\n".join(missing)


def test_docstrings_say_whether_the_call_blocks():
    silent = [name for name, thing in documented_functions() if not BLOCKS.search(thing.__doc__)]

    assert not silent, "\n".join(silent)


def test_docstrings_of_collectives_say_what_they_raise():
    """Those that start from a tensor, except variants that refer to another function."""
    silent = [
        name
        for name, thing in documented_functions()
        if "tensor" in arguments_of(thing)
        and not re.search(r"Raises|[Ll]ike `?\w|See `|_async|^Starts", thing.__doc__)
    ]

    assert not silent, "\n".join(silent)
