"""The job that a command line describes: its settings are read here, and its hosts looked up, once."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path

from rabit.config.config import Config
from rabit.config.together import check_together
from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host, local_hosts, parse_hostfile, parse_hosts
from rabit.launch.job import Job
from rabit.launch.nodes.ssh import SshOptions
from rabit.launch.options import byteps
from rabit.launch.options.cluster_hosts import cluster_hosts
from rabit.launch.options.elastic import elastic_asked, idle_bounds
from rabit.launch.options.environment import user_environ
from rabit.launch.options.first_hosts import HostScript, bounded_size
from rabit.launch.options.settings import JobSettings, read_settings
from rabit.launch.plan import Plan, make_plan, with_servers
from rabit.launch.program import working_directory
from rabit.launch.resolution import resolved
from rabit.threads import Call

__all__ = ["job_of", "settings_of"]


def settings_of(parsed: argparse.Namespace, environ: Mapping[str, str]) -> JobSettings:
    """The settings of the ranks, those of --env as well."""
    return read_settings(parsed, {**environ, **user_environ(parsed.env, environ)})


def job_of(
    parsed: argparse.Namespace,
    environ: Mapping[str, str],
    script: HostScript | None = None,
    payload: bytes | None = None,
) -> Job:
    """The job, checked.  Blocks while the resolver and `script` answer.  Starts nothing else.

    script: of --host-discovery-script.  payload: a call that ranks make in place of a command.
    Raises InvalidArgument for what cannot be started.
    """
    command = _command(parsed) if payload is None else ()
    if parsed.init_torch:
        command = _with_process_group(command)
    user = user_environ(parsed.env, environ)
    settings = read_settings(parsed, {**environ, **user})
    check_together(settings.config, "for all ranks")
    if settings.config.strategy:
        from rabit.strategies import make

        make(settings.config.strategy)
    if parsed.max_restarts < 0:
        raise InvalidArgument(f"--max-restarts is {parsed.max_restarts}: expected 0 or more.")
    hosts, size, source = _hosts(parsed, script, environ)
    plan = make_plan(hosts, size)
    elastic = elastic_asked(parsed, hosts, script, plan.size)
    plan, tuning = _with_servers(plan, parsed, settings)
    found = {
        "plan": plan,
        "command": command,
        "payload": payload,
        "directory": working_directory(),
        "environ": environ,
        "tuning": tuning,
        "user": user,
        "notices": (*settings.notices, *idle_bounds(parsed)),
        "elastic": elastic,
        "hosts_source": source,
        "ssh": _ssh(parsed),
        "mpi_arguments": _mpi_arguments(parsed),
        "secret": _secret(parsed.setting_secret_file),
    }
    named = {field.name for field in dataclasses.fields(Job)} & set(vars(parsed))
    return Job(**{**{name: getattr(parsed, name) for name in named}, **found})


def _command(parsed: argparse.Namespace) -> tuple[str, ...]:
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    if not command:
        raise InvalidArgument(
            "there is no command to run. Give it after the flags, such as "
            "'rabitrun -np 2 python train.py'; see rabitrun --help."
        )
    if command[0].startswith("-"):
        raise InvalidArgument(
            f"the flag {command[0]} is unknown: see rabitrun --help-all. Flags of the program go "
            f"after its name: rabitrun -np 2 python train.py {shlex.join(command)}"
        )
    return tuple(command)


def _with_process_group(command: tuple[str, ...]) -> tuple[str, ...]:
    """`python [options] script` with a program before the script that starts torch's default process group."""
    if not command or not Path(command[0]).name.startswith("python"):
        raise InvalidArgument(
            f"--init-torch: the command is {shlex.join(command)!r}, and only a Python program can begin with a process "
            "group. Give it as 'python train.py' or 'python -m module'."
        )
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] != "-m":
        at += 1
    return (*command[:at], "-m", "rabit_torch.init_first", *command[at:])


def _hosts(
    parsed: argparse.Namespace, script: HostScript | None, environ: Mapping[str, str]
) -> tuple[list[Host], int, str]:
    """All hosts that there are at the start, how many ranks are to be started on them, and who named the hosts."""
    hosts, source = None, ""
    if parsed.hosts is not None:
        hosts = parse_hosts(parsed.hosts)
    elif parsed.hostfile is not None:
        hosts = parse_hostfile(parsed.hostfile)
    elif script is not None:
        # Aside: a signal that comes while the script starts would leave it behind.
        hosts = Call(script.hosts, "host-script").result()
    elif (found := cluster_hosts(environ)) is not None:
        hosts, source = list(found.hosts), found.source
    if parsed.order is not None:
        # Loads the planner, and NumPy with it.
        from rabit.launch.options.order import in_order

        hosts = in_order(hosts or (), parsed.order)
    slots = None if hosts is None else sum(host.slots for host in hosts)
    wanted = parsed.np
    if wanted is None and hosts is None:
        wanted = byteps.worker_count(environ)
    size = bounded_size(wanted, slots, parsed.min_np, parsed.max_np)
    return local_hosts(max(1, size)) if hosts is None else resolved(hosts), size, source


def _with_servers(
    plan: Plan, parsed: argparse.Namespace, settings: JobSettings
) -> tuple[Plan, dict[str, str]]:
    """`plan` with its summation servers, and the variables of the ranks, which must know of them."""
    config: Config = settings.config
    hosts = None
    if parsed.server_hosts:
        known = [on_host.host for on_host in plan.hosts]
        hosts = resolved(parse_hosts(parsed.server_hosts, "--server-hosts"), known)
    servers = config.servers or sum(host.slots for host in hosts or ())
    plan = with_servers(plan, servers, hosts, config.server_replicas)
    if not servers:
        return plan, settings.tuning
    if parsed.min_np is not None:
        raise InvalidArgument(
            "summation servers keep the ranks that they began with, and --min-np lets a job continue "
            "with fewer. Leave out one of the two."
        )
    tuning = {**settings.tuning, "RABIT_SERVERS": str(servers)}
    if "backend" not in settings.given and not config.route:
        tuning["RABIT_BACKEND"] = "ps"  # Nobody starts servers to leave them idle.
    return plan, tuning


def _ssh(parsed: argparse.Namespace) -> SshOptions:
    return SshOptions(
        port=parsed.ssh_port,
        identity_file=parsed.ssh_identity_file,
        options=tuple(parsed.ssh_option),
        python=parsed.remote_python or "",
        is_always=parsed.ssh_always,
        connect_timeout_s=max(1, int(min(15, parsed.start_s))),
    )


def _mpi_arguments(parsed: argparse.Namespace) -> tuple[str, ...]:
    if parsed.binding_args and parsed.bind_to != "none":
        raise InvalidArgument("--binding-args and --bind-to contradict each other. Give one.")
    try:
        return tuple(shlex.split(f"{parsed.mpi_args} {parsed.binding_args}"))
    except ValueError as error:
        raise InvalidArgument(
            f"--mpi-args or --binding-args has an unclosed quote: {error}. Close it."
        ) from error


def _secret(path: str | None) -> bytes | None:
    if not path:
        return None
    from rabit.rendezvous.placement import secret_from_file

    return secret_from_file(path)
