"""`rabitrun record`: shows the records of a job, and converts them."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rabit.command import run_command
from rabit.config.arguments import LineParser
from rabit.diagnostics.look.look import rank_document
from rabit.diagnostics.traces import chrome_trace, flight_recorder_dump
from rabit.printable import printable
from rabit.record.reader import Operation, Record, find_records, read_record

if TYPE_CHECKING:
    import argparse

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Does what the command line asks; the exit status."""
    parsed = _parser().parse_args(words)
    records = _records([Path(path) for path in parsed.paths])
    if parsed.verb == "show":
        _show(records, parsed)
    else:
        _convert(records, parsed)
    return 0


def _parser() -> LineParser:
    parser = LineParser(
        prog="rabitrun record",
        description="Shows or converts the records of a job's ranks: files rank-N.rabit, which rabitrun --record "
        "FOLDER keeps, and which a job that failed leaves behind.",
        allow_abbrev=False,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="show or convert")
    show = verbs.add_parser("show", help="print them", allow_abbrev=False)
    show.add_argument("--json", action="store_true", help="as JSON")
    show.add_argument(
        "--last", type=int, default=20, metavar="N", help="operations of each rank (20)"
    )
    convert = verbs.add_parser("convert", help="write them in another format", allow_abbrev=False)
    convert.add_argument(
        "--to",
        choices=("chrome", "fr"),
        default="chrome",
        help="chrome: one trace of all ranks for Perfetto or about:tracing; fr: dumps for torch's torchfrtrace",
    )
    convert.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        default="",
        help="file (.gz: compressed), or folder for fr",
    )
    convert.add_argument(
        "--prefix",
        default="nccl",
        help="for fr: the backend that torch takes it for; gloo is known from torch 2.14 on",
    )
    for each in (show, convert):
        each.add_argument("paths", nargs="+", metavar="FOLDER or FILE")
    return parser


def _records(paths: Sequence[Path]) -> dict[int, Record]:
    """By rank; of several engines in one process the last."""
    found: dict[int, Record] = {}
    for path in (record for given in paths for record in find_records(given)):
        record = read_record(path)
        before = found.get(record.rank)
        if (
            before is None
            or record.counters["last_progress_ns"] >= before.counters["last_progress_ns"]
        ):
            found[record.rank] = record
    return dict(sorted(found.items()))


def _show(records: Mapping[int, Record], parsed: argparse.Namespace) -> None:
    if parsed.json:
        print(json.dumps({str(rank): rank_document(record) for rank, record in records.items()}))
        return
    for rank, record in records.items():
        header, counters = record.header, record.counters
        group = f" ({header['group']} of a group)" if header.get("group") else ""
        end = header.get("end") or ("running or killed" if counters["is_running"] else "ended")
        print(
            printable(
                f"rank {rank} of {header.get('size', '?')}{group} on {header.get('host', '?')}, "
                f"process {header.get('pid', '?')}: {end}; {counters['steps']} steps, "
                f"{counters['submitted']} operations, {counters['failed']} failed, {counters['bytes'] / 1e6:.1f} MB"
            )
        )
        for operation in record.operations[-parsed.last :]:
            print(printable(_line(operation, record)))


def _line(each: Operation, record: Record) -> str:
    begin = (each.submitted_ns - record.header.get("monotonic_ns", each.submitted_ns)) / 1e9
    took = f"{(each.finished_ns - each.submitted_ns) / 1e3:.0f} us" if each.finished_ns else "open"
    if not each.finished_ns:
        took += ", agreed" if each.agreed_ns else ", not agreed: some rank has not submitted it"
    how = " ".join(word for word in (each.backend, each.algorithm) if word)
    return f"  {begin:10.4f} s  {each.kind} '{each.name}' {each.dtype}[{each.elements}] {took} {how} {each.state}"


def _convert(records: Mapping[int, Record], parsed: argparse.Namespace) -> None:
    if parsed.to == "fr":
        folder = Path(parsed.output or "fr_dump")
        folder.mkdir(parents=True, exist_ok=True)
        for rank, record in records.items():
            size = int(record.header.get("size", len(records)))
            dump = flight_recorder_dump(record, range(size), parsed.prefix)
            (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump))
        print(f"wrote {len(records)} dumps to {folder}: torchfrtrace {folder} -p rank_")
        return
    path = Path(parsed.output or "trace.json")
    text = json.dumps({"traceEvents": chrome_trace(records)}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    print(f"wrote {path}: open it in https://ui.perfetto.dev or about:tracing")


if __name__ == "__main__":
    sys.exit(run_command("rabitrun record", main))
