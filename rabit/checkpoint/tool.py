"""rabitrun checkpoint: looks at the checkpoints of a job, without the job."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rabit.checkpoint.errors import CheckpointDamaged
from rabit.checkpoint.folder import Folder, Reader
from rabit.checkpoint.manifest import Manifest, Tensor
from rabit.checkpoint.safetensors import Entry, header
from rabit.command import run_command
from rabit.config.arguments import LineParser
from rabit.errors import InvalidArgument
from rabit.printable import printable, printable_lines

__all__ = ["main"]

# By its name, since nothing of rabit depends on a framework.
_IMPORTER = "rabit_torch.dcp"
_DESCRIPTION = """\
  rabitrun checkpoint ls DIR             the generations, the newest last
  rabitrun checkpoint verify DIR         read all of them and check every byte; status 1 if one is damaged
  rabitrun checkpoint show DIR           tensors and plain values of a generation
  rabitrun checkpoint consolidate DIR -o FILE    its tensors as one file of safetensors
  rabitrun checkpoint import SOURCE DIR  what torch.distributed.checkpoint has saved, as a generation
"""


def main(arguments: Sequence[str]) -> int:
    """Runs the command line after `rabitrun checkpoint`; returns the exit status.

    Raises InvalidArgument for a folder or a generation that is not there.
    """
    parser = LineParser(
        prog="rabitrun checkpoint",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ls|verify|show|consolidate|import")
    for name, help_text in (
        ("ls", "list the generations"),
        ("verify", "check every byte"),
        ("show", "show what a generation holds"),
        ("consolidate", "write the tensors of a generation into one file"),
    ):
        action = actions.add_parser(name, help=help_text)
        action.add_argument("folder", type=Path, metavar="DIR", help="the folder of the checkpoints")
        if name != "ls":
            default = "all" if name == "verify" else "the newest"
            action.add_argument(
                "-g", "--generation", type=int, metavar="N", help=f"default: {default}"
            )
        if name == "consolidate":
            action.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
            action.add_argument(
                "--only", default="", metavar="PREFIX",
                help="tensors whose path begins so, without it: 'model/' leaves those of the model",
            )  # fmt: skip
    _add_import(actions.add_parser("import", help="take over a folder of torch.distributed.checkpoint"))
    parsed = parser.parse_args(arguments)
    if parsed.action == "import":
        return _import(parsed.source, parsed.folder, parsed.step, parsed.places)
    if not parsed.folder.is_dir():
        raise InvalidArgument(f"there is no folder {parsed.folder}. Pass the folder of the checkpoints.")
    folder = Folder(parsed.folder)
    if parsed.action == "ls":
        return _list(folder)
    if parsed.action == "verify":
        return _verify(folder, parsed.generation)
    manifest = folder.manifest(_chosen(folder, parsed.generation))
    if parsed.action == "show":
        return _show(manifest)
    return _consolidate(folder, manifest, parsed.output, parsed.only)


def _add_import(action: argparse.ArgumentParser) -> None:
    action.add_argument("source", type=Path, metavar="SOURCE", help="the folder that dcp.save() was given")
    action.add_argument("folder", type=Path, metavar="DIR", help="the folder of the checkpoints")
    action.add_argument("--step", type=int, default=0, metavar="N", help="that it is of; default: 0")
    action.add_argument(
        "--as", dest="places", action="append", default=[], type=_place, metavar="OBJECT=PATH",
        help="where the state of an object lies: model=app/net; default: model, and optimizer or optim",
    )  # fmt: skip


def _place(text: str) -> tuple[str, str]:
    role, is_pair, place = text.partition("=")
    if not role or not is_pair:
        raise argparse.ArgumentTypeError(f"{text!r} is not OBJECT=PATH, such as model=app/net")
    return role, place


def _import(source: Path, folder: Path, step: int, places: Sequence[tuple[str, str]]) -> int:
    try:
        # Only this action needs torch.
        dcp = import_module(_IMPORTER)
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"{source} is read by torch itself, and {error.name} is not installed. Install torch (pip install "
            "torch) where you import; what is imported is read without it."
        ) from error
    number = dcp.import_checkpoint(source, folder, step=step, places=dict(places))
    _print(f"{folder}: generation {number}, step {step}, of {source}")
    return 0


def _chosen(folder: Folder, number: int | None) -> int:
    known = folder.committed()
    if number is None and known:
        return known[-1]
    if number is None or number not in known:
        wanted = "no generation" if number is None else f"no generation {number}"
        listed = ", ".join(map(str, known)) or "none"
        if known:
            listed += " (generations count what was saved; 'rabitrun checkpoint ls' has their steps)"
        raise InvalidArgument(f"{folder.path} has {wanted}; finished are: {listed}.")
    return number


def _list(folder: Folder) -> int:
    _print(f"{'generation':>10} {'step':>10} {'ranks':>6} {'bytes':>16}  saved")
    committed = set(folder.committed())
    for number in folder.numbers():
        if number not in committed:
            _print(f"{number:>10} {'':>10} {'':>6} {'':>16}  not finished")
            continue
        try:
            found = folder.manifest(number)
        except (CheckpointDamaged, OSError) as error:  # Of one; the others are listed all the same.
            _print(f"{number:>10} {'':>10} {'':>6} {'':>16}  {error}")
            continue
        _print(f"{number:>10} {found.step:>10} {found.size:>6} {found.bytes:>16,}  {found.saved_at}")
    return 0


def _verify(folder: Folder, number: int | None) -> int:
    numbers = folder.committed() if number is None else [_chosen(folder, number)]
    damaged = 0
    for each in numbers:
        problems = folder.problems(each)
        damaged += bool(problems)
        _print(f"generation {each}: {'whole' if not problems else 'damaged'}")
        for line in problems:
            _print(f"  {line}")
    if not numbers:
        print(printable(f"{folder.path} has no finished generation."), file=sys.stderr)
    return 1 if damaged or not numbers else 0


def _show(manifest: Manifest) -> int:
    _print(
        f"generation {manifest.generation}, step {manifest.step}, saved by {manifest.size} ranks at "
        f"{manifest.saved_at} with rabit {manifest.rabit}"
    )
    groups = [("equal on all ranks", manifest.tensors, manifest.state)]
    pairs = zip(manifest.local_tensors, manifest.local, strict=True)
    groups += [(f"of rank {rank}", *pair) for rank, pair in enumerate(pairs)]
    for title, tensors, document in groups:
        print()
        _print(f"{title}: {len(tensors)} tensor{'s' * (len(tensors) != 1)}")
        for name, tensor in tensors.items():
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            _print(f"  {tensor.dtype:<7} {shape:<16} {tensor.bytes:>14,}  {name}")
        print(printable_lines(json.dumps(document, indent=1)))
    return 0


def _consolidate(folder: Folder, manifest: Manifest, output: Path, prefix: str) -> int:
    tensors = {n: tensor for n, tensor in manifest.tensors.items() if n.startswith(prefix)}
    if not tensors:
        raise InvalidArgument(
            f"generation {manifest.generation} has no tensor whose path begins with {prefix!r}; "
            "rabitrun checkpoint show lists them."
        )
    reader = Reader(folder, manifest)
    entries = [Entry(n[len(prefix) :], entry.dtype, entry.shape) for n, entry in tensors.items()]
    partial = output.with_name(output.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(header(entries, {"format": "pt"}))
            for each in tensors.values():
                file.write(_read(reader, each))
        partial.replace(output)
    except OSError as error:
        raise InvalidArgument(
            f"{output} cannot be written: {error.strerror}. Give another file to -o, or make room."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # Where it never was, as in a folder that is not there.
            partial.unlink(missing_ok=True)
    _print(f"{output}: {len(tensors)} tensor{'s' * (len(tensors) != 1)} of generation {manifest.generation}")
    return 0


def _read(reader: Reader, tensor: Tensor) -> memoryview:
    try:
        return reader.tensor(tensor).data
    except OSError as error:
        raise CheckpointDamaged(
            f"{error.filename} cannot be read: {error.strerror}. 'rabitrun checkpoint verify' tells which "
            "generations are whole; -g takes another one."
        ) from error


def _print(line: str) -> None:
    """One line, which may hold names of tensors and what a stranger has written into a manifest."""
    print(printable(line))


if __name__ == "__main__":
    sys.exit(run_command("rabitrun checkpoint", lambda: main(sys.argv[1:])))
