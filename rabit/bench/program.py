"""The benchmark as a program: what every rank of the job runs."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Sequence

from rabit import session
from rabit.bench import table
from rabit.bench.cases import Spec
from rabit.bench.options import parse_bench
from rabit.bench.timing import Figures, measure
from rabit.engine.current import current_engine
from rabit.errors import InvalidArgument, RabitError
from rabit.types import Kind, ReduceOp
from rabit.version import __version__

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Measures what the command line says; the exit status, 1 if a result was wrong."""
    try:
        parsed = parse_bench(sys.argv[1:] if words is None else words)
        session.init()
        return _run(parsed)
    except RabitError as error:
        print(f"rabitrun bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgument) else 1


def _run(parsed: argparse.Namespace) -> int:
    engine = current_engine()
    if parsed.root >= engine.size:
        raise InvalidArgument(
            f"--root is {parsed.root} in a job of {engine.size} ranks. Name one of "
            f"0 to {engine.size - 1}."
        )
    for backend in parsed.backends:
        if backend:
            engine.backend(backend)  # A name that is unknown is told before anything is measured.
    document = {"version": __version__, "ranks": engine.size, "local_ranks": engine.local_size}
    if engine.rank == 0:
        hosts = engine.size // max(1, engine.local_size)
        print(
            f"# rabit {__version__}, {engine.size} ranks, {engine.local_size} on each of {hosts} "
            f"host{'s' * (hosts > 1)} with {os.cpu_count()} processors"
        )
        print(table.heading(), flush=True)
    measured: list[Figures] = []
    for spec in _specs(parsed):
        found = measure(
            engine, spec, calls=parsed.calls, longest_s=parsed.time, checks=not parsed.no_check
        )
        measured.append(found)
        if engine.rank == 0:
            print(table.line(found), flush=True)
    if engine.rank == 0 and parsed.csv:
        table.write_csv(parsed.csv, [table.row(each) for each in measured])
    if engine.rank == 0 and parsed.json:
        table.write_json(parsed.json, document, measured)
    session.shutdown()
    return _verdict(measured, engine.rank)


def _verdict(measured: Sequence[Figures], rank: int) -> int:
    wrong = [each for each in measured if each.wrong]
    if wrong and rank == 0:
        names = ", ".join(dict.fromkeys(str(each.spec.kind) for each in wrong))
        print(f"rabitrun bench: wrong results of {names}; see the column 'wrong'", file=sys.stderr)
    return 1 if wrong else 0


def _specs(parsed: argparse.Namespace) -> Iterator[Spec]:
    op = ReduceOp[parsed.op.upper()]
    for name, dtype, size, backend in itertools.product(
        parsed.kinds, parsed.dtypes, parsed.sizes, parsed.backends
    ):
        kind = Spec.kind_of(name)
        if kind is Kind.BARRIER and (size, dtype) != (parsed.sizes[0], parsed.dtypes[0]):
            continue
        yield Spec(kind, size, dtype, op, parsed.root, backend)
