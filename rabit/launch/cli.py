"""The command line of rabitrun."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rabit.command import run_command
from rabit.config.config import process_environment
from rabit.diagnostics.process import open_standard_streams
from rabit.launch.options import byteps
from rabit.launch.options.flags import make_parser
from rabit.launch.subcommands import apply_subcommand, find_subcommand, run_locally
from rabit.printable import printable, printable_lines

if TYPE_CHECKING:
    from rabit.launch.options.first_hosts import HostScript

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments` (default: that of the process); returns the exit status."""
    open_standard_streams()
    return run_command("rabitrun", lambda: _main(make_parser().parse_args(arguments)))


def _main(parsed: argparse.Namespace) -> int:
    if parsed.command:
        has_ranks = any(each is not None for each in (parsed.np, parsed.hosts, parsed.hostfile))
        found, notice = find_subcommand(parsed.command[0], process_environment(), has_ranks)
        if notice:
            print(f"rabitrun: {notice}", file=sys.stderr)
        found = found and found.with_words(parsed.command[1:])
        if found is not None and found.is_local:
            return run_locally(found, parsed.command[1:])
        parsed = parsed if found is None else apply_subcommand(found, parsed)
    if parsed.check_build or parsed.check_build_json:
        from rabit.diagnostics.check_build import print_report

        return print_report(as_json=parsed.check_build_json)
    if parsed.list_strategies or parsed.setting_strategy == "help":
        from rabit.strategies import describe

        print(describe(), end="")
        return 0
    if parsed.show_config:
        from rabit.launch.options.assembly import settings_of

        config = settings_of(parsed, process_environment()).config
        print(printable_lines(config.explain()), end="")
        return 0
    return _run(parsed)


def _run(parsed: argparse.Namespace) -> int:
    if parsed.host_discovery_script is None and parsed.min_np is not None and not (parsed.hosts or parsed.hostfile):
        from rabit.launch.options.cluster_hosts import discovery_script

        parsed.host_discovery_script = discovery_script(process_environment())
    if parsed.host_discovery_script is None:
        return _run_job(parsed, None)
    from rabit.launch.options.first_hosts import HostScript

    script = HostScript(parsed.host_discovery_script, parsed.slots_per_host)
    with contextlib.closing(script):
        return _run_job(parsed, script)


def _run_job(parsed: argparse.Namespace, script: HostScript | None) -> int:
    from rabit.launch.launchers.launcher import find_launcher
    from rabit.launch.options.assembly import job_of
    from rabit.launch.restarts import run_with_restarts

    environ = process_environment()
    byteps.check_role(environ)
    job = job_of(parsed, environ, script)
    launcher = find_launcher(parsed.launcher, job)
    for notice in job.notices:
        print(f"rabitrun: {printable(notice)}", file=sys.stderr)
    if parsed.dry_run:
        if job.hosts_source:
            print(printable(f"hosts from {job.hosts_source}"))
        print(printable_lines(launcher.describe(job)))
        return 0
    return run_with_restarts(launcher, job).status
