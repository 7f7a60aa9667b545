"""rabit.jax: collectives inside of JAX programs."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")
import rabit
from rabit.errors import InvalidArgument
from rabit.integrations import xla

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = pytest.mark.timeout(300)


def run(size, *command):
    return subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", str(size), sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
        check=False,
    )


@pytest.mark.parametrize(("size", "way"), [(2, "waits"), (3, "future"), (2, "callback")])
def test_collectives_are_those_of_numpy_under_each_transformation(size, way):
    done = run(size, SCRIPTS / "jax_collectives.py", way)

    assert done.returncode == 0, done.stdout + done.stderr
    names = ("sum", "mean", "allgather", "broadcast", "alltoall")
    assert [f"equal {name}" in done.stdout for name in names] == [True] * 5
    assert "trained" in done.stdout


LOSS = """
import os, jax, jax.numpy as jnp, rabit
rabit.init()
step = jax.jit(lambda x: rabit.jax.allreduce(x, rabit.Sum))
x = step(jnp.ones(4))
if rabit.rank() == 1:
    os.kill(os.getpid(), 9)
print(step(x))
"""


def test_a_lost_rank_is_an_error_of_the_program():
    done = run(2, "-c", LOSS)

    assert done.returncode == 137, done.stdout + done.stderr
    assert "rank 1 of 2 (host localhost) was killed by SIGKILL" in done.stderr
    assert "PeerLost" in done.stderr or "is lost" in done.stderr


@pytest.fixture
def alone():
    rabit.init()
    yield
    rabit.shutdown()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: rabit.jax.allgather(1.0), "a scalar has no rows"),
        (lambda: rabit.jax.broadcast([1.0], 3), "root_rank is 3, and the ranks are 0 to 0"),
    ],
)
def test_what_cannot_be_is_refused(alone, call, text):
    with pytest.raises(InvalidArgument, match=text):
        call()


def test_a_maximum_has_no_gradient(alone):
    import jax

    with pytest.raises(InvalidArgument, match="MAX has no gradient"):
        jax.grad(lambda a: rabit.jax.allreduce(a, rabit.Max))(1.0)


def test_a_compiled_program_goes_to_the_engine_of_the_next_init(alone):
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda a: rabit.jax.allreduce(a, rabit.Sum) + 1)
    step(jnp.ones(3))
    rabit.shutdown()

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"call rabit.init\(\) first"):
        jax.block_until_ready(step(jnp.ones(3)))

    rabit.init()
    assert step(jnp.ones(3)).tolist() == [2, 2, 2]


def test_a_jax_that_keeps_effects_elsewhere_is_called_back_and_that_is_said_once(
    alone, monkeypatch
):
    import jax
    import jax.numpy as jnp

    def absent(jax):
        raise ImportError("cannot import name '_OrderedIOEffect'")

    monkeypatch.setattr(xla, "_make_primitive", absent)
    monkeypatch.setattr(xla, "_primitive", functools.cache(xla._primitive.__wrapped__))
    with pytest.warns(RuntimeWarning, match="call back into Python") as found:
        # A shape of its own: programs of other tests are compiled already.
        values = [jax.jit(rabit.jax.allreduce)(jnp.ones((5, 7, number))).sum() for number in (1, 2)]

    assert values == [35, 70]
    assert len([warning for warning in found if "rabit.jax" in str(warning.message)]) == 1


def test_a_chain_of_collectives_takes_no_memory_besides_its_operand(alone):
    import jax
    import jax.numpy as jnp

    def chain(array):
        for _ in range(3):
            array = rabit.jax.broadcast(rabit.jax.allreduce(array), 0)
        return array

    array = jnp.ones(1 << 16)
    memory = jax.jit(chain).lower(array).compile().memory_analysis()

    assert memory.temp_size_in_bytes < array.nbytes


def test_an_empty_tree_is_itself(alone):
    assert rabit.jax.allreduce({}) == {}
