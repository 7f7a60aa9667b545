"""`rabitrun log`: the totals of a communication log."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from rabit.command import run_command
from rabit.config.arguments import LineParser
from rabit.diagnostics.comm_log import add_up, find_logs, read_log, summary_lines, table_rows
from rabit.errors import InvalidArgument

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Prints the totals of the log that the command line names; the exit status."""
    parser = LineParser(
        prog="rabitrun log",
        description="Adds up the logs that a job with RABIT_COMM_LOG (rabitrun --comm-log) has written.",
        epilog="Of every operation the shortest time of a rank is communication; what another rank took "
        "longer it waited. Times run from submitting to finishing, so those of operations that "
        "overlap add up to more than the clock shows.",
        allow_abbrev=False,
    )
    parser.add_argument("path", help="as given to RABIT_COMM_LOG, such as ops.csv")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the table")
    parsed = parser.parse_args(words)
    log = add_up({rank: read_log(path) for rank, path in find_logs(parsed.path).items()})
    print("\n".join(summary_lines(log)))
    if parsed.csv:
        rows = table_rows(log)
        try:
            with parsed.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["kind"])
                writer.writeheader()
                writer.writerows(rows)
        except OSError as error:
            raise InvalidArgument(f"cannot write {parsed.csv}: {error.strerror}.") from error
    return 0


if __name__ == "__main__":
    sys.exit(run_command("rabitrun log", main))
