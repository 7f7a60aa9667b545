"""DLPack: torch tensors are shared without a copy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import rabit
from rabit import CUDA, Compression, Config, DType, Engine, InvalidArgument, Unsupported
from rabit.engine.tensor import view_input, view_output

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "dtype",
    [
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "bool",
        "bfloat16",
    ],
)
def test_a_tensor_of_every_type_is_shared(dtype):
    tensor = torch.zeros(3, 4, dtype=getattr(torch, dtype))
    view = view_output(tensor)

    assert (view.data, view.shape) == (tensor.data_ptr(), (3, 4))
    assert view.dtype is DType[dtype.upper()]


def test_the_view_keeps_the_memory_alive():
    view = view_input(torch.full((1000,), 7.0))
    gc.collect()
    others = [torch.zeros(1000) for _ in range(10)]

    assert view.keepalive[0][999] == 7.0
    assert view.data not in {each.data_ptr() for each in others}


def test_an_offset_into_storage_counts():
    tensor = torch.arange(10)[3:]

    assert view_output(tensor).data == tensor.data_ptr()


def test_an_input_that_is_not_contiguous_is_copied_and_an_output_refused():
    tensor = torch.arange(6.0).reshape(2, 3).t()
    view = view_input(tensor)

    assert view.shape == (3, 2)
    assert view.data != tensor.data_ptr()
    with pytest.raises(InvalidArgument, match="not contiguous"):
        view_output(tensor)


def test_tensors_that_cannot_be_shared_are_refused():
    with pytest.raises(InvalidArgument, match=r"strided.*Pass a dense tensor"):
        view_input(torch.eye(3).to_sparse())
    with pytest.raises(InvalidArgument, match="detach"):
        view_input(torch.ones(3, requires_grad=True))
    with pytest.raises(Unsupported, match="complex32 are not supported"):
        view_input(torch.ones(3, dtype=torch.complex32))


def test_a_refusal_for_a_device_that_is_not_current_says_what_to_do():
    class OnAnotherDevice:
        def __dlpack_device__(self):
            return (CUDA, 1)

        def __dlpack__(self, **_):
            raise BufferError("Can't export tensors on a different CUDA device index.")

    with pytest.raises(InvalidArgument, match=r"device index.*torch.cuda.set_device\(1\)"):
        view_input(OnAnotherDevice())


class Foreign:
    """A library's array; the older capsule of some libraries does not say that it must not be written."""

    def __init__(self, is_writable, knows_versions=True):
        self.memory = np.ones(4, np.float32)
        self._newer = self.memory.view()
        self._newer.flags.writeable = is_writable
        self._knows_versions = knows_versions

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        if options and not self._knows_versions:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self._newer.__dlpack__(**options) if options else self.memory.__dlpack__()


def test_what_its_library_declares_read_only_is_read_and_not_written():
    array = Foreign(is_writable=False)

    assert view_input(array).data == array.memory.ctypes.data
    with pytest.raises(InvalidArgument, match=r"Foreign is read-only.*without the trailing underscore"):
        view_output(array)


@pytest.mark.parametrize("knows_versions", [True, False])
def test_what_may_be_written_is_written_in_place(knows_versions):
    array = Foreign(is_writable=True, knows_versions=knows_versions)

    assert view_output(array).data == array.memory.ctypes.data
    assert view_output(array).shape == (4,)


def test_other_devices_are_refused():
    class OnMetal:
        def __dlpack_device__(self):
            return (8, 0)

        def __dlpack__(self):
            raise AssertionError("the device is asked first")

    with pytest.raises(Unsupported, match=r"device of DLPack kind 8.*Copy it to the CPU"):
        view_input(OnMetal())


class OnGpu:
    """A tensor that says that it is on the second CUDA device."""

    def __init__(self):
        self.tensor = torch.zeros(2, 3)
        self.streams = []

    def __dlpack_device__(self):
        return (2, 1)

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self.tensor.__dlpack__()


def test_a_cuda_tensor_is_made_ready_for_the_default_stream():
    """1 is what DLPack and the driver call the stream that others wait for."""
    tensor = OnGpu()
    view = view_output(tensor)

    assert (view.device, view.device_index, view.stream) == (CUDA, 1, 1)
    assert (view.data, view.shape, tensor.streams) == (tensor.tensor.data_ptr(), (2, 3), [1])


def test_what_works_on_the_host_alone_refuses_a_cuda_tensor():
    zeros = np.zeros((2, 3), np.float32)
    with Engine(Config()) as engine:
        with pytest.raises(Unsupported, match="not in the memory of the CPU"):
            rabit.ordered_allreduce_(OnGpu(), engine=engine)
        with pytest.raises(InvalidArgument, match="residual is not in the memory of the CPU"):
            rabit.allreduce_(
                zeros, name="x", compression=Compression.sign(), residual=OnGpu(), engine=engine
            )


def test_a_negated_view_is_copied_as_an_input_and_refused_as_an_output():
    tensor = torch._neg_view(torch.ones(3))

    assert view_input(tensor).keepalive[0].tolist() == [-1.0] * 3
    assert not view_input(tensor).keepalive[0].is_neg()
    with pytest.raises(InvalidArgument, match=r"allreduce 'a': the tensor is a negated view .*resolve_neg\(\)"):
        view_output(tensor, "allreduce 'a'")
