"""Ranks on other hosts, through a real sshd on this one."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from support import sshd as own_sshd

import rabit
from rabit.launch.hosts import Host, parse_hosts
from rabit.launch.job import Job
from rabit.launch.nodes.sink import Sink
from rabit.launch.nodes.ssh import SshOptions, ssh_command
from rabit.launch.output.output import Output, Style
from rabit.launch.plan import make_plan
from rabit.launch.roster import Roster
from rabit.launch.supervisor import Supervisor


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sshd")
    try:
        with own_sshd.started(folder) as port:
            yield folder, port
    except own_sshd.NoSshd as why:
        pytest.skip(str(why))


@pytest.fixture
def flags(sshd):
    return own_sshd.flags(*sshd)


@pytest.fixture
def environ():
    return {"PYTHONPATH": str(Path(rabit.__file__).parents[1])}


def test_ranks_run_on_two_hosts(rabitrun, flags, environ):
    script = "echo $RABIT_RANK $RABIT_SIZE $RABIT_LOCAL_RANK $RABIT_LOCAL_SIZE $RABIT_CROSS_RANK"
    job = rabitrun(*flags, "-H", "127.0.0.1:2,localhost:1", "sh", "-c", script, environ=environ)

    assert (job.status, job.err) == (0, "")
    assert sorted(job.out.splitlines()) == [
        "[127.0.0.1:0] 0 3 0 2 0",
        "[127.0.0.1:1] 1 3 1 2 0",
        "[localhost:2] 2 3 0 1 1",
    ]


def test_variables_and_quotes_arrive_unharmed(rabitrun, flags, environ):
    odd = 'it\'s a "test" $HOME `id` \\ ;'
    code = "import os, sys; print(os.environ['ODD'] == sys.argv[1], os.getcwd())"
    job = rabitrun(
        *flags, "-H", "localhost:1", "--env", "ODD", sys.executable, "-c", code, odd,
        environ={**environ, "ODD": odd},
    )  # fmt: skip

    assert job.out == f"[0] True {tempfile.gettempdir()}\n", job.err


def test_much_output_passes(rabitrun, flags, environ):
    code = "for _ in range(20_000): print('x' * 99)"
    job = rabitrun(*flags, "-H", "127.0.0.1:2", sys.executable, "-c", code, environ=environ)

    assert job.status == 0
    assert len(job.out) == 2 * 20_000 * 104


def test_the_status_and_the_last_lines_come_back(rabitrun, flags, environ):
    script = "[ $RABIT_RANK = 1 ] && { echo the reason >&2; kill -SEGV $$; }; sleep 600"
    job = rabitrun(*flags, "-H", "127.0.0.1:1,localhost:1", "sh", "-c", script, environ=environ)

    assert job.status == 139
    assert "rank 1 of 2 (host localhost) was killed by SIGSEGV" in job.err
    assert "    | the reason" in job.err
    job.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_pass_to_the_other_host(start, flags, environ, name):
    job = start(
        *flags, "-H", "127.0.0.1:2", "sh", "-c", "echo ready; exec sleep 600", environ=environ
    )
    job.wait_for_line("ready", 2)

    job.send(signal.Signals[name])

    assert job.wait() == 128 + signal.Signals[name]
    job.assert_nothing_is_left()


def test_user_signals_pass_to_the_other_host(start, flags, environ):
    script = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.1; done"
    job = start(*flags, "-H", "127.0.0.1:1", "sh", "-c", script, environ=environ)
    job.wait_for_line("ready")

    job.send(signal.SIGUSR1)

    assert job.wait() == 0 and "got it" in job.out


def test_killing_rabitrun_ends_the_ranks_of_other_hosts(start, flags, environ):
    job = start(
        *flags, "-H", "127.0.0.1:2", "--grace-time", "500ms",
        "sh", "-c", "setsid sleep 600 & echo ready; exec sleep 600", environ=environ,
    )  # fmt: skip
    job.wait_for_line("ready", 2)

    job.send(signal.SIGKILL)

    job.process.wait()
    job.assert_nothing_is_left()


def test_the_secret_is_in_no_command_line(start, flags, environ):
    code = (
        "import os, time; d = int(os.environ['RABIT_SECRET_FD'])\n"
        "print('secret', os.pread(d, 200, 0).decode(), flush=True); time.sleep(600)"
    )
    job = start(*flags, "-H", "127.0.0.1:2", sys.executable, "-c", code, environ=environ)
    secret = job.wait_for_line("secret", 2).split()[-1].encode()

    leaks = []
    for place in Path("/proc").iterdir():
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                if place.name.isdigit() and secret in (place / name).read_bytes():
                    leaks.append(f"{place}/{name}")

    assert len(secret) == 64 and leaks == []


def test_an_unknown_host_key_is_refused(rabitrun, flags, environ, tmp_path):
    (tmp_path / "empty").touch()
    changed = [
        f"UserKnownHostsFile={tmp_path}/empty" if "KnownHosts" in str(each) else each
        for each in flags
    ]
    job = rabitrun(*changed, "-H", "127.0.0.1:1", "echo", "x", environ=environ)

    assert job.status == 1 and job.out == ""
    assert "the key of the host is unknown or has changed" in job.err


def test_a_key_that_is_not_accepted_never_asks_for_a_password(rabitrun, sshd, flags, environ):
    changed = [each.replace(str(sshd[0] / "user"), str(sshd[0] / "stranger")) for each in flags]

    job = rabitrun(*changed, "-H", "127.0.0.1:1", "echo", "x", environ=environ)

    assert job.status == 1
    assert "ssh needs a key that works without a password" in job.err


def test_a_closed_port_is_told(rabitrun, flags, environ):
    changed = list(flags)
    changed[2] = own_sshd.free_port()

    job = rabitrun(*changed, "-H", "127.0.0.1:1", "echo", "x", environ=environ)

    assert job.status == 1 and "no sshd listens there" in job.err


def test_a_missing_python_is_told(rabitrun, flags, environ):
    job = rabitrun(
        *flags, "--remote-python", "/nowhere/python", "-H", "127.0.0.1:1", "echo", "x",
        environ=environ,
    )  # fmt: skip

    assert job.status == 1 and "there is no /nowhere/python over there" in job.err


def test_a_python_without_rabit_is_told(rabitrun, flags, environ, tmp_path):
    isolated = tmp_path / "python"
    isolated.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    isolated.chmod(0o755)

    job = rabitrun(
        *flags, "--remote-python", isolated, "-H", "127.0.0.1:1", "echo", "x", environ=environ
    )

    assert job.status == 1
    assert "Python there has no rabit. Install mariza-rabit on 127.0.0.1" in job.err


def test_a_command_that_the_other_host_has_not_is_127(rabitrun, flags, environ):
    job = rabitrun(*flags, "-H", "127.0.0.1:1", "no-such-command", environ=environ)

    assert job.status == 127
    assert "the command 'no-such-command' is not found on 127.0.0.1" in job.err


def test_a_dead_connection_is_told_and_leaves_nothing(start, flags, environ):
    job = start(
        *flags, "-H", "127.0.0.1:1", "--grace-time", "500ms", "--verbose",
        "sh", "-c", "echo ready; exec sleep 600", environ=environ,
    )  # fmt: skip
    job.wait_for_line("ready")
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text()
    for pid in map(int, children.split()):
        if Path(f"/proc/{pid}/comm").read_text().strip() == "ssh":
            os.kill(pid, signal.SIGKILL)

    assert job.wait() == 1
    assert "the connection to 127.0.0.1 is lost" in job.err
    job.assert_nothing_is_left()


@pytest.fixture
def own_ssh(tmp_path):
    """own_ssh(text): the variables with which rabitrun finds this shell script as its ssh."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ssh"

    def write(text):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        return {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    return write


_WAY = ["-p", 2222, "-i", "/a key", "--ssh-option", "User=me"]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "Host key verification failed.",
            "Run 'ssh -p 2222 -i '/a key' -o User=me 127.0.0.9' once by hand and check the key",
        ),
        ("Permission denied (publickey).", "Run 'ssh-copy-id -p 2222 -i '/a key' -o User=me 127.0.0.9', or"),
        ("Warning: /a key: Permission denied\nConnection refused", "no sshd listens there. Start it"),
        ("odd", "Try by hand: ssh -p 2222 -i '/a key' -o User=me 127.0.0.9 "),
    ],
)
def test_advice_holds_the_port_and_the_key_and_is_about_the_last_line(rabitrun, own_ssh, said, advice):
    environ = own_ssh(f"echo '{said}' >&2; exit 255")

    job = rabitrun(*_WAY, "-H", "127.0.0.9:1", "--ssh-always", "true", environ=environ)

    assert job.status == 1
    assert advice in job.err


def test_a_host_that_is_silent_is_named_with_what_to_type(rabitrun, own_ssh):
    environ = own_ssh("exec sleep 600")
    flags = [*_WAY, "--start-timeout", "200ms", "--grace-time", "10ms"]

    job = rabitrun(*flags, "-H", "127.0.0.9:1", "--ssh-always", "true", environ=environ)

    assert job.status == 1
    assert "Try 'ssh -p 2222 -i '/a key' -o User=me 127.0.0.9 true' by hand, or set --start-timeout" in job.err


def test_without_ssh_the_stores_of_other_hosts_are_refused_in_words(rabitrun, tmp_path):
    flags = ["-H", "127.0.0.2:1,127.0.0.3:1", "--ssh-always", "--min-np", 1, "--store-replicas", 3]

    job = rabitrun(*flags, "true", environ={"PATH": str(tmp_path)})

    assert job.status == 2
    assert "cannot be started: the program ssh is not in PATH. Install OpenSSH's client" in job.err


def test_a_master_of_connections_that_holds_the_error_stream_holds_up_nobody(rabitrun, own_ssh, tmp_path):
    """As ssh with ControlPersist leaves one behind."""
    environ = own_ssh(f"sleep 600 <&- >&- & echo $! >> {tmp_path}/masters; echo no such host >&2; exit 255")
    flags = ["-H", "127.0.0.2:1,127.0.0.3:1", "--ssh-always", "--min-np", 1, "--store-replicas", 3]

    job = rabitrun(*flags, "true", environ=environ)

    for pid in (tmp_path / "masters").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    assert job.status == 2
    assert "the store on 127.0.0.2 cannot be started: it said no such host. Ranks are started the same way" in job.err


def test_all_hosts_are_asked_to_end_before_one_is_waited_for():
    calls = []

    class Silent:
        by_hand, ranks = "", ()

        def __init__(self, host):
            self.host = host

        def start(self):
            calls.append(f"start {self.host}")
            if self.host == "b":
                raise KeyboardInterrupt

        def leave(self):
            calls.append(f"leave {self.host}")

        def finish(self):
            calls.append(f"finish {self.host}")

    plan = make_plan(parse_hosts("a:1,b:1"), 2)
    with selectors.DefaultSelector() as selector:
        sinks = {1: Sink(1, selector), 2: Sink(2, selector)}
        output = Output(Style({0: "0", 1: "1"}), sinks, None)
        roster = Roster(plan.host_names, plan.size, output.tail)
        job = Job(command=("true",), directory="/", plan=plan, environ={})
        supervisor = Supervisor(job, roster, output, sinks, selector, print)
        with pytest.raises(KeyboardInterrupt):
            supervisor.run([Silent("a"), Silent("b")])

    assert calls == ["start a", "start b", "leave a", "leave b", "finish a", "finish b"]


def test_the_command_line_is_a_list_with_checks_on():
    command = ssh_command(
        Host("user@node-1", 2), SshOptions(port=7, python="/opt/my python/bin/py")
    )

    assert command[0] == "ssh" and "BatchMode=yes" in command
    assert not any("StrictHostKeyChecking" in each for each in command)
    assert command[-3:-1] == ["--", "user@node-1"]
    assert command[-1] == "exec '/opt/my python/bin/py' -m rabit.launch.nodes.agent"


def test_a_collective_runs_over_ssh(rabitrun, flags, environ, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, rabit\n"
        "rabit.init()\n"
        "total = rabit.allreduce(np.full(3, rabit.rank() + 1.0), op=rabit.Sum, name='x')\n"
        "print(rabit.rank(), rabit.size(), total[0])\n"
    )
    job = rabitrun(*flags, "-H", "127.0.0.1:1,localhost:2", sys.executable, script, environ=environ)

    assert job.status == 0, job.err
    assert sorted(line.split(" ", 1)[1] for line in job.out.splitlines()) == [
        f"{rank} 3 6.0" for rank in range(3)
    ]


def test_the_first_cause_is_known_across_hosts(rabitrun, flags, environ, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import numpy as np\nimport rabit\n\nrabit.init()\n"
        "if rabit.rank() == 2:\n    raise ValueError('sample 7 is bad')\n"
        "rabit.allreduce(np.ones(3), name='x')\n"
    )
    hosts = ["-H", "127.0.0.1:2,localhost:2"]
    job = rabitrun(*flags, *hosts, sys.executable, script, environ=environ)

    assert job.status == 1
    assert "rabitrun: rank 2 of 4 (host localhost) raised ValueError: sample 7 is bad" in job.err
    assert f"At {script}:6, in <module>:" in job.err
    assert job.err.count("Traceback") == 1


def doctor(sshd, capsys, *more):
    """What `rabitrun doctor -H` says of two hosts, and its exit status."""
    from rabit.launch.doctor_command import main

    status = main(["-H", "127.0.0.1:1,localhost:1", "--json", *own_sshd.flags(*sshd), *more])
    return json.loads(capsys.readouterr().out), status


def test_the_doctor_looks_at_hosts_through_ssh_before_a_job(sshd, capsys):
    found, _ = doctor(sshd, capsys)

    assert found["summary"] == "2 hosts: 127.0.0.1, localhost; 2 answered"
    assert [cause["class"] for cause in found["causes"] if cause["class"] in ("no-start", "unreachable")] == []


def test_the_doctor_names_the_key_that_a_host_refuses(sshd, capsys):
    found, status = doctor(sshd, capsys, "--ssh-identity-file", str(sshd[0] / "stranger"))

    assert status == 1
    assert [cause["class"] for cause in found["causes"]] == ["no-start", "no-start"]
    assert "without a password" in found["causes"][0]["evidence"][0]
    assert "ssh" in found["causes"][0]["fix"]
