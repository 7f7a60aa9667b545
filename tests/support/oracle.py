"""What a collective must give, computed with NumPy in float64 (integers: exactly)."""

from __future__ import annotations

import functools

import numpy as np

from rabit import DType, ReduceOp
from rabit.engine.tensor import numpy_dtype

SEED = 20240229

# Relative tolerance of a reduction; integers and bool are exact.  bfloat16 is compared by value.
TOLERANCE = {
    DType.FLOAT16: 2e-3,
    DType.BFLOAT16: 1.6e-2,
    DType.FLOAT32: 1e-6,
    DType.FLOAT64: 1e-14,
}

BITWISE = (ReduceOp.BITWISE_AND, ReduceOp.BITWISE_OR, ReduceOp.BITWISE_XOR)
PLAIN_DTYPES = [each for each in DType if each is not DType.BFLOAT16]


def counts(size: int) -> list[int]:
    """The sizes at which collectives break: empty, one, around the ranks, and odd ones."""
    return sorted({0, 1, size - 1, size, size + 1, 37, 1000, 4099})


def supports(dtype: DType, op: ReduceOp) -> bool:
    return op not in BITWISE or not dtype.is_float


def values(dtype: DType, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Numbers that are small enough for a product over ranks to be exact in every type."""
    return _numbers(dtype is DType.BOOL, dtype.is_float, shape, rank).astype(numpy_dtype(dtype))


@functools.lru_cache(maxsize=64)  # every kind and type asks for the same ones
def _numbers(is_bool: bool, is_float: bool, shape: tuple[int, ...], rank: int) -> np.ndarray:
    random = np.random.default_rng((SEED, rank, int(np.prod(shape))))
    numbers = random.integers(0 if is_bool else 1, 2 if is_bool else 4, shape)
    return numbers + random.integers(0, 4, shape) / 4 if is_float else numbers


def reduced(arrays: list[np.ndarray], op: ReduceOp) -> np.ndarray:
    """The elementwise combination, in the type of the arrays."""
    dtype = arrays[0].dtype
    wide = [each.astype(np.float64 if dtype.kind == "f" else np.int64) for each in arrays]
    if op in BITWISE:
        combine = {
            ReduceOp.BITWISE_AND: np.bitwise_and,
            ReduceOp.BITWISE_OR: np.bitwise_or,
            ReduceOp.BITWISE_XOR: np.bitwise_xor,
        }[op]
        return functools.reduce(combine, wide).astype(dtype)
    if op is ReduceOp.MIN:
        return functools.reduce(np.minimum, wide).astype(dtype)
    if op is ReduceOp.MAX:
        return functools.reduce(np.maximum, wide).astype(dtype)
    if op is ReduceOp.PRODUCT:
        return functools.reduce(np.multiply, wide).astype(dtype)
    total = functools.reduce(np.add, wide)
    if op is ReduceOp.SUM:
        return total.astype(dtype)
    if dtype.kind == "f":
        return (total / len(arrays)).astype(dtype)
    if dtype.kind == "b":
        return total.astype(dtype)
    return np.trunc(total / len(arrays)).astype(dtype)


def assert_equal(found: np.ndarray, expected: np.ndarray, dtype: DType, what: str) -> None:
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} for {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: {found.shape} for {expected.shape}"
    if dtype in TOLERANCE:
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype], err_msg=what)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=what)


def bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16, rounded to the nearest even."""
    bits = array.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def from_bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
