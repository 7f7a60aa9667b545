"""Collectives inside of JAX programs: what a call costs, and what the program computes meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import (
    case,
    integers,
    lab_or_stop,
    median,
    on_ranks,
    rate,
    show_size,
    sizes,
    slowest,
    table,
    turns,
)
from harness import links as shaped_links

# How a call is made -> bytes up to which a custom call blocks; None: it calls back into Python.
WAYS: dict[str, int | None] = {
    "custom call, blocks": 1 << 40,
    "custom call, future": -1,
    "callback": None,
}


IN_ONE = 10


def program_of(
    way: int | None, build: Callable[[], Callable[..., Any]], *arguments: Any
) -> Callable[[], Any]:
    """A compiled program of `build`, whose collectives are made in this way; it has run once."""
    import jax

    from rabit.integrations import jax as ours
    from rabit.integrations import xla

    known = xla._WAITS_BYTES, xla._primitive
    ours._reduction.cache_clear()  # What it has made knows its way.
    if way is None:
        xla._primitive = lambda: None  # type: ignore[assignment]
    else:
        xla._WAITS_BYTES = way
    program = jax.jit(build())
    jax.block_until_ready(program(*arguments))
    xla._WAITS_BYTES, xla._primitive = known
    return lambda: jax.block_until_ready(program(*arguments))


def in_one(array: Any) -> Any:
    """Several calls, one after the other, for which JAX starts one program."""
    import jax

    import rabit

    return jax.lax.scan(lambda a, _: (rabit.jax.allreduce(a), None), array, None, length=IN_ONE)[0]


def seconds(form: Callable[[], object], calls: int) -> float:
    import rabit

    rabit.barrier(name="turn")
    began = time.perf_counter()
    for _ in range(calls):
        form()
    return slowest((time.perf_counter() - began) / calls)


@case(ranks=2, turns=9, calls=20, sizes=sizes("4K,1M,16M"))
def jax_calls(o: Any) -> None:
    """Allreduce under jit by custom calls and by callbacks, beside rabit.allreduce of a NumPy array, in turns."""
    for size, found in on_ranks(calls_rank, o, o.ranks)[0].items():
        medians = {name: median(times) for name, times in found.items()}
        base = medians["NumPy, new array"]
        table(
            [show_size(int(size)), "us", "x NumPy"],
            [[name, f"{t * 1e6:.0f}", f"{t / base:.2f}"] for name, t in medians.items()],
        )


def calls_rank(o: Any) -> dict[int, dict[str, list[float]]]:
    import jax.numpy as jnp

    import rabit

    rabit.init()
    found = {}
    for size in o.sizes:
        array = np.ones(size // 4, np.float32)
        many: dict[str, Callable[[], object]] = {}
        forms: dict[str, Callable[[], object]] = {
            "NumPy, new array": lambda array=array: rabit.allreduce(array, name="new"),
            "NumPy, in place": lambda array=array: rabit.allreduce_(array, name="place"),
        }
        for name, way in WAYS.items():
            given = jnp.asarray(array)
            forms[name] = program_of(way, lambda: lambda a: rabit.jax.allreduce(a), given)
            many[f"{name}, {IN_ONE} in a program"] = program_of(way, lambda: lambda a: in_one(a), given)
        contestants = {name: lambda f=form: seconds(f, o.calls) for name, form in forms.items()}
        for name, form in many.items():
            contestants[name] = lambda f=form: seconds(f, max(1, o.calls // IN_ONE)) / IN_ONE
        found[size] = turns(contestants, o.turns)
    rabit.shutdown()
    return found


@case(ranks=2, rate=rate("200M"), size=1 << 20, loops=integers("2,4,8"), turns=7, calls=3)
def jax_overlap(o: Any) -> None:
    """A program that computes beside an allreduce on shaped links: with a future, and with a call that blocks."""
    with lab_or_stop(o.ranks, o.rate, shaped_links.LONG_QUEUE_SECONDS) as lab:
        found = on_ranks(overlap_rank, o, o.ranks, run=shaped_links.in_lab(lab, timeout=200))[0]
    rows = []
    for loops, times in found.items():
        both = {name: median(values) for name, values in times.items()}
        rows.append(
            [
                loops,
                *(f"{t * 1e3:.1f}" for t in both.values()),
                f"{both['blocks'] / both['future']:.2f}",
            ]
        )
    table(["products", "computes ms", "blocks ms", "future ms", "gain"], rows)


def overlap_rank(o: Any) -> dict[int, dict[str, list[float]]]:
    import jax
    import jax.numpy as jnp

    import rabit

    rabit.init()
    array, matrix = jnp.ones(o.size // 4), jnp.eye(384) * 0.5
    found = {}
    for loops in o.loops:

        def work(m: Any, loops: int = loops) -> Any:
            for _ in range(loops):
                m = jnp.tanh(m @ matrix)
            return m

        def both(a: Any, m: Any, work: Callable[[Any], Any] = work) -> Any:
            return rabit.jax.allreduce(a), work(m)

        computes = jax.jit(work).lower(matrix).compile()
        forms = {
            "computes": lambda computes=computes: jax.block_until_ready(computes(matrix)),
            "blocks": program_of(
                WAYS["custom call, blocks"], lambda both=both: both, array, matrix
            ),
            "future": program_of(
                WAYS["custom call, future"], lambda both=both: both, array, matrix
            ),
        }
        found[loops] = turns(
            {name: lambda f=form: seconds(f, o.calls) for name, form in forms.items()}, o.turns
        )
    rabit.shutdown()
    return found
