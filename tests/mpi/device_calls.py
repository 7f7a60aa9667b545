"""Operations of the mixing stress on memory of the emulated device, which NCCL exchanges there.

Without torch, which the interpreter of MPICH does not have.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np
from mixing_program import Call
from support.emulated_cuda import Driver

from rabit.engine.engine import Engine
from rabit.engine.handle import Handle
from rabit.engine.request import Request
from rabit.engine.tensor import TensorView, dtype_of
from rabit.types import CUDA, Kind, Sum

__all__ = ["Device", "OnDevice"]

_COUNTERS = ("communicators", "operators", "kernels", "exchanged", "violations")


class Device:
    """The emulated driver.  Make it before rabit.init(), which looks for one."""

    def __init__(self) -> None:
        # For NCCL each process is a host: every rank uses device 0 of its own driver.
        os.environ["NCCL_HOSTID"] = str(os.getpid())
        self.driver = Driver(os.environ["EMULATED_CUDA"])

    def counts(self) -> dict[str, int]:
        """What the emulated NCCL has counted in this process; see emulated_nccl.h."""
        found = (ctypes.c_int64 * len(_COUNTERS))()
        library = ctypes.CDLL(os.environ["RABIT_NCCL_LIBRARY"])
        library.rabit_emulated_nccl_counts(ctypes.byref(found))
        return dict(zip(_COUNTERS, found, strict=True))


class _Memory:
    """Elements on the device; `inside` is where its kernels see them."""

    def __init__(self, driver: Driver, values: np.ndarray) -> None:
        address, inside = driver.allocate(0, values.nbytes)
        buffer = (ctypes.c_char * values.nbytes).from_address(inside)
        self.inside = np.frombuffer(buffer, values.dtype)
        self.inside[:] = values
        self.view = TensorView(address, values.shape, dtype_of(values.dtype), CUDA)


class OnDevice:
    """A call in flight whose tensors lie on the device: a Handle, as far as the stress needs one."""

    def __init__(self, device: Device, engine: Engine, call: Call) -> None:
        self._driver = device.driver
        size, mine = engine.size, call.input(engine.rank)
        self._memory = [_Memory(self._driver, mine)]
        if call.kind in ("allgather", "alltoall"):
            count = call.count * (size if call.is_gather else 1)
            self._memory.append(_Memory(self._driver, np.zeros(count, mine.dtype)))
        request = Request(
            Kind[call.kind.upper()],
            call.name,
            self._memory[0].view,
            self._memory[-1].view,
            op=Sum,
            root=call.root(size) if call.kind == "broadcast" else -1,
            backend=engine.backend(call.backend),
            splits=[call.count // size] * size if call.kind == "alltoall" else None,
        )
        self._handle: Handle = engine.submit([request])[0]

    def result(self) -> np.ndarray:
        self._handle.wait_done()
        found = self._memory[-1].inside.copy()
        for each in self._memory:
            self._driver.free(each.view.data)
        return found
