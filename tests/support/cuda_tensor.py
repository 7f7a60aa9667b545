"""Torch tensors in the memory of the emulated CUDA driver, for a torch without CUDA.

C++ takes them for tensors of the CPU without storage, Python for tensors of CUDA.  Their elements lie
where only kernels of the emulation can reach them: at `data_ptr()` any access of the host ends the
process.  Operations of torch run at once, as kernels would that the host waits for.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch
from support.emulated_cuda import Driver
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map

from rabit_torch.sharding.guarded import DividedParameter

driver = Driver(os.environ["EMULATED_CUDA"])
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


class _Memory:
    """An allocation, as long as a tensor lies in it."""

    def __init__(self, device: int, size: int) -> None:
        self.device = device
        self.address, self.inside = driver.allocate(device, size)


# Nothing is freed: what a tensor's storage has become is found by where it begins.
_memory: dict[int, _Memory] = {}
# (tensor, stream) of calls of record_stream.
recorded: list[Any] = []


def _place(elements: torch.Tensor, device: int) -> torch.Tensor:
    """A copy of `elements` in memory of a device, as kernels see it."""
    dense = elements.detach().clone(memory_format=torch.preserve_format)
    size = dense.untyped_storage().nbytes()
    memory = _Memory(device, size)
    buffer = (ctypes.c_char * max(size, 1)).from_address(memory.inside)
    storage = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    _memory[storage.data_ptr()] = memory
    made = torch.empty(0, dtype=dense.dtype).set_(
        storage, 0, tuple(dense.shape), tuple(dense.stride())
    )
    return made.copy_(dense)


class Cuda(torch.Tensor):
    """A tensor on a CUDA device."""

    inside: torch.Tensor

    @staticmethod
    def __new__(cls, inside: torch.Tensor) -> Cuda:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            inside.shape,
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            device="cpu",
        )
        made.inside = inside
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self, **_: Any) -> str:
        return f"Cuda({self.inside!r}, device='{self.device}')"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in _flat(args) if isinstance(each, Cuda)]
        plain = [each for each in _flat(args) if isinstance(each, torch.Tensor) and not isinstance(each, Cuda)]
        if given and func is not torch.ops.aten.copy_.default and any(each.dim() for each in plain):
            raise RuntimeError(f"{func}: expected all tensors on one device, and there are {given} and {plain}")
        index = given[0].device.index if given else 0
        if not _only_looks(func):
            _finish(given)
        result = func(*tree_map(_unwrap, args), **tree_map(_unwrap, kwargs or {}))
        back = {id(each.inside): each for each in given}

        def wrap(each: Any) -> Any:
            if not isinstance(each, torch.Tensor) or isinstance(each, Cuda) or each.is_sparse or each.is_meta:
                return each
            if any(each is other for other in plain):  # So was this one, on the host.
                return each
            if id(each) in back:  # It was changed in place.
                return back[id(each)]
            is_view = each.untyped_storage().data_ptr() in _memory
            return Cuda(each if is_view else _place(each, index))

        return tree_map(wrap, result)

    @property
    def _own(self) -> _Memory:
        return _memory[self.inside.untyped_storage().data_ptr()]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", _memory[self.inside.untyped_storage().data_ptr()].device)

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: Cuda) -> None:
        self.inside = value.inside

    def as_subclass(self, kind: Any) -> Any:  # type: ignore[override]
        """Of a kind that lets nobody read it."""
        return self.inside.as_subclass(kind)

    def data_ptr(self) -> int:
        if not self.numel():  # As torch has it.
            return 0
        return self._own.address + self.inside.data_ptr() - self._own.inside

    def record_stream(self, stream: Any) -> None:
        """Only notes that it was called: nothing is freed here."""
        recorded.append((self, stream))

    def cpu(self, **_: Any) -> torch.Tensor:  # type: ignore[override]
        _finish([self])
        return self.detach().inside.clone()


def _only_looks(func: Any) -> bool:
    """True for views, which launch no kernel."""
    infos = [each.alias_info for each in func._schema.returns]
    return bool(infos) and all(each is not None and not each.is_write for each in infos)


def _finish(tensors: list[Cuda]) -> None:
    """Waits for what the current stream has before: torch would put the operation behind it."""
    for index in {each.device.index for each in tensors}:
        driver.finish(index, current.cuda_stream)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [each for item in value for each in _flat(item)]
    return [value]


def _unwrap(value: Any) -> Any:
    return value.inside if isinstance(value, Cuda) else value


def on_device(tensor: torch.Tensor, device: int = 0) -> Cuda:
    """A copy of `tensor` on a device."""
    return Cuda(_place(tensor, device))


def to_device(module: torch.nn.Module, device: int = 0) -> torch.nn.Module:
    """Puts parameters and buffers of `module` on a device."""
    for owner in module.modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None:
                owner._parameters[name] = torch.nn.Parameter(on_device(parameter.data, device))
        for name, buffer in list(owner._buffers.items()):
            if buffer is not None:
                owner._buffers[name] = on_device(buffer, device)
    return module


_to = torch.Tensor.to


def _moved(tensor: torch.Tensor, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
    """torch.Tensor.to, for which a torch without CUDA knows no such device."""
    if args and isinstance(args[0], str | torch.device):
        device, *args = args  # type: ignore[assignment]
    if device is None:
        return _to(tensor, *args, **kwargs)
    device = torch.device(device)
    kwargs.pop("copy", None)
    if device.type != "cuda":
        return _to(tensor.cpu(), *args, **kwargs) if tensor.is_cuda else _to(tensor, *args, **kwargs, device=device)
    converted = _to(tensor, *args, **kwargs)
    return converted if converted.is_cuda else on_device(converted, device.index or 0)


def _making(make: Any) -> Any:
    """A function of torch that makes tensors, likewise."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda":
            found: torch.Tensor = make(*args, **kwargs, device=device)
            return found
        return on_device(make(*args, **kwargs, device="cpu"), torch.device(device).index or 0)

    return made


_device_constructors()  # `with torch.device(...)` keeps the functions that it finds first.
torch.Tensor.to = _moved  # type: ignore[assignment, method-assign]
for name in ("zeros", "empty", "zeros_like", "empty_like"):
    setattr(torch, name, _making(getattr(torch, name)))


def _asks(name: str) -> Any:
    """What a parameter in parts, which is no Cuda any more, says of its device."""
    of_host = getattr(torch.Tensor, name)
    of_device = vars(Cuda)[name]
    return property(lambda self: (of_device if "inside" in vars(self) else of_host).__get__(self))


for name in ("device", "is_cuda", "is_cpu"):
    setattr(DividedParameter, name, _asks(name))


class _Stream:
    def __init__(self, handle: int, device: int = 0) -> None:
        self.cuda_stream = handle
        self.device = device

    def wait_stream(self, other: _Stream) -> None:
        """Puts a wait for what `other` has now."""
        driver.push_device(other.device)
        event, popped = ctypes.c_void_p(), ctypes.c_void_p()
        assert driver.library.cuEventCreate(ctypes.byref(event), 2) == 0
        assert driver.library.cuEventRecord(event, ctypes.c_void_p(other.cuda_stream)) == 0
        mine = ctypes.c_void_p(self.cuda_stream)
        assert driver.library.cuStreamWaitEvent(mine, event, 0) == 0
        assert driver.library.cuEventDestroy_v2(event) == 0
        assert driver.library.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0


def new_stream(device: int = 0) -> _Stream:
    """A stream beside the default one."""
    made, popped = ctypes.c_void_p(), ctypes.c_void_p()
    driver.push_device(device)
    assert driver.library.cuStreamCreate(ctypes.byref(made), 1) == 0
    assert driver.library.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0
    return _Stream(made.value or 0, device)


current = _Stream(0)
torch.cuda.current_stream = lambda device=None: current  # type: ignore[assignment, return-value]


# --- DLPack's C exchange interface, which torch's own does not offer for these ----------------------


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_FromObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_Current = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)


class _Api(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", _FromObject),
        ("object_from_managed", ctypes.c_void_p),
        ("tensor_from_object", _FromObject),
        ("current_work_stream", _Current),
    )


_kept: list[Any] = []
asked_for_stream = 0


def _fill(tensor: Cuda, target: _Tensor) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    kind = dtype.rstrip("0123456789")
    extents = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.shape)
    strides = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.stride())
    _kept.append((extents, strides))
    target.data = tensor.data_ptr()
    target.device_kind, target.device_index = 2, tensor.device.index
    target.ndim = tensor.dim()
    target.code, target.bits, target.lanes = _CODES[kind], tensor.dtype.itemsize * 8, 1
    target.shape, target.strides, target.byte_offset = extents, strides, 0


def _tensor_from_object(tensor: Any, target: int) -> int:
    _fill(tensor, _Tensor.from_address(target))
    return 0


def _managed_from_object(tensor: Any, target: int) -> int:
    managed = _Managed()
    _fill(tensor, managed.tensor)
    _kept.append(managed)
    ctypes.c_void_p.from_address(target).value = ctypes.addressof(managed)
    return 0


def _current_work_stream(kind: int, index: int, target: int) -> int:
    global asked_for_stream
    asked_for_stream += 1
    ctypes.c_void_p.from_address(target).value = current.cuda_stream or None
    return 0


_api = _Api(
    (ctypes.c_uint32 * 2)(1, 3),
    None,
    None,
    _FromObject(_managed_from_object),
    None,
    _FromObject(_tensor_from_object),
    _Current(_current_work_stream),
)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_NAME = b"dlpack_exchange_api"
Cuda.__dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_api), _NAME, None)  # type: ignore[attr-defined]
