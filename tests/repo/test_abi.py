"""The C ABI: parses in cffi, exports nothing else, and never changes a value."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import cffi
import pytest

import rabit
from rabit import _native

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "native" / "include" / "rabit_abi.h"

# Frozen: a value that is once given out keeps its meaning for ever.
VALUES = {
    "RABIT_OK": 0,
    "RABIT_INVALID_ARGUMENT": 1,
    "RABIT_MISMATCH": 2,
    "RABIT_UNSUPPORTED": 3,
    "RABIT_PEER_LOST": 4,
    "RABIT_TIMED_OUT": 5,
    "RABIT_ABORTED": 6,
    "RABIT_RESOURCE_EXHAUSTED": 7,
    "RABIT_INTERNAL": 8,
    "RABIT_UINT8": 0,
    "RABIT_INT8": 1,
    "RABIT_UINT16": 2,
    "RABIT_INT16": 3,
    "RABIT_INT32": 4,
    "RABIT_INT64": 5,
    "RABIT_FLOAT16": 6,
    "RABIT_FLOAT32": 7,
    "RABIT_FLOAT64": 8,
    "RABIT_BOOL": 9,
    "RABIT_BFLOAT16": 10,
    "RABIT_UPDATE_ADD": 1,
    "RABIT_UPDATE_FILL": 2,
    "RABIT_UPDATE_CLOCK": 3,
    "RABIT_AVERAGE": 0,
    "RABIT_SUM": 1,
    "RABIT_MIN": 3,
    "RABIT_MAX": 4,
    "RABIT_PRODUCT": 5,
    "RABIT_BIT_AND": 6,
    "RABIT_BIT_OR": 7,
    "RABIT_BIT_XOR": 8,
    "RABIT_ALLREDUCE": 0,
    "RABIT_ALLGATHER": 1,
    "RABIT_BROADCAST": 2,
    "RABIT_REDUCE": 3,
    "RABIT_REDUCESCATTER": 4,
    "RABIT_ALLTOALL": 5,
    "RABIT_GATHER": 6,
    "RABIT_SCATTER": 7,
    "RABIT_BARRIER": 8,
    "RABIT_SEND": 9,
    "RABIT_RECV": 10,
    "RABIT_JOIN": 11,
    "RABIT_VOTE": 12,
}


def cdef() -> str:
    text = HEADER.read_text()
    block = text[text.index("/* cdef-begin */") : text.index("/* cdef-end */")]
    return block.replace("RABIT_API ", "")


def test_the_header_parses_in_cffi():
    ffi = cffi.FFI()
    ffi.cdef(cdef())

    assert ffi.sizeof("rabit_request") % 8 == 0


def test_no_value_changed():
    found = {
        name: int(value) for name, value in re.findall(r"\b(RABIT_[A-Z0-9_]+) = (\d+)", cdef())
    }

    assert {name: found.get(name) for name in VALUES} == VALUES


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_header_is_valid_c11(tmp_path):
    source = tmp_path / "probe.c"
    source.write_text(f'#include "{HEADER}"\nint main(void) {{ return 0; }}\n')
    done = subprocess.run(
        ["cc", "-std=c11", "-pedantic-errors", "-Wall", "-Werror", "-fsyntax-only", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_every_declared_function_is_exported_and_nothing_else():
    declared = set(re.findall(r"\b(rabit_\w+)\(", cdef()))
    declared -= {"rabit_request"}
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", _native.library_path()],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exported = {line.split()[-1].split("@")[0] for line in listing.splitlines() if " T " in line}

    assert exported == declared


def test_the_package_and_the_library_have_one_abi_version():
    assert rabit.__version__
    assert f"#define RABIT_ABI_VERSION {_native.abi_version()}" in HEADER.read_text()
