"""The exception tree."""

from __future__ import annotations

import pickle

import pytest

import rabit
from rabit import _native
from rabit.errors import error_from_code

CODES = {
    1: rabit.InvalidArgument,
    2: rabit.Mismatch,
    3: rabit.Unsupported,
    4: rabit.PeerLost,
    5: rabit.TimedOut,
    6: rabit.Aborted,
    7: rabit.ResourceExhausted,
    8: rabit.Internal,
}


@pytest.mark.parametrize(("code", "kind"), CODES.items())
def test_each_code_has_its_class(code, kind):
    error = error_from_code(code, "rank 3: gone", 3)

    assert type(error) is kind
    assert isinstance(error, rabit.RabitError)
    assert (str(error), error.rank) == ("rank 3: gone", 3)


def test_an_unknown_code_is_internal():
    assert isinstance(error_from_code(99, "x"), rabit.Internal)


def test_standard_classes_are_bases_where_people_expect_them():
    assert issubclass(rabit.RabitError, RuntimeError)
    assert issubclass(rabit.InvalidArgument, ValueError)
    assert issubclass(rabit.NotInitialized, ValueError)
    assert issubclass(rabit.TimedOut, TimeoutError)


@pytest.mark.parametrize("kind", [*CODES.values(), rabit.NotInitialized])
def test_errors_survive_pickling(kind):
    copy = pickle.loads(pickle.dumps(kind("what", 2)))

    assert type(copy) is kind
    assert (str(copy), copy.rank) == ("what", 2)


def test_codes_and_types_are_those_of_the_header():
    names = _native.ffi.typeof("rabit_code").relements
    assert {
        "RABIT_" + name: code
        for name, code in {
            "OK": 0,
            "INVALID_ARGUMENT": 1,
            "MISMATCH": 2,
            "UNSUPPORTED": 3,
            "PEER_LOST": 4,
            "TIMED_OUT": 5,
            "ABORTED": 6,
            "RESOURCE_EXHAUSTED": 7,
            "INTERNAL": 8,
        }.items()
    } == names

    renamed = {"BITWISE_AND": "BIT_AND", "BITWISE_OR": "BIT_OR", "BITWISE_XOR": "BIT_XOR"}
    for mine, theirs in (
        (rabit.DType, "rabit_dtype"),
        (rabit.ReduceOp, "rabit_reduce_op"),
        (rabit.Kind, "rabit_kind"),
    ):
        native = _native.ffi.typeof(theirs).relements
        assert {"RABIT_" + renamed.get(e.name, e.name): e.value for e in mine} == native
