"""What we declare of NCCL is what NVIDIA's header declares, and the library of its package loads."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "native" / "backend" / "nccl" / "nccl_functions.h"

# Of nccl.h of NCCL 2.30, the types reduced to what a call passes.  The tests below read it again
# where the package is installed: pip install nvidia-nccl-cu13.
RECORDED = {
    "ncclGetVersion": ["i32", "pointer"],
    "ncclGetUniqueId": ["i32", "pointer"],
    "ncclGetErrorString": ["pointer", "i32"],
    "ncclGetLastError": ["pointer", "pointer"],
    "ncclCommInitRankConfig": ["i32", "pointer", "i32", "id", "i32", "pointer"],
    "ncclCommFinalize": ["i32", "pointer"],
    "ncclCommDestroy": ["i32", "pointer"],
    "ncclCommAbort": ["i32", "pointer"],
    "ncclCommGetAsyncError": ["i32", "pointer", "pointer"],
    "ncclRedOpCreatePreMulSum": ["i32", "pointer", "pointer", "i32", "i32", "pointer"],
    "ncclRedOpDestroy": ["i32", "i32", "pointer"],
    "ncclAllReduce": ["i32", "pointer", "pointer", "size", "i32", "i32", "pointer", "pointer"],
    "ncclReduce": ["i32", "pointer", "pointer", "size", "i32", "i32", "i32", "pointer", "pointer"],
    "ncclBroadcast": ["i32", "pointer", "pointer", "size", "i32", "i32", "pointer", "pointer"],
    "ncclAllGather": ["i32", "pointer", "pointer", "size", "i32", "pointer", "pointer"],
    "ncclReduceScatter": ["i32", "pointer", "pointer", "size", "i32", "i32", "pointer", "pointer"],
    "ncclSend": ["i32", "pointer", "size", "i32", "i32", "pointer", "pointer"],
    "ncclRecv": ["i32", "pointer", "size", "i32", "i32", "pointer", "pointer"],
    "ncclGroupStart": ["i32"],
    "ncclGroupEnd": ["i32"],
}
CONSTANTS = {
    "kSuccess": ("ncclSuccess", 0),
    "kUnhandledCudaError": ("ncclUnhandledCudaError", 1),
    "kSystemError": ("ncclSystemError", 2),
    "kInternalError": ("ncclInternalError", 3),
    "kInvalidArgument": ("ncclInvalidArgument", 4),
    "kInvalidUsage": ("ncclInvalidUsage", 5),
    "kRemoteError": ("ncclRemoteError", 6),
    "kInProgress": ("ncclInProgress", 7),
    "kInt8": ("ncclInt8", 0),
    "kUint8": ("ncclUint8", 1),
    "kInt32": ("ncclInt32", 2),
    "kInt64": ("ncclInt64", 4),
    "kFloat16": ("ncclFloat16", 6),
    "kFloat32": ("ncclFloat32", 7),
    "kFloat64": ("ncclFloat64", 8),
    "kBfloat16": ("ncclBfloat16", 9),
    "kSum": ("ncclSum", 0),
    "kProd": ("ncclProd", 1),
    "kMax": ("ncclMax", 2),
    "kMin": ("ncclMin", 3),
    "kAvg": ("ncclAvg", 4),
    "kNumOps": ("ncclNumOps", 5),
    "kScalarHostImmediate": ("ncclScalarHostImmediate", 1),
    "kConfigMagic": ("NCCL_API_MAGIC", 0xCAFEBEEF),
}
# The first fields of ncclConfig_t; libraries know by `size` and `version` that there are no others.
CONFIG = ["size", "magic", "version", "blocking"]

SHAPES = {
    "int": "i32",
    "int32_t": "i32",
    "ncclResult_t": "i32",
    "Result": "i32",
    "ncclDataType_t": "i32",
    "DataType": "i32",
    "ncclRedOp_t": "i32",
    "RedOp": "i32",
    "ncclScalarResidence_t": "i32",
    "Residence": "i32",
    "size_t": "size",
    "ncclComm_t": "pointer",
    "Comm": "pointer",
    "cudaStream_t": "pointer",
    "Stream": "pointer",
    "ncclUniqueId": "id",
    "UniqueId": "id",
}


def shape_of(text: str) -> str:
    if "*" in text:
        return "pointer"
    return SHAPES[text.removeprefix("const ").split()[0]]


def shapes_of(result: str, parameters: str) -> list[str]:
    return [shape_of(each.strip()) for each in [result, *parameters.split(",")] if each.strip()]


def declared_by_us() -> dict[str, list[str]]:
    text = re.sub(r"[\\\s]+", " ", OURS.read_text().partition("#define RABIT_NCCL_FUNCTIONS(X)")[2])
    found = re.findall(r"X\((nccl\w+), (Result|const char\*)\((.*?)\)\)", text)
    return {name: shapes_of(result, parameters) for name, result, parameters in found}


def constants_of_ours() -> dict[str, int]:
    found = re.findall(r"constexpr \w+ (k\w+) = (0x\w+|\d+);", OURS.read_text())
    return {name: int(value, 0) for name, value in found}


def package() -> Path:
    """The folder of the package, or the test is skipped."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        spec = None
    for place in [] if spec is None else spec.submodule_search_locations or []:
        if (Path(place) / "include" / "nccl.h").exists():
            return Path(place)
    pytest.skip("no nccl.h: pip install nvidia-nccl-cu13")


def header() -> str:
    text = (package() / "include" / "nccl.h").read_text(errors="replace")
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def test_declarations_are_those_on_record() -> None:
    assert declared_by_us() == RECORDED
    ours = constants_of_ours()
    assert ours.pop("kVersionMin") == 21400
    assert ours == {name: value for name, (_, value) in CONSTANTS.items()}
    fields = re.search(r"struct Config \{(.*?)\};", OURS.read_text(), re.DOTALL)
    assert fields is not None and re.findall(r"(\w+);", fields[1]) == CONFIG


def test_declarations_are_those_of_the_installed_header() -> None:
    text = header()
    for name, shapes in RECORDED.items():
        declared = re.search(
            rf"^(ncclResult_t|const char\*)\s+{name}\(([^)]*)\);", text, re.MULTILINE
        )
        assert declared is not None, name
        assert shapes_of(*declared.groups()) == shapes, name
    for name, (theirs, value) in CONSTANTS.items():
        found = re.search(rf"\b{theirs}\s+=?\s*(0x[0-9a-f]+|\d+)", text)
        assert found is not None and int(found[1], 0) == value, (name, theirs)
    assert re.search(r"#define NCCL_UNIQUE_ID_BYTES 128\b", text)
    config = re.search(r"typedef struct ncclConfig_v\d+ \{(.*?)\} ncclConfig_t;", text, re.DOTALL)
    assert config is not None
    assert re.findall(r"(\w+ ?\w*) (\w+);", config[1])[:4] == [
        ("size_t", "size"),
        ("unsigned int", "magic"),
        ("unsigned int", "version"),
        ("int", "blocking"),
    ]


def in_a_process_of_its_own(code: str, path: Path) -> dict[str, object]:
    """The library starts threads, which this process is not to have."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_the_installed_library_answers_without_a_gpu() -> None:
    """Bootstrap and texts do not need one."""
    text = header()
    code = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
library.ncclGetErrorString.restype = ctypes.c_char_p
version, identity = ctypes.c_int(), ctypes.create_string_buffer(128)
results = [library.ncclGetVersion(ctypes.byref(version)), library.ncclGetUniqueId(identity)]
error = library.ncclGetErrorString(6).decode()
print(json.dumps({"results": results, "version": version.value, "error": error,
                  "identity": identity.raw.hex()}))
"""
    found = in_a_process_of_its_own(code, package() / "lib" / "libnccl.so.2")

    version = re.search(r"#define NCCL_VERSION_CODE (\d+)", text)
    assert version is not None and found["version"] == int(version[1])
    assert found["results"] == [0, 0]
    assert "remote process exited" in str(found["error"])
    assert len(str(found["identity"])) == 256 and int(str(found["identity"]), 16) != 0


def test_the_native_library_takes_the_installed_one() -> None:
    path = package() / "lib" / "libnccl.so.2"
    version = re.search(r"#define NCCL_VERSION_CODE (\d+)", header())
    assert version is not None
    number = int(version[1])
    code = "import json, sys; from rabit import _native; "
    code += "print(json.dumps(_native.nccl_library(sys.argv[1])))"

    found = in_a_process_of_its_own(code, path)

    text = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    assert found == {"unavailable": "", "library": str(path), "version": text}


def test_what_is_no_nccl_is_refused_with_what_to_install(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_text("nothing")
    code = "import json, sys; from rabit import _native; "
    code += "print(json.dumps(_native.nccl_library(sys.argv[1])))"

    found = in_a_process_of_its_own(code, path)

    assert str(path) in str(found["unavailable"])
    assert "pip install nvidia-nccl-cu13" in str(found["unavailable"])
