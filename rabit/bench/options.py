"""The command line of `rabitrun bench`; the launcher reads it too, so that mistakes are told once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rabit.config.arguments import LineParser, duration_up_to
from rabit.config.setting import parse_bytes
from rabit.errors import InvalidArgument
from rabit.types import DTYPE_NAMES, DType

__all__ = [
    "DURATION",
    "KIND_NAMES",
    "OPERATIONS",
    "parse_bench",
    "parse_names",
    "parse_sizes",
]

KIND_NAMES = (
    "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather",
    "scatter", "barrier",
)  # fmt: skip
DURATION = duration_up_to(3600.0, "1 hour")
OPERATIONS = ("sum", "min", "max")
_LARGEST_BYTES = 1 << 36

_EPILOG = """\
examples:
  rabitrun -np 4 bench allreduce
  rabitrun -np 4 bench allreduce alltoall --bytes 1K:64M --dtype float32,bfloat16
  rabitrun -np 8 -H node1:4,node2:4 bench all --json figures.json
  rabitrun -np 4 bench allreduce --backend builtin,mpi      both, beside each other
  rabitrun -np 4 bench allreduce --allreduce-algorithm ring  any flag of rabitrun works here
  torchrun --nproc-per-node 4 -m rabit.bench allreduce       under another launcher

columns:
  bytes   of the larger of input and output of one rank
  p50 us  median time of a call, of the slowest rank of each call
  algbw   bytes / p50
  busbw   algbw times what has to pass a rank's link for each byte, which allows comparison with the
          speed of the link: allreduce 2(n-1)/n; allgather, reducescatter, alltoall, gather and
          scatter (n-1)/n; broadcast and reduce 1
  wrong   elements with another value than they must have, on all ranks
"""


def parse_bench(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a benchmark.  Raises InvalidArgument; ends the process after --help."""
    parser = LineParser(
        prog="rabitrun bench",
        usage="rabitrun -np N bench [kind ...] [flags of bench and of rabitrun]",
        description="Times collectives by size, and checks what they compute.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "kinds",
        nargs="*",
        metavar="kind",
        help=f"of {', '.join(KIND_NAMES)}; all (default allreduce)",
    )
    parser.add_argument("--kinds", dest="more_kinds", default="", help="the same, with commas")
    parser.add_argument(
        "--bytes", default="1K:64M", metavar="SIZES",
        help="from:to, or sizes with commas (default 1K:64M)",
    )  # fmt: skip
    parser.add_argument(
        "--factor", type=int, default=2, metavar="F", help="from one size to the next (default 2)"
    )
    parser.add_argument("--dtype", default="float32", help="with commas (default float32)")
    parser.add_argument("--op", default="sum", help=f"of {', '.join(OPERATIONS)} (default sum)")
    parser.add_argument(
        "--backend", default="", help="with commas, each by itself (default: as the job chooses)"
    )
    parser.add_argument("--root", type=int, default=0, help="of rooted kinds (default 0)")
    parser.add_argument(
        "--calls", type=int, default=0, metavar="N", help="timed calls (default: as fit in --time)"
    )
    parser.add_argument(
        "--time", type=DURATION, default=0.3, metavar="TIME", help="for each row (default 0.3s)"
    )
    parser.add_argument("--no-check", action="store_true", help="do not look at the results")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the table")
    found = parser.parse_args(list(words))
    _check(found, parser)
    return found


def _check(found: argparse.Namespace, parser: LineParser) -> None:
    kinds = [*found.kinds, *(part for part in found.more_kinds.split(",") if part)]
    found.kinds = KIND_NAMES if "all" in kinds else parse_names(kinds or ["allreduce"], KIND_NAMES)
    if not 2 <= found.factor <= 1024:
        parser.error(f"--factor is {found.factor}: expected 2 to 1024")
    if not 0 <= found.calls <= 1_000_000:
        parser.error(f"--calls is {found.calls}: expected 1 to 1000000, or 0")
    if found.root < 0:
        parser.error(f"--root is {found.root}: ranks count from 0")
    found.sizes = parse_sizes(found.bytes, found.factor)
    known = tuple(str(each) for each in DType)
    found.dtypes = [DType[name.upper()] for name in parse_names(found.dtype.split(","), known)]
    parse_names([found.op], OPERATIONS)
    found.backends = [part.strip() for part in found.backend.split(",")]


def parse_names(given: Sequence[str], known: Sequence[str]) -> list[str]:
    """`given` without repetition.  Raises InvalidArgument for what is not `known`."""
    found = list(dict.fromkeys(each.strip() for each in given))
    for each in found:
        if each not in known:
            names = DTYPE_NAMES if "float32" in known else ", ".join(known)
            raise InvalidArgument(f"{each!r} is unknown. Known: {names}.")
    return found


def parse_sizes(text: str, factor: int) -> list[int]:
    """Bytes from "1K:64M", in steps of `factor`, or from "1K,1M"."""
    try:
        if ":" in text:
            low, high = (parse_bytes(part) for part in text.split(":"))
            sizes = []
            while 0 < low <= high:
                sizes.append(low)
                low *= factor
        else:
            sizes = [parse_bytes(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or not all(0 < size <= _LARGEST_BYTES for size in sizes):
        raise InvalidArgument(
            f"--bytes is {text!r}: expected from:to such as 1K:64M, or sizes with "
            "commas such as 4K,1M, each from 1 byte to 64G."
        )
    return sizes
