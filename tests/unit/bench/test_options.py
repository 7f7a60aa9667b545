"""The command line of a benchmark."""

from __future__ import annotations

import pytest

from rabit.bench.options import parse_bench, parse_sizes
from rabit.errors import InvalidArgument
from rabit.types import DType


def test_sizes_go_from_one_to_the_other_by_the_factor():
    assert parse_sizes("1K:64K", 4) == [1024, 4096, 16384, 65536]
    assert parse_sizes("1K:3K", 2) == [1024, 2048]
    assert parse_sizes("4,1M", 2) == [4, 1 << 20]


@pytest.mark.parametrize("text", ["", "1K:", "4K:1K", "0", "1K:2K:3K", "-4", "1T", "big"])
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(InvalidArgument, match="expected from:to such as 1K:64M"):
        parse_sizes(text, 2)


def test_kinds_come_from_words_and_from_the_flag_once():
    found = parse_bench(["alltoall", "--kinds", "allreduce,alltoall", "--dtype", "int8,bfloat16"])

    assert found.kinds == ["alltoall", "allreduce"]
    assert found.dtypes == [DType.INT8, DType.BFLOAT16]
    assert len(parse_bench(["all"]).kinds) == 9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["alreduce"], "'alreduce' is unknown. Known: allreduce, allgather"),
        (["--dtype", "float33"], "'float33' is unknown. Known: bfloat16, bool"),
        (["--op", "mean"], "'mean' is unknown. Known: sum, min, max"),
        (["--byts", "1K"], "the flag --byts is unknown. Did you mean --bytes? See rabitrun bench --help."),
        (["--factor", "1"], "--factor is 1: expected 2 to 1024"),
        (["--calls", "-1"], "--calls is -1"),
        (["--root", "-1"], "--root is -1"),
        (["--time", "0"], "'0' is not between 0 and 1 hour"),
    ],
)
def test_mistakes_say_what_is_known(words, said):
    with pytest.raises(InvalidArgument) as told:
        parse_bench(words)

    assert said in str(told.value)
