"""What we declare of the CUDA driver is what NVIDIA's header declares."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "native" / "base" / "device" / "cuda_functions.h"

# Of cuda.h of CUDA 13.5, the types reduced to what a call passes.  The test below reads it again where
# the package is installed: pip install nvidia-cuda-runtime.
RECORDED = {
    "cuInit": ["u32"],
    "cuDriverGetVersion": ["pointer"],
    "cuGetErrorName": ["i32", "pointer"],
    "cuGetErrorString": ["i32", "pointer"],
    "cuDeviceGetCount": ["pointer"],
    "cuDeviceGet": ["pointer", "i32"],
    "cuDevicePrimaryCtxRetain": ["pointer", "i32"],
    "cuDevicePrimaryCtxRelease_v2": ["i32"],
    "cuCtxPushCurrent_v2": ["pointer"],
    "cuCtxPopCurrent_v2": ["pointer"],
    "cuStreamCreate": ["pointer", "u32"],
    "cuStreamDestroy_v2": ["pointer"],
    "cuStreamWaitEvent": ["pointer", "pointer", "u32"],
    "cuStreamIsCapturing": ["pointer", "pointer"],
    "cuThreadExchangeStreamCaptureMode": ["pointer"],
    "cuEventCreate": ["pointer", "u32"],
    "cuEventDestroy_v2": ["pointer"],
    "cuEventRecord": ["pointer", "pointer"],
    "cuEventQuery": ["pointer"],
    "cuMemHostAlloc": ["pointer", "size", "u32"],
    "cuMemFreeHost": ["pointer"],
    "cuMemAlloc_v2": ["pointer", "size"],
    "cuMemFree_v2": ["u64"],
    "cuMemcpyDtoDAsync_v2": ["u64", "u64", "size", "pointer"],
    "cuMemcpyDtoHAsync_v2": ["pointer", "u64", "size", "pointer"],
    "cuMemcpyHtoDAsync_v2": ["u64", "pointer", "size", "pointer"],
}
CONSTANTS = {
    "kSuccess": ("CUDA_SUCCESS", 0),
    "kInvalidValue": ("CUDA_ERROR_INVALID_VALUE", 1),
    "kOutOfMemory": ("CUDA_ERROR_OUT_OF_MEMORY", 2),
    "kNotInitialized": ("CUDA_ERROR_NOT_INITIALIZED", 3),
    "kNoDevice": ("CUDA_ERROR_NO_DEVICE", 100),
    "kInvalidDevice": ("CUDA_ERROR_INVALID_DEVICE", 101),
    "kInvalidContext": ("CUDA_ERROR_INVALID_CONTEXT", 201),
    "kInvalidHandle": ("CUDA_ERROR_INVALID_HANDLE", 400),
    "kNotReady": ("CUDA_ERROR_NOT_READY", 600),
    "kIllegalAddress": ("CUDA_ERROR_ILLEGAL_ADDRESS", 700),
    "kCaptureUnsupported": ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", 900),
    "kCaptureIsolation": ("CUDA_ERROR_STREAM_CAPTURE_ISOLATION", 905),
    "kCaptureImplicit": ("CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", 906),
    "kStreamNonBlocking": ("CU_STREAM_NON_BLOCKING", 1),
    "kEventDisableTiming": ("CU_EVENT_DISABLE_TIMING", 2),
    "kHostAllocPortable": ("CU_MEMHOSTALLOC_PORTABLE", 1),
    "kCaptureStatusNone": ("CU_STREAM_CAPTURE_STATUS_NONE", 0),
    "kCaptureModeRelaxed": ("CU_STREAM_CAPTURE_MODE_RELAXED", 2),
}

SHAPES = {
    "int": "i32",
    "int32_t": "i32",
    "CUresult": "i32",
    "Result": "i32",
    "CUdevice": "i32",
    "Device": "i32",
    "unsigned int": "u32",
    "uint32_t": "u32",
    "size_t": "size",
    "CUdeviceptr": "u64",
    "Pointer": "u64",
    "CUcontext": "pointer",
    "Context": "pointer",
    "CUstream": "pointer",
    "Stream": "pointer",
    "CUevent": "pointer",
    "Event": "pointer",
}


def shape_of(parameter: str) -> str:
    if "*" in parameter:
        return "pointer"
    return SHAPES[" ".join(parameter.split()[:-1]).removeprefix("const ")]


def shapes_of(parameters: str) -> list[str]:
    return [shape_of(each.strip()) for each in parameters.split(",")]


def declared_by_us() -> dict[str, list[str]]:
    found = re.findall(r"X\((cu\w+), Result\((.*?)\)\)", OURS.read_text())
    return {name: shapes_of(parameters) for name, parameters in found}


def constants_of_ours() -> dict[str, int]:
    found = re.findall(r"constexpr \w+ (k\w+) = (\d+);", OURS.read_text())
    return {name: int(value) for name, value in found}


def header_of_nvidia() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        for header in sorted(Path(folder).glob("*/include/cuda.h")):
            return header
    return None


def test_declarations_are_those_on_record() -> None:
    assert declared_by_us() == RECORDED
    assert constants_of_ours() == {name: value for name, (_, value) in CONSTANTS.items()}


def test_declarations_are_those_of_the_installed_header() -> None:
    header = header_of_nvidia()
    if header is None:
        pytest.skip("no cuda.h: pip install nvidia-cuda-runtime")
    text = header.read_text(errors="replace")
    for name, shapes in RECORDED.items():
        plain = name.removesuffix("_v2")
        # A version suffix is in a macro of the header; without one there must be none.
        suffixed = re.search(rf"#define {plain}\s+(?:__CUDA_API_PTSZ\()?{plain}_v2\b", text)
        assert (suffixed is not None) == name.endswith("_v2"), name
        declared = re.search(rf"^CUresult CUDAAPI {plain}\(([^)]*)\);", text, re.M)
        assert declared is not None, name
        assert shapes_of(declared[1]) == shapes, name
    for name, (theirs, value) in CONSTANTS.items():
        found = re.search(rf"\b{theirs}\s+=?\s*(0x[0-9a-f]+|\d+)", text)
        assert found is not None and int(found[1], 0) == value, (name, theirs)
