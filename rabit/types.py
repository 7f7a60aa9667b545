"""Element types, reduce operations and kinds of collective; the values are those of the C ABI."""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "CPU",
    "CUDA",
    "DTYPE_NAMES",
    "Average",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "DType",
    "Kind",
    "Max",
    "Min",
    "Product",
    "RESUMABLE",
    "ReduceOp",
    "Sum",
]

# Exit status of a rank that has saved and leaves before its work is done: EX_TEMPFAIL of sysexits.h.
RESUMABLE = 75


class DType(IntEnum):
    """Element type of a tensor.

    Ranks exchange all of them.  They combine the first eleven by any operation, but for floats bit by bit;
    complex numbers by SUM and AVERAGE; uint32, uint64 and 8-bit floats not at all.
    """

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9
    BFLOAT16 = 10
    UINT32 = 11
    UINT64 = 12
    FLOAT8_E4M3FN = 13
    FLOAT8_E5M2 = 14
    FLOAT8_E4M3FNUZ = 15
    FLOAT8_E5M2FNUZ = 16
    FLOAT8_E8M0FNU = 17
    COMPLEX64 = 18
    COMPLEX128 = 19

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEM_SIZES[self]

    @property
    def is_float(self) -> bool:
        """A real floating-point type that ranks combine."""
        return self in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16)

    def __str__(self) -> str:
        return self.name.lower()


_ITEM_SIZES = (1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2, 4, 8, 1, 1, 1, 1, 1, 8, 16)
# The names of all element types, for messages.
DTYPE_NAMES = ", ".join(sorted(str(each) for each in DType))


class ReduceOp(IntEnum):
    """How the values of the ranks are combined.

    AVERAGE of integers truncates toward zero.  Of 16-bit floats and of integers below 64 bits it is
    divided before it is rounded to the type, so that it is right wherever the type holds it; other sums
    overflow as the type does.  The bitwise operations need integers or bool.
    """

    AVERAGE = 0
    SUM = 1
    MIN = 3
    MAX = 4
    PRODUCT = 5
    BITWISE_AND = 6
    BITWISE_OR = 7
    BITWISE_XOR = 8

    def __str__(self) -> str:
        return self.name.lower()


class Kind(IntEnum):
    """Kind of collective."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    REDUCE = 3
    REDUCESCATTER = 4
    ALLTOALL = 5
    GATHER = 6
    SCATTER = 7
    BARRIER = 8
    SEND = 9
    RECV = 10
    JOIN = 11
    VOTE = 12

    def __str__(self) -> str:
        return self.name.lower()


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
BitwiseAnd = ReduceOp.BITWISE_AND
BitwiseOr = ReduceOp.BITWISE_OR
BitwiseXor = ReduceOp.BITWISE_XOR

# Device kinds, with DLPack's numbers.
CPU = 1
CUDA = 2
