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
PLAIN_DTYPES = [each for each in DType if each < DType.BFLOAT16]  # which ranks combine


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


# Types whose sums leave them where their means do not, and the patterns of what lies at their ends:
# next to the largest value, and next to zero.
NARROW_DTYPES = [
    DType.UINT8,
    DType.INT8,
    DType.UINT16,
    DType.INT16,
    DType.INT32,
    DType.FLOAT16,
    DType.BFLOAT16,
]


def ends(dtype: DType, count: int, rank: int) -> np.ndarray:
    """The largest values of a narrow type and the smallest, in runs of one sign and of both."""
    random = np.random.default_rng((SEED, rank, count))
    step, is_large, draw = (
        random.integers(0, 4, count),
        random.random(count) < 0.5,
        random.random(count),
    )
    run = np.arange(count) // 8 % 4
    is_negative = (run == 0) | ((run == 1) & (draw < 0.5))
    if dtype.is_float:
        largest = 0x7BFF if dtype is DType.FLOAT16 else 0x7F7F
        bits = np.where(is_large, largest - step, step) | np.where(is_negative, 0x8000, 0)
        return bits.astype(np.uint16).view(numpy_dtype(dtype))
    bounds = np.iinfo(numpy_dtype(dtype))
    high = np.where(is_large, bounds.max - step, step)
    low = np.where(is_large, bounds.min + step, -step if bounds.min else step)
    return np.where(is_negative, low, high).astype(numpy_dtype(dtype))


def assert_mean(found: np.ndarray, arrays: list[np.ndarray], dtype: DType, what: str) -> None:
    """Integers are truncated; 16-bit floats rounded once, after what a sum in float32 may be off."""

    def wide(array: np.ndarray) -> np.ndarray:
        return from_bfloat16_bits(array) if dtype is DType.BFLOAT16 else array

    exact = [wide(each).astype(np.float64) for each in arrays]
    mean = sum(exact) / len(exact)
    if not dtype.is_float:
        np.testing.assert_array_equal(found, np.trunc(mean).astype(found.dtype), err_msg=what)
        return
    epsilon, smallest = (2.0**-10, 2.0**-24) if dtype is DType.FLOAT16 else (2.0**-7, 2.0**-133)
    allowed = np.maximum(epsilon * np.abs(mean), smallest) / 2 + sum(map(np.abs, exact)) * 2.0**-22
    off = np.abs(wide(found).astype(np.float64) - mean)
    worst = int(np.argmax(off - allowed))
    assert off[worst] <= allowed[worst], f"{what}: {wide(found)[worst]} for {mean[worst]}"


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
