"""TensorView: what is shared, what is copied, what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from rabit import DType, InvalidArgument, TensorView, Unsupported
from rabit.engine.tensor import numpy_dtype, view_input, view_output

WHAT = "allreduce 'w' on rank 0"


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DType if numpy_dtype(dtype).name == str(dtype)]
)
def test_arrays_are_shared_in_every_type(dtype):
    array = np.ones((3, 4), numpy_dtype(dtype))
    view = view_output(array)

    assert (view.data, view.shape, view.dtype) == (array.ctypes.data, (3, 4), dtype)
    assert (view.count, view.nbytes) == (12, array.nbytes)


def test_scalars_and_lists_are_inputs():
    assert (view_input(2.5).shape, view_input(2.5).dtype) == ((), DType.FLOAT64)
    assert (view_input([1, 2]).shape, view_input([True]).dtype) == ((2,), DType.BOOL)


def test_a_buffer_is_shared():
    memory = bytearray(b"abc")
    view = view_output(memory)
    ctypes.memset(view.data, 120, 3)

    assert memory == b"xxx"
    assert view.dtype is DType.UINT8


def test_an_input_that_is_not_contiguous_is_copied():
    array = np.arange(12.0).reshape(3, 4).T
    view = view_input(array)

    assert view.shape == (4, 3)
    assert view.data != array.ctypes.data
    copied = np.ctypeslib.as_array((ctypes.c_double * 12).from_address(view.data))
    assert copied.tolist() == array.ravel().tolist()


def test_the_view_keeps_the_copy_alive():
    assert view_input(np.ones((2, 2)).T).keepalive is not None


def test_an_empty_tensor_has_a_shape():
    assert view_output(np.empty((0, 5), np.float32)).count == 0


def test_bfloat16_bits_travel_in_uint16():
    bits = np.array([0x3F80], np.uint16)
    view = TensorView.bfloat16(bits)

    assert (view.dtype, view.data) == (DType.BFLOAT16, bits.ctypes.data)
    with pytest.raises(InvalidArgument, match="NumPy array of uint16"):
        TensorView.bfloat16(np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(2, np.longdouble), r"float128 are not supported \(supported: bfloat16, .*astype"),
        (np.array([None]), "object are not supported .*broadcast_object"),
        (np.ones(2, ">f4"), r"foreign byte order \(>f4\).*newbyteorder"),
        (np.ma.masked_array([1.0], [True]), r"MaskedArray has a mask, .*filled\(0\)"),
        (np.array(["a"]), "not supported"),
        (np.ones(2, "f4,i4"), "not supported"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
    ],
)
def test_other_types_are_refused_for_both_directions(array, message):
    for view in (view_input, view_output):
        with pytest.raises(Unsupported, match=message) as caught:
            view(array, WHAT)
        assert str(caught.value).startswith(WHAT)


def test_an_output_that_is_not_contiguous_is_refused():
    with pytest.raises(
        InvalidArgument, match=r"not contiguous .*shape \(4, 3\), strides \(8, 32\)"
    ):
        view_output(np.ones((3, 4)).T, WHAT)


def test_an_output_that_is_read_only_is_refused():
    array = np.ones(3)
    array.flags.writeable = False

    with pytest.raises(InvalidArgument, match=r"read-only.*array.copy\(\)"):
        view_output(array, WHAT)
    with pytest.raises(InvalidArgument, match="read-only"):
        view_output(b"abc", WHAT)


@pytest.mark.parametrize("value", [3, [1.0], None])
def test_an_output_has_memory(value):
    with pytest.raises(InvalidArgument, match="no memory that can be written"):
        view_output(value, WHAT)


def test_a_ragged_list_is_refused():
    with pytest.raises(InvalidArgument, match="cannot be read as an array"):
        view_input([[1], [2, 3]], WHAT)
