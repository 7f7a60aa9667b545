"""The command line of rabitrun, as an argparse parser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from rabit.config.arguments import LineParser, duration_up_to
from rabit.config.config import Config
from rabit.config.setting import Setting
from rabit.launch.launchers.launcher import LAUNCHERS
from rabit.launch.options import horovod
from rabit.launch.processors import BINDINGS
from rabit.version import __version__

__all__ = ["make_parser", "setting_destination"]

_DURATION = duration_up_to(86400.0, "24 hours")

# What most people need, on one screen.  A test compares it with the flags.
_HELP = """\
usage: rabitrun -np N [flags] command [argument ...]

Starts a program N times, on one or several hosts, as the ranks of one job.

  -np N                  number of ranks (default: all slots of the hosts)
  -H HOST:SLOTS,…        hosts, reached by ssh, and how many ranks each may run
  --hostfile FILE        the same from a file: 'node1 slots=4' or 'node1:4' in each line
  --env NAME[=VALUE]     set a variable for all ranks, or pass on its value (repeatable)
  --output-filename DIR  also write DIR/rank.N/stdout and DIR/rank.N/stderr
  --max-restarts N       start the job again when a rank fails, at most N times
  --min-np N             an elastic job: continue with at least N ranks after a loss
  --max-np N             with --min-np: replace lost ranks, and grow to at most N
  -s N                   N summation servers (backend ps)
  --overlap MODE         none, backward, next-forward, reduce-scatter or auto
  --strategy METHOD      gradient method, such as powersgd:rank=2; help: list them
  --timeline FILE        trace of every operation, for chrome://tracing
  --config-file FILE     settings, as TOML or YAML
  --dry-run              show what would be started, and start nothing
  --show-config          every setting with its value and where that comes from
  --check-build          what this installation can do, and what is missing
  --help-all             all flags; docs/reference/config.md describes the settings

examples:
  rabitrun -np 4 python train.py                     4 ranks on this machine
  rabitrun -np 8 -H node1:4,node2:4 python train.py  2 hosts, over ssh
  rabitrun -np 4 --min-np 2 python train.py          elastic (rabit.elastic)
  rabitrun -np 4 -s 2 python train.py                with 2 summation servers
  rabitrun -np 4 bench allreduce                     time and check collectives
  rabitrun -np 4 tune -o table.json                  find the fastest routes
  rabitrun checkpoint ls DIR                         also verify, show, consolidate
  rabitrun log ops.csv                               add up what --comm-log recorded
  rabitrun submit python train.py                    batch script of a job of Slurm

Ranks call rabit.init(). The first rank that fails is reported, the others are stopped,
and rabitrun exits with its status. Ctrl-C stops all ranks; a second one kills them.
"""
_EPILOG = """\
A setting is a flag, a variable RABIT_* and a key of --config-file: a flag wins over a variable, a variable
over the file. rabitrun --help has examples; so has each subcommand (rabitrun bench --help).
"""
_ADVICE = "Flags of the program go after its name; rabitrun --help-all lists those of rabitrun."


class _ShortHelp(argparse.Action):
    """Prints `_HELP`, and ends the process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        print(_HELP, end="")
        parser.exit()


class _WholeHelp(argparse.Action):
    """Prints every flag, and ends the process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        print(parser.format_help(), end="")
        parser.exit()


def make_parser(is_whole: bool = True) -> argparse.ArgumentParser:
    """The parser; `command` is the rest of the line after the last flag.

    is_whole: False: of the flags alone, to be found among others, without a command and --help.
    """
    parser = LineParser(
        prog="rabitrun",
        usage="rabitrun -np N [flags] command [argument ...]",
        description="Starts a program N times, on one or several hosts, as the ranks of one job.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.advice = _ADVICE
    if is_whole:
        parser.add_argument("-h", "--help", action=_ShortHelp, nargs=0, help="the flags that most jobs need")
        parser.add_argument("--help-all", action=_WholeHelp, nargs=0, help="this page")
    parser.add_argument("-v", "--version", action="version", version=f"rabitrun {__version__}")
    job = parser.add_argument_group("job")
    _add_job_flags(job)
    _add_failure_flags(job)
    _add_output_flags(parser.add_argument_group("output"))
    _add_ssh_flags(parser.add_argument_group("ssh"))
    titles = {
        "network": "network",
        "tuning": "tuning",
        "failure": "failures",
        "diagnosis": "diagnosis",
        "placement": "secret",
    }
    groups = {key: parser.add_argument_group(title) for key, title in titles.items()}
    for setting in Config.settings():
        if setting.flag:
            _add_setting(groups[setting.group], setting)
    horovod.add_to(parser.add_argument_group("flags of horovodrun, understood as well"))
    if is_whole:
        parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_job_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-np", "--num-proc", "-n", type=int, dest="np", metavar="N",
        help="number of ranks (default: all slots of -H or --hostfile)",
    )  # fmt: skip
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "-H", "--hosts", metavar="HOST:SLOTS,…",
        help="hosts and how many ranks each may run; brackets around IPv6 addresses",
    )  # fmt: skip
    where.add_argument(
        "-hostfile", "--hostfile", type=Path, metavar="FILE",
        help="the same from a file, one host in each line: 'node1 slots=4' or 'node1:4'",
    )  # fmt: skip
    group.add_argument(
        "--order", type=Path, metavar="FILE",
        help="start ranks on the hosts in the order of a plan (rabitrun plan -o FILE), the closest next to each other",
    )  # fmt: skip
    group.add_argument(
        "--server-hosts", metavar="HOST:SERVERS,…",
        help="hosts of the summation servers (--servers; default: the hosts of the ranks, in turn)",
    )  # fmt: skip
    group.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="set a variable for all ranks, or pass on its value from here (repeatable)",
    )  # fmt: skip
    group.add_argument(
        "--start-timeout", type=_DURATION, dest="start_s", default=30.0, metavar="TIME",
        help="how long hosts may take to start their ranks (default 30s)",
    )  # fmt: skip
    group.add_argument(
        "--grace-time", type=_DURATION, dest="grace_s", default=5.0, metavar="TIME",
        help="between asking ranks to stop (SIGTERM) and killing them (default 5s)",
    )  # fmt: skip
    group.add_argument(
        "--init-torch", action="store_true",
        help="start torch's process group on the backend rabit before the program, which may be any of Accelerate, "
        "the Trainer of Hugging Face or Keras",
    )  # fmt: skip
    group.add_argument(
        "--launcher", choices=tuple(LAUNCHERS), default="rabit",
        help="who starts the ranks: " + "; ".join(f"{name}: {who}" for name, (_, who) in LAUNCHERS.items()),
    )  # fmt: skip
    group.add_argument(
        "--bind-to", choices=BINDINGS, default="none",
        help="processors of each rank: all of the host (none), those of one NUMA node, or an equal "
        "share of its own (core)",
    )  # fmt: skip
    group.add_argument(
        "--verbose", action="store_true", dest="is_verbose", help="report every step"
    )
    group.add_argument(
        "--dry-run", action="store_true", help="show what would be started, and start nothing"
    )
    group.add_argument(
        "--show-config",
        action="store_true",
        help="print every setting with its value, where the value comes from, and what it means",
    )
    group.add_argument(
        "--list-strategies", action="store_true",
        help="list the gradient methods with their parameters, bits and memory; also --strategy help",
    )  # fmt: skip
    group.add_argument(
        "-cb", "--check-build", action="store_true", help="list what is available, and why not"
    )
    group.add_argument(
        "--check-build-json", action="store_true", help="the same as one JSON document"
    )


def _add_failure_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-restarts", type=int, default=0, metavar="N",
        help="start the whole job again when a rank has failed, at most N times (default 0); "
        "programs continue from their checkpoint",
    )  # fmt: skip
    group.add_argument(
        "--spares", type=int, default=0, metavar="N",
        help="of an elastic job (--min-np): N further processes that have run as far as rabit.init() and "
        "take the place of lost ranks at once (default 0)",
    )  # fmt: skip
    group.add_argument(
        "--store-replicas", type=int, default=1, metavar="N",
        help="of an elastic job (--min-np): N stores (3 or 5), on as many hosts as there are, hold what the ranks "
        "agree on, and the job continues when rabitrun or fewer than half of these hosts are lost (default 1)",
    )  # fmt: skip


def _add_output_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output-filename", type=Path, metavar="DIR", dest="output_folder",
        help="also write DIR/rank.N/stdout and DIR/rank.N/stderr",
    )  # fmt: skip
    group.add_argument(
        "--collapse-output", action="store_true", dest="is_collapsed",
        help="write a line that several ranks print alike once: 'ranks 1-3: …'",
    )  # fmt: skip
    group.add_argument(
        "--prefix-output-with-timestamp", "-prefix-timestamp", "--timestamps",
        action="store_true", dest="has_timestamps", help="put the time before every line",
    )  # fmt: skip


def _add_ssh_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-p", "--ssh-port", type=_port, metavar="PORT", help="port of sshd")
    group.add_argument(
        "-i", "--ssh-identity-file", type=Path, metavar="FILE", help="private key for ssh"
    )
    group.add_argument(
        "--ssh-option", action="append", default=[], metavar="NAME=VALUE",
        help="further option of ssh, as for ssh -o (repeatable)",
    )  # fmt: skip
    group.add_argument("--ssh-always", action="store_true", help="use ssh for this machine as well")
    group.add_argument(
        "--remote-python", metavar="PATH",
        help="Python of the other hosts (default: the path of the one here)",
    )  # fmt: skip


def setting_destination(each: Setting) -> str:
    """The attribute of the parsed arguments that holds the flag of this setting."""
    return "setting_" + each.name


def _add_setting(group: argparse._ArgumentGroup, each: Setting) -> None:
    default = f" (default {each.format(each.default)})" if each.format(each.default) else ""
    help_text = (each.help + default).replace("%", "%%")
    if each.kind == "bool":
        group.add_argument(
            each.flag,
            action=argparse.BooleanOptionalAction,
            dest=setting_destination(each),
            default=None,
            help=help_text,
        )
        return
    names = [each.short_flag, each.flag] if each.short_flag else [each.flag]
    metavar = "|".join(each.choices) if each.choices else each.kind.upper()
    group.add_argument(
        *names, dest=setting_destination(each), metavar=metavar, default=None, help=help_text
    )



def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 1 and 65535")
    return int(text)
