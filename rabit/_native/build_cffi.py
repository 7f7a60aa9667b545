"""Cuts the declarations out of rabit_abi.h, and writes the module that makes importing cheap.

    python build_cffi.py rabit_abi.h _abi.py

Parsing C declarations takes cffi about 50 ms; the module that it writes loads in a millisecond.
The build of a wheel runs this; a source tree parses the header when it is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cffi

_BEGIN = "/* cdef-begin */"
_END = "/* cdef-end */"


def declarations(header: str) -> str:
    """The block between the markers of the header, without the export macro."""
    before, begin, rest = header.partition(_BEGIN)
    block, end, after = rest.partition(_END)
    if not (before and begin and end and after):
        raise ValueError(f"the header has no block between {_BEGIN} and {_END}")
    return block.replace("RABIT_API ", "")


def make_ffi(header: Path) -> Any:
    """A cffi.FFI with the declarations of the header."""
    ffi = cffi.FFI()
    ffi.cdef(declarations(header.read_text(encoding="utf-8")))
    return ffi


def main() -> None:
    header, output = Path(sys.argv[1]), Path(sys.argv[2])
    ffi = make_ffi(header)
    ffi.set_source("rabit._native._abi", None)
    ffi.emit_python_code(str(output))


if __name__ == "__main__":
    main()
