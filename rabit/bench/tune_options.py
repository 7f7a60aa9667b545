"""The command line of `rabitrun tune`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rabit.bench.options import DURATION, KIND_NAMES, parse_names, parse_sizes
from rabit.config.arguments import LineParser
from rabit.errors import InvalidArgument
from rabit.types import DType

__all__ = ["TUNED_KINDS", "parse_tune"]

TUNED_KINDS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast")

_EPILOG = """\
examples:
  rabitrun -np 4 tune -o table.json
  rabitrun -np 8 -H node1:4,node2:4 tune --budget 5m -o table.json --plot tune.svg
  rabitrun -np 4 tune --backend builtin,mpi -o table.json    which backend, and which algorithm
  RABIT_ROUTE_TABLE=table.json rabitrun -np 4 python train.py

Every algorithm of every backend takes turns with the others; the faster half continues for a longer
round, until one is left. What the job would choose by itself takes part, and stays where nothing is
3 % faster. The table holds rules in the language of RABIT_ROUTE, what they follow from, and the
topology that it was measured on; a job of another topology refuses it.
"""


def parse_tune(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a tuning run.  Raises InvalidArgument; ends the process after --help."""
    parser = LineParser(
        prog="rabitrun tune",
        usage="rabitrun -np N tune -o table.json [flags of tune and of rabitrun]",
        description="Finds the fastest route of each collective by size, and writes a table of them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="where the table goes; in a folder it is named after the topology",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=DURATION, default=120.0, metavar="TIME",
        help="how long to measure (default 2m)",
    )  # fmt: skip
    parser.add_argument(
        "--kinds", default=",".join(TUNED_KINDS), help="with commas (default %(default)s)"
    )
    parser.add_argument(
        "--bytes", default="1K:64M", metavar="SIZES",
        help="from:to, or sizes with commas (default 1K:64M)",
    )  # fmt: skip
    parser.add_argument(
        "--factor", type=int, default=4, metavar="F", help="from one size to the next (default 4)"
    )
    parser.add_argument(
        "--dtype", default="float32",
        help="with commas (default float32); the first stands for every type that is not named, "
        "except that 16-bit floats are never summed in another order for it",
    )  # fmt: skip
    parser.add_argument("--backend", default="", help="with commas (default: those of the job)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw a picture")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write what was measured")
    found = parser.parse_args(list(words))
    if not 2 <= found.factor <= 1024:
        parser.error(f"--factor is {found.factor}: expected 2 to 1024")
    found.kinds = parse_names(found.kinds.split(","), KIND_NAMES)
    if "barrier" in found.kinds:
        raise InvalidArgument("--kinds names barrier, which has no size and nothing to choose. Leave it out.")
    found.sizes = parse_sizes(found.bytes, found.factor)
    known = tuple(str(each) for each in DType)
    found.dtypes = [DType[name.upper()] for name in parse_names(found.dtype.split(","), known)]
    return found
