"""What every launcher has, and what a job may ask of each."""

from __future__ import annotations

from importlib import import_module

import pytest

from rabit.errors import InvalidArgument
from rabit.launch.cli import main
from rabit.launch.hosts import local_hosts
from rabit.launch.job import Elastic, Job
from rabit.launch.launchers.launcher import LAUNCHERS, find_launcher
from rabit.launch.options.assembly import job_of
from rabit.launch.options.flags import make_parser
from rabit.launch.plan import make_plan, with_servers
from rabit.launch.resolution import resolved

PLAN = make_plan(local_hosts(2), 2)


def job(**more):
    return Job(**{"command": ("true",), "directory": "/", "plan": PLAN, "environ": {}, **more})


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_describes_and_runs_a_job(name):
    module = import_module(LAUNCHERS[name][0])

    assert callable(module.describe) and callable(module.run)
    assert find_launcher(name, job()) is module


@pytest.mark.parametrize(
    ("name", "asked", "reason"),
    [
        ("mpi", {"max_restarts": 1}, "--max-restarts is for ranks that rabitrun starts itself"),
        ("mpi", {"plan": with_servers(PLAN, 1, None)}, "-s or --servers is for ranks that rabitrun"),
        ("mpi", {"elastic": Elastic(1)}, "--min-np is for ranks that rabitrun starts itself"),
        ("mpi", {"is_collapsed": True}, "--launcher mpi leaves the output to mpiexec"),
        ("mpi", {"payload": b""}, "rabit.run cannot be combined with it"),
        ("mpi", {"bind_to": "core"}, "Use --bind-to numa or none"),
        ("rabit", {"mpi_arguments": ("-v",)}, "Add --launcher mpi"),
    ],
)
def test_what_a_launcher_lacks_is_refused_with_the_reason(name, asked, reason):
    with pytest.raises(InvalidArgument, match=reason):
        find_launcher(name, job(**asked))


def test_settings_are_read_and_hosts_looked_up_once(monkeypatch):
    from rabit.config import config, sources
    from rabit.launch.options import assembly

    calls = []

    def counted(name, function):
        def call(*arguments, **options):
            calls.append(name)
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(sources, "read", counted("read", sources.read))
    monkeypatch.setattr(config.Config, "_check", counted("config", config.Config._check))
    monkeypatch.setattr(assembly, "resolved", counted("resolved", resolved))
    parsed = make_parser().parse_args(
        ["-H", "127.0.0.1:1,127.0.0.2:1", "-s", "1", "--env", "A=1", "--lanes", "3", "x"]
    )

    found = job_of(parsed, {"PATH": "/bin"})

    assert sorted(calls) == ["config", "read", "resolved"]
    assert found.store_host == "127.0.0.1" and found.user == {"A": "1"}
    assert found.tuning == {"RABIT_LANES": "3", "RABIT_SERVERS": "1", "RABIT_BACKEND": "ps"}


def test_flags_fill_the_fields_of_a_job_that_have_their_names():
    flags = ["--grace-time", "2s", "--bind-to", "numa", "--verbose", "--output-filename", "o"]

    found = job_of(make_parser().parse_args(["-np", "2", *flags, "x", "y"]), {})

    assert (found.grace_s, found.bind_to, found.is_verbose) == (2.0, "numa", True)
    assert str(found.output_folder) == "o" and found.command == ("x", "y")


def test_settings_of_env_count_for_the_whole_job(capsys):
    assert main(["-np", "2", "--env", "RABIT_SERVERS=1", "--dry-run", "x"]) == 0

    assert "summation server 0" in capsys.readouterr().out
