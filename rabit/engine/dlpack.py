"""Reading a tensor through DLPack without copying and without taking it over.

The capsule is not consumed: holding it keeps the memory alive, dropping it lets the producer free
its description.  Source: DLPack's C header, versions 0.8 (unversioned capsules) and 1.0, and its C exchange
interface, version 1.3.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from rabit.errors import InvalidArgument, Unsupported
from rabit.types import CPU, CUDA, DTYPE_NAMES, DType

__all__ = ["Found", "read_dlpack"]


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_FromObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_WorkStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _ExchangeApi(ctypes.Structure):
    """What a type offers to C code; native/python/dlpack.h reads the same."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", _FromObject),
        ("object_from_managed", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_work_stream", _WorkStream),
    )


_API_ATTRIBUTE, _API_CAPSULE = "__dlpack_c_exchange_api__", b"dlpack_exchange_api"
_READ_ONLY = 1
_VERSION = (1, 0)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)

# (type code, bits) -> DType.  Codes: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 10 to 14 8-bit floats.
_DTYPES = {
    (0, 8): DType.INT8,
    (0, 16): DType.INT16,
    (0, 32): DType.INT32,
    (0, 64): DType.INT64,
    (1, 8): DType.UINT8,
    (1, 16): DType.UINT16,
    (2, 16): DType.FLOAT16,
    (2, 32): DType.FLOAT32,
    (2, 64): DType.FLOAT64,
    (4, 16): DType.BFLOAT16,
    (6, 8): DType.BOOL,
    (1, 32): DType.UINT32,
    (1, 64): DType.UINT64,
    (5, 64): DType.COMPLEX64,
    (5, 128): DType.COMPLEX128,
    (10, 8): DType.FLOAT8_E4M3FN,
    (11, 8): DType.FLOAT8_E4M3FNUZ,
    (12, 8): DType.FLOAT8_E5M2,
    (13, 8): DType.FLOAT8_E5M2FNUZ,
    (14, 8): DType.FLOAT8_E8M0FNU,
}
_CODE_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


# CUDA's name of the default stream that others wait for, as DLPack and the driver have it: the
# producer lets this stream wait for its work.
_LEGACY_STREAM = 1


class Found(NamedTuple):
    """The tensor's own memory, what keeps it alive, and the stream that its values are there for."""

    address: int
    shape: tuple[int, ...]
    dtype: DType
    device: int
    device_index: int
    stream: int
    owner: Any


def read_dlpack(tensor: Any, what: object, writes: bool) -> Found | None:
    """Where a tensor of the CPU or of CUDA lies; None: it is not contiguous in row-major order.

    writes: InvalidArgument if its producer says that it must not be written, as JAX does of every array.
    Of a negated view of torch's, for reading, that is a copy.
    """
    kind, index = CPU, 0
    tensor = _unmarked(tensor, what, writes)
    try:
        kind, index = map(int, tensor.__dlpack_device__())
        if kind not in (CPU, CUDA):
            raise Unsupported(
                f"{what}: the tensor lies on a device of DLPack kind {kind}; tensors in the memory of "
                "the CPU (1) and of CUDA (2) travel. Copy it to the CPU."
            )
        capsule, stream = _shared(tensor, kind, index, writes)
    except (BufferError, TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, Unsupported):
            raise
        advice = ""
        if kind != CPU and _exchange_api_of(type(tensor)) is None:
            # torch before 2.10 shares tensors of the current device alone.
            advice = f", and make its device current (torch.cuda.set_device({index}))"
        raise InvalidArgument(
            f"{what}: {type(tensor).__module__}.{type(tensor).__qualname__} cannot be shared "
            f"through DLPack: {error}. Pass a dense tensor without gradient (tensor.detach()){advice}."
        ) from error
    found, flags = _contents_of(capsule)
    if writes and flags & _READ_ONLY:
        raise InvalidArgument(
            f"{what}: {type(tensor).__module__}.{type(tensor).__qualname__} is read-only, as its library says "
            "through DLPack, so the result cannot be written into it. Use the form without the trailing "
            "underscore."
        )
    dtype = _DTYPES.get((found.type_code, found.type_bits))
    if dtype is None or found.type_lanes != 1:
        name = f"{_CODE_NAMES.get(found.type_code, 'type')}{found.type_bits}"
        raise Unsupported(
            f"{what}: elements of type {name} are not supported (supported: {DTYPE_NAMES}). "
            "Convert the tensor first."
        )
    shape = tuple(found.shape[: found.ndim])
    if found.strides and not _is_contiguous(shape, found.strides[: found.ndim]):
        return None
    address = (found.data or 0) + found.byte_offset
    return Found(address, shape, dtype, kind, index, stream, (tensor, capsule))


def _unmarked(tensor: Any, what: object, writes: bool) -> Any:
    """`tensor`, or a copy of a view of torch's that is negated or conjugated by a mark, which DLPack leaves out."""
    for mark, state, has in (("neg", "negated", "sign"), ("conj", "conjugated", "conjugation")):
        is_marked = getattr(tensor, f"is_{mark}", None)
        if is_marked is None or not is_marked():
            continue
        if writes:
            raise InvalidArgument(
                f"{what}: the tensor is a {state} view (is_{mark}() is True), and its memory has the values without "
                f"their {has}, so the result cannot be written into it. Pass tensor.resolve_{mark}(), or use the "
                "form without the trailing underscore."
            )
        tensor = getattr(tensor, f"resolve_{mark}")()
    return tensor


def _shared(tensor: Any, kind: int, index: int, writes: bool) -> tuple[Any, int]:
    """What describes a tensor, and the stream that its values are there for.  Raises what the producer raises.

    The stream that the interface in C names need not wait for anything, so that no graph is lost that is captured on
    it. torch's `__dlpack__` puts an event on that stream, and refuses tensors of any device but the current one.
    """
    if kind == CPU:
        return _capsule_of(tensor, {}, writes), 0
    api = _exchange_api_of(type(tensor))
    stream = None if api is None else _work_stream(api, index)
    if api is None or stream is None:
        return _capsule_of(tensor, {"stream": _LEGACY_STREAM}, writes), _LEGACY_STREAM
    return _Exchanged(api, tensor), stream


def _exchange_api_of(kind: type) -> _ExchangeApi | None:
    """The C exchange interface of a type, if it has one that is complete."""
    capsule = getattr(kind, _API_ATTRIBUTE, None)
    if capsule is None or not _is_valid(capsule, _API_CAPSULE):
        return None
    address = _get_pointer(capsule, _API_CAPSULE)
    while address:
        api = _ExchangeApi.from_address(address)  # The table lives as long as the process.
        if api.major == _VERSION[0]:
            return api if api.managed_from_object and api.current_work_stream else None
        address = api.older
    return None


class _Exchanged:
    """A description from the C exchange interface, given back when nobody holds it."""

    def __init__(self, api: _ExchangeApi, tensor: Any) -> None:
        """Raises what the producer raises."""
        self._managed = ctypes.POINTER(_Versioned)()
        if getattr(tensor, "requires_grad", False):  # The interface in C does not look.
            raise BufferError("the tensor requires gradient")
        if api.managed_from_object(tensor, ctypes.addressof(self._managed)) or not self._managed:
            raise BufferError("its library gives no description")

    @property
    def described(self) -> _Versioned:
        """Lives as long as this."""
        return self._managed.contents

    def __del__(self) -> None:
        if self._managed and self.described.deleter:
            _Deleter(self.described.deleter)(ctypes.addressof(self.described))


def _work_stream(api: _ExchangeApi, index: int) -> int | None:
    """The stream on which this thread uses a device of CUDA, 0 the default one; None: the library names none."""
    stream = ctypes.c_void_p()
    try:
        failed = api.current_work_stream(CUDA, index, ctypes.addressof(stream))
    except Exception:  # of any type, as the library has it
        return None
    return None if failed else stream.value or 0


def _capsule_of(tensor: Any, options: dict[str, Any], writes: bool) -> Any:
    """Only the newer capsule says whether its memory may be written; older libraries have none."""
    if writes:
        try:
            return tensor.__dlpack__(**options, max_version=_VERSION)
        except TypeError:  # It knows no such argument.
            return tensor.__dlpack__(**options)
    return tensor.__dlpack__(**options)


def _contents_of(capsule: Any) -> tuple[_DLTensor, int]:
    """The tensor that a capsule describes, and its flags."""
    if isinstance(capsule, _Exchanged):
        return capsule.described.tensor, capsule.described.flags
    if not _is_valid(capsule, b"dltensor_versioned"):
        pointer = _get_pointer(capsule, b"dltensor")
        return ctypes.cast(pointer, ctypes.POINTER(_DLTensor)).contents, 0
    pointer = _get_pointer(capsule, b"dltensor_versioned")
    managed = ctypes.cast(pointer, ctypes.POINTER(_Versioned)).contents
    return managed.tensor, managed.flags


def _is_contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 0:
            return True
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True
