"""What all benchmarks share: how a case is named and gets its options, how ranks start, take turns and are reported."""

from .case import CASES, Option, case, choice, integers, rate, sizes, words
from .links import lab_or_stop
from .ranks import mpi_environ, mpiexec, on_ranks, program_path
from .report import interval, median, parse_rate, parse_size, ratio, show_size, show_time, table
from .turns import seconds_each, slowest, turns

__all__ = [
    "CASES",
    "Option",
    "case",
    "choice",
    "integers",
    "interval",
    "lab_or_stop",
    "median",
    "mpi_environ",
    "mpiexec",
    "on_ranks",
    "parse_rate",
    "parse_size",
    "program_path",
    "rate",
    "ratio",
    "seconds_each",
    "show_size",
    "show_time",
    "sizes",
    "slowest",
    "table",
    "turns",
    "words",
]
