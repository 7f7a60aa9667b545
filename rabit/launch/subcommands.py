"""Subcommands of rabitrun: words that stand for a program of this package on every rank."""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from rabit.launch.options.flags import make_parser

__all__ = ["Subcommand", "apply_subcommand", "find_subcommand", "run_locally"]


@dataclass(frozen=True)
class Subcommand:
    """A word, the module that runs on the ranks, and the function that reads its command line.

    parser: module and function; it takes the words, and raises InvalidArgument for a mistake.
    is_local: nothing is started: the module's main takes the words, here.
    local: a flag with which, and a module for which, nothing is started either.
    """

    name: str
    module: str
    parser: tuple[str, str]
    is_local: bool = False
    local: tuple[str, str] = ("", "")

    def with_words(self, words: Sequence[str]) -> Subcommand:
        """The subcommand that these words ask for."""
        flag, module = self.local
        is_help = {"-h", "--help"} & set(words)
        if not flag or not (is_help or any(word.split("=")[0] == flag for word in words)):
            return self
        return replace(self, module=module, is_local=True)


_SUBCOMMANDS = {
    each.name: each
    for each in (
        Subcommand("bench", "rabit.bench", ("rabit.bench.options", "parse_bench")),
        Subcommand("tune", "rabit.bench.tune", ("rabit.bench.tune_options", "parse_tune")),
        Subcommand("checkpoint", "rabit.checkpoint.tool", ("", ""), is_local=True),
        Subcommand("log", "rabit.diagnostics.log_command", ("", ""), is_local=True),
        Subcommand("doctor", "rabit.launch.doctor_command", ("", ""), is_local=True),
        Subcommand("stacks", "rabit.diagnostics.stacks_command", ("", ""), is_local=True),
        Subcommand("top", "rabit.diagnostics.top_command", ("", ""), is_local=True),
        Subcommand("record", "rabit.diagnostics.record_command", ("", ""), is_local=True),
        Subcommand("submit", "rabit.launch.submit", ("", ""), is_local=True),
        Subcommand(
            "plan", "rabit.bench.plan", ("rabit.planner.command", "parse_probe"),
            local=("--topology", "rabit.planner.command"),
        ),
    )
}


def find_subcommand(
    word: str, environ: Mapping[str, str], has_ranks: bool = True
) -> tuple[Subcommand | None, str]:
    """The subcommand that `word` stands for, if any, and a notice for the user.

    has_ranks: the line says how many ranks there are, or where.  Without that, the word of what starts nothing is it.
    A program of that name in PATH comes first otherwise: it is what the same line runs without rabit.  A path, such as
    ./bench, is never a subcommand.
    """
    found = _SUBCOMMANDS.get(word)
    program = shutil.which(word, path=environ.get("PATH"))
    if found is None:
        near = difflib.get_close_matches(word, _SUBCOMMANDS, n=1, cutoff=0.75)
        is_mistake = near and word.isalpha() and program is None and not Path(word).exists()
        return None, f"did you mean the subcommand {near[0]}?" if is_mistake else ""
    if program is None or (found.is_local and not has_ranks):
        return found, ""
    launching = "" if found.is_local else "rabitrun -np N "
    return None, (
        f"'{word}' is {program} here; for that of rabit: {launching}python -m {found.module}"
    )


def run_locally(subcommand: Subcommand, words: Sequence[str]) -> int:
    """The exit status of a subcommand that starts nothing."""
    status: int = import_module(subcommand.module).main(words)
    return status


def apply_subcommand(subcommand: Subcommand, parsed: argparse.Namespace) -> argparse.Namespace:
    """What `rabitrun FLAGS bench ...` stands for: `parsed` with the program written out.

    Flags of rabitrun may stand on both sides of the word; what rabitrun does not know is the
    subcommand's, which checks it here once.
    """
    # argparse would take -h for the beginning of a flag of rabitrun's, -hostfile.
    words = ["--help" if each == "-h" else each for each in parsed.command[1:]]
    whole, own = make_parser(is_whole=False).parse_known_args(words, parsed)
    backends = [part.strip() for part in (whole.setting_backend or "").split(",") if part.strip()]
    if backends:
        own += ["--backend", ",".join(backends)]
    if "mpi" in backends:
        whole.launcher = "mpi"
    module, function = subcommand.parser
    getattr(import_module(module), function)(own)
    whole.command = [sys.executable, "-m", subcommand.module, *own]
    whole.has_bare_rank_0 = True
    return whole
