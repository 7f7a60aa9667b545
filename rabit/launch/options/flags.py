"""The command line of rabitrun, as an argparse parser."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import NoReturn

from rabit.config.arguments import duration_up_to
from rabit.config.config import Config
from rabit.config.setting import Setting
from rabit.launch.options import horovod
from rabit.launch.processors import BINDINGS
from rabit.printable import printable
from rabit.version import __version__

__all__ = ["make_parser", "setting_destination"]

_DURATION = duration_up_to(86400.0, "24 hours")

_EXAMPLES = """\
examples:
  rabitrun -np 4 python train.py                     4 ranks on this machine
  rabitrun -np 8 -H node1:4,node2:4 python train.py  2 hosts, over ssh
  rabitrun -np 4 -s 2 python train.py                with 2 summation servers (backend ps)
  rabitrun --hostfile hosts.txt python train.py      all slots of the file ("node1 slots=4")
  rabitrun -np 2 --env LR=0.1 --timeline t.json python train.py --epochs 3
  rabitrun -np 4 --min-np 2 python train.py          go on when ranks are lost (rabit.elastic)
  rabitrun -np 4 --min-np 2 --max-np 8 --spares 1 --hostfile hosts.txt python train.py
                                                     replace them, and grow when hosts come
  rabitrun -np 4 --dry-run python train.py           show what would be started
  rabitrun --show-config --config-file rabit.yaml    every setting and where it comes from
  rabitrun checkpoint ls DIR                         checkpoints; also verify, show, consolidate
  rabitrun --check-build                             what this installation can do
  rabitrun -np 4 bench allreduce --bytes 1K:64M      time and check collectives (bench --help)
  rabitrun -np 4 tune -o table.json                  find the fastest routes (tune --help)
  rabitrun log ops.csv                               add up what --comm-log ops.csv has recorded

Ranks find their place by rabit.init(). The first rank that fails is reported with its last
lines, the others are stopped, and rabitrun exits with its status (128 + signal if killed).
Ctrl-C stops all ranks; a second one kills them. Every tuning flag is also a variable RABIT_*
and a key of --config-file (TOML or YAML): a flag wins over a variable, a variable over the file.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _, is_unknown, names = message.partition("unrecognized arguments: ")
        if is_unknown:
            known = [name for action in self._actions for name in action.option_strings]
            first = names.split()[0].partition("=")[0]
            close = difflib.get_close_matches(first, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            message = (
                f"the flag {first} is unknown.{hint} Flags of the program go after its name; "
                "rabitrun --help lists those of rabitrun."
            )
        self.exit(2, f"rabitrun: {printable(message)}\n")


def make_parser(is_whole: bool = True) -> argparse.ArgumentParser:
    """The parser; `command` is the rest of the line after the last flag.

    is_whole: False: of the flags alone, to be found among others, without a command and --help.
    """
    parser = _Parser(
        prog="rabitrun",
        usage="rabitrun -np N [flags] command [argument ...]",
        description="Starts a program N times, on one or several hosts, as the ranks of one job.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=is_whole,
    )
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
    for each in Config.settings():
        if each.flag:
            _add_setting(groups[each.group], each)
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
        "--server-hosts", metavar="HOST:SERVERS,…",
        help="hosts of the summation servers (--servers; default: the hosts of the ranks, in turn)",
    )  # fmt: skip
    group.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="set a variable for all ranks, or pass on its value from here (repeatable)",
    )  # fmt: skip
    group.add_argument(
        "--start-timeout", type=_DURATION, default=30.0, metavar="TIME",
        help="how long hosts may take to start their ranks (default 30s)",
    )  # fmt: skip
    group.add_argument(
        "--grace-time", type=_DURATION, default=5.0, metavar="TIME",
        help="between asking ranks to stop (SIGTERM) and killing them (default 5s)",
    )  # fmt: skip
    group.add_argument(
        "--launcher", choices=("rabit", "mpi"), default="rabit",
        help="who starts the ranks: rabitrun itself, or the mpiexec of the MPI library, which "
        "the backend mpi needs",
    )  # fmt: skip
    group.add_argument(
        "--bind-to", choices=BINDINGS, default="none",
        help="processors of each rank: all of the host (none), those of one NUMA node, or an equal "
        "share of its own (core)",
    )  # fmt: skip
    group.add_argument("--verbose", action="store_true", help="tell every step")
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
        "programs go on from their checkpoint",
    )  # fmt: skip
    group.add_argument(
        "--spares", type=int, default=0, metavar="N",
        help="of an elastic job (--min-np): N further processes that have run as far as rabit.init() and "
        "take the place of lost ranks at once (default 0)",
    )  # fmt: skip
    group.add_argument(
        "--store-replicas", type=int, default=1, metavar="N",
        help="of an elastic job (--min-np): N stores (3 or 5), on as many hosts as there are, hold what the ranks "
        "agree on, and the job goes on when rabitrun or fewer than half of these hosts are lost (default 1)",
    )  # fmt: skip


def _add_output_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output-filename", type=Path, metavar="DIR",
        help="also write DIR/rank.N/stdout and DIR/rank.N/stderr",
    )  # fmt: skip
    group.add_argument(
        "--collapse-output", action="store_true",
        help="write a line that several ranks print alike once: 'ranks 1-3: …'",
    )  # fmt: skip
    group.add_argument(
        "--prefix-output-with-timestamp", "-prefix-timestamp", "--timestamps",
        action="store_true", dest="timestamps", help="put the time before every line",
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
