"""The command line of rabitrun."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rabit.command import run_command
from rabit.config.config import process_environment
from rabit.diagnostics.process import open_standard_streams
from rabit.errors import InvalidArgument
from rabit.launch.options import byteps
from rabit.launch.options.flags import make_parser
from rabit.launch.subcommands import apply_subcommand, find_subcommand, run_locally
from rabit.printable import printable, printable_lines

if TYPE_CHECKING:
    from rabit.launch.hosts import Host
    from rabit.launch.options.first_hosts import HostScript
    from rabit.launch.plan import Plan

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments` (default: that of the process); returns the exit status."""
    open_standard_streams()
    return run_command("rabitrun", lambda: _main(make_parser().parse_args(arguments)))


def _main(parsed: argparse.Namespace) -> int:
    if parsed.command:
        found, notice = find_subcommand(parsed.command[0], process_environment())
        if notice:
            print(f"rabitrun: {notice}", file=sys.stderr)
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
        from rabit.launch.options.settings import job_config

        print(printable_lines(job_config(parsed, process_environment()).explain()), end="")
        return 0
    return _run(parsed)


def _run(parsed: argparse.Namespace) -> int:
    if parsed.host_discovery_script is None:
        return _run_job(parsed, None)
    from rabit.launch.options.first_hosts import HostScript

    script = HostScript(parsed.host_discovery_script, parsed.slots_per_host)
    with contextlib.closing(script):
        return _run_job(parsed, script)


def _run_job(parsed: argparse.Namespace, script: HostScript | None) -> int:
    from rabit.launch.launchers.rabitrun import Request
    from rabit.launch.nodes.ssh import SshOptions
    from rabit.launch.options.elastic import fewest_ranks, growth_asked, idle_bounds, store_count
    from rabit.launch.options.environment import user_environ
    from rabit.launch.options.settings import tuning_environ
    from rabit.launch.plan import make_plan
    from rabit.launch.supervisor import Times

    environ = process_environment()
    command = _command(parsed)
    byteps.check_role(environ)
    tuning, notices = tuning_environ(parsed, environ)
    for notice in [*notices, *idle_bounds(parsed)]:
        print(f"rabitrun: {printable(notice)}", file=sys.stderr)
    _check_settings(parsed, environ, tuning)
    hosts, size = _hosts(parsed, script, environ)
    plan = _with_servers(make_plan(hosts, size), parsed, environ, tuning)

    request = Request(
        plan=plan,
        command=command,
        environ=environ,
        tuning=tuning,
        user=user_environ(parsed.env, environ),
        times=Times(start_s=parsed.start_timeout, grace_s=parsed.grace_time),
        ssh=SshOptions(
            port=parsed.ssh_port,
            identity_file=parsed.ssh_identity_file,
            options=tuple(parsed.ssh_option),
            python=parsed.remote_python or "",
            is_always=parsed.ssh_always,
            connect_timeout_s=max(1, int(min(15, parsed.start_timeout))),
        ),
        output_folder=parsed.output_filename,
        has_timestamps=parsed.timestamps,
        is_collapsed=parsed.collapse_output,
        is_verbose=parsed.verbose,
        has_bare_rank_0=getattr(parsed, "is_subcommand", False),
        least=fewest_ranks(parsed),
        grows=growth_asked(parsed, hosts, script, plan.size),
        stores=store_count(parsed),
        bind_to=parsed.bind_to,
        mpi_arguments=_mpi_arguments(parsed),
        secret=_secret(parsed),
    )
    if parsed.max_restarts < 0:
        raise InvalidArgument(f"--max-restarts is {parsed.max_restarts}: expected 0 or more.")
    if parsed.max_restarts and parsed.launcher == "mpi":
        raise InvalidArgument(
            "--max-restarts is for ranks that rabitrun starts itself, and --launcher mpi leaves them to "
            "mpiexec. Leave out one of the two."
        )
    if parsed.launcher == "mpi":
        from rabit.launch.launchers import mpi

        if not parsed.dry_run:
            mpi.run(request)
        print(printable_lines(mpi.describe(request)))
        return 0
    if parsed.dry_run:
        from rabit.launch.dry_run import describe

        print(printable_lines(describe(request)))
        return 0
    from rabit.launch.restarts import launch_again

    return launch_again(request, parsed.max_restarts).status


def _check_settings(
    parsed: argparse.Namespace, environ: Mapping[str, str], tuning: Mapping[str, str]
) -> None:
    """A mistake is told once, and not by every rank after it has started."""
    from rabit.config.together import check_together
    from rabit.launch.options.environment import user_environ
    from rabit.launch.options.settings import job_config

    of_ranks = {**environ, **user_environ(parsed.env, environ)}
    check_together(job_config(parsed, of_ranks), "for all ranks")
    if text := tuning.get("RABIT_STRATEGY") or environ.get("RABIT_STRATEGY"):
        from rabit.strategies import make

        make(text)


def _command(parsed: argparse.Namespace) -> tuple[str, ...]:
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    if not command:
        raise InvalidArgument(
            "there is no command to run. Give it after the flags, such as "
            "'rabitrun -np 2 python train.py'; see rabitrun --help."
        )
    if command[0].startswith("-"):
        raise InvalidArgument(
            f"the flag {command[0]} is unknown: see rabitrun --help. Flags of the program go "
            f"after its name: rabitrun -np 2 python train.py {shlex.join(command)}"
        )
    return tuple(command)


def _hosts(
    parsed: argparse.Namespace, script: HostScript | None, environ: Mapping[str, str]
) -> tuple[list[Host], int]:
    """All hosts that there are at the start, and how many ranks are to be started on them."""
    from rabit.launch.hosts import local_hosts, parse_hostfile, parse_hosts
    from rabit.launch.options.first_hosts import bounded_size
    from rabit.launch.resolution import resolved
    from rabit.threads import Call

    hosts = None
    if parsed.hosts is not None:
        hosts = parse_hosts(parsed.hosts)
    elif parsed.hostfile is not None:
        hosts = parse_hostfile(parsed.hostfile)
    elif script is not None:
        # Aside: a signal that comes while the script starts would leave it behind.
        hosts = Call(script.hosts, "host-script").result()
    slots = None if hosts is None else sum(each.slots for each in hosts)
    wanted = parsed.np
    if wanted is None and hosts is None:
        wanted = byteps.worker_count(environ)
    size = bounded_size(wanted, slots, parsed.min_np, parsed.max_np)
    return local_hosts(max(1, size)) if hosts is None else resolved(hosts), size


def _with_servers(
    plan: Plan, parsed: argparse.Namespace, environ: Mapping[str, str], tuning: dict[str, str]
) -> Plan:
    """`plan` and its summation servers; `tuning` gets what the ranks must know of them."""
    from rabit.launch.hosts import parse_hosts
    from rabit.launch.options.environment import base_environ
    from rabit.launch.options.settings import job_config
    from rabit.launch.plan import with_servers
    from rabit.launch.resolution import resolved

    config = job_config(parsed, environ)
    hosts = None
    if parsed.server_hosts:
        known = [on_host.host for on_host in plan.hosts]
        hosts = resolved(parse_hosts(parsed.server_hosts, "--server-hosts"), known)
    servers = config.servers or sum(each.slots for each in hosts or ())
    if not servers:
        return with_servers(plan, 0, hosts, config.server_replicas)
    if parsed.launcher == "mpi":
        raise InvalidArgument(
            "summation servers are for ranks that rabitrun starts itself, and --launcher mpi leaves "
            "them to mpiexec. Leave out one of the two."
        )
    if parsed.min_np is not None:
        raise InvalidArgument(
            "summation servers keep the ranks that they began with, and --min-np lets a job go on "
            "with fewer. Leave out one of the two."
        )
    tuning["RABIT_SERVERS"] = str(servers)
    is_said = "RABIT_BACKEND" in {*tuning, *base_environ(environ)}
    if not is_said and not config.route:
        tuning["RABIT_BACKEND"] = "ps"  # Nobody starts servers to leave them idle.
    return with_servers(plan, servers, hosts, config.server_replicas)


def _mpi_arguments(parsed: argparse.Namespace) -> tuple[str, ...]:
    given = {"--mpi-args": parsed.mpi_args, "--binding-args": parsed.binding_args}
    for flag, text in given.items():
        if text and parsed.launcher != "mpi":
            raise InvalidArgument(
                f"{flag} is for mpiexec, and rabitrun starts the ranks itself. Add --launcher mpi, "
                f"or leave out {flag}."
            )
    if parsed.binding_args and parsed.bind_to != "none":
        raise InvalidArgument("--binding-args and --bind-to contradict each other. Give one.")
    try:
        return tuple(shlex.split(" ".join(given.values())))
    except ValueError as error:
        raise InvalidArgument(
            f"--mpi-args or --binding-args has an unclosed quote: {error}. Close it."
        ) from error


def _secret(parsed: argparse.Namespace) -> bytes | None:
    path = parsed.setting_secret_file
    if not path:
        return None
    from rabit.rendezvous.placement import secret_from_file

    return secret_from_file(path)
