"""The command line: what it accepts, what it refuses and how, and what --dry-run shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rabit
from rabit.config.config import Config
from rabit.errors import InvalidArgument
from rabit.launch import cli
from rabit.launch.host_job import HostJob, RankJob
from rabit.launch.hosts import Host, parse_hostfile, parse_hosts
from rabit.launch.options.environment import portable_environ
from rabit.launch.options.flags import make_parser
from rabit.launch.options.settings import read_settings
from rabit.launch.plan import make_plan

PRINT_SETTINGS = "env | grep '^RABIT_' | sort"


def refused(capsys, *arguments):
    try:
        status = cli.main(list(arguments))
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    return capsys.readouterr().err


def tuning(*arguments, environ=None):
    settings = read_settings(make_parser().parse_args([*arguments, "x"]), environ or {})
    return settings.tuning, list(settings.notices)


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])

    text = capsys.readouterr().out
    assert stopped.value.code == 0
    for part in ("examples:", "rabitrun -np 4 python train.py", "-H node1:4,node2:4", "--dry-run"):
        assert part in text
    assert len(text.splitlines()) <= 40 and max(map(len, text.splitlines())) <= 90
    known = {name for action in make_parser()._actions for name in action.option_strings}
    shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*|-H\b", text))
    assert shown - known == {"-o"}  # of rabitrun tune


def test_all_flags_are_on_a_page_of_their_own(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help-all"])

    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert all(f"  {each.flag}" in text or f", {each.flag} " in text for each in Config.settings() if each.flag)
    assert "--cross-barrier" not in text  # an older name


def test_every_tuning_variable_has_a_flag():
    options = {name for action in make_parser()._actions for name in action.option_strings}

    for each in Config.settings():
        if each.native and each.level != "hidden":
            assert each.flag in options, each.name


def test_help_and_dry_run_load_neither_numpy_nor_torch():
    code = (
        "import sys; from rabit.launch import cli\n"
        "cli.main(['-np', '2', '--dry-run', 'python', 'x.py'])\n"
        "print(sorted({'numpy', 'torch', 'cffi', 'yaml'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout

    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["python", "x.py"], "the number of ranks is not given. Use -np N"),
        (["-np", "2"], "there is no command to run"),
        (["-np", "0", "x"], "-np is 0: expected at least 1 process"),
        (["-np", "-1", "x"], "-np is -1: expected at least 1 process"),
        (["-np", "100000", "x"], "at most 65536 processes"),
        (["-np", "two", "x"], "invalid int value: 'two'"),
        (["-np", "4", "-H", "a:1,b:2", "x"], "the hosts have 3 slots (a:1, b:2)"),
        (["-H", "a:0", "x"], "'a:0' has '0' slots"),
        (["-H", "a:-1", "x"], "'a:-1' has '-1' slots"),
        (["-H", "a:x", "x"], "'a:x' has 'x' slots"),
        (["-H", "a:99999999999", "x"], "between 1 and 4096"),
        (["-H", "a:1,a:2", "x"], "names the host 'a' twice. Give it once, with all its slots: a:3"),
        (["-H", "", "x"], "-H names no host"),
        (["-H", "a;reboot:1", "x"], "is not a host name"),
        (["-H", "$(reboot)", "x"], "is not a host name"),
        (["-H", "-oProxyCommand=x", "x"], "expected one argument"),
        (["-H=-oProxyCommand=x", "x"], "is not a host name"),
        (["-H", "fe80::1", "x"], "An IPv6 address needs brackets"),
        (["-H", "[fe80::zz]:2", "x"], "is not an IPv6 address"),
        (["--hostfile", "/nowhere", "x"], "the host file /nowhere cannot be read"),
        (["-H", "a", "--hostfile", "b", "x"], "not allowed with argument"),
        (["-np", "2", "--no-such-flag", "x"], "the flag --no-such-flag is unknown"),
        (["-np", "2", "--lans", "2", "x"], "the flag --lans is unknown. Did you mean --lanes?"),
        (["-np", "2", "--lanes", "65", "x"], "--lanes is 65, which is not valid"),
        (["-np", "2", "--fusion-bytes", "lots", "x"], "--fusion-bytes is 'lots'"),
        (["-np", "2", "--transport", "pigeon", "x"], "one of auto, tcp, shm"),
        (["-np", "2", "--env", "=1", "x"], "'' is no valid name, which has neither blanks nor '='"),
        (["-np", "2", "--env", "export A=1", "x"], "'export A' is no valid name"),
        (["-np", "2", "--env", "A\tB=1", "x"], "is no valid name"),
        (["-np", "-1", "x"], "rabitrun: -np is -1: expected at least 1 process."),
        (["-np", "2", "--env", "RABIT_RANK=1", "x"], "rabitrun itself sets it"),
        (["-np", "2", "--env", "NOT_SET_HERE", "x"], "NOT_SET_HERE is not set here"),
        (["-np", "2", "--grace-time", "-1", "x"], "not between 0 and 24 hours"),
        (["-np", "2", "--start-timeout", "soon", "x"], "is not a duration"),
        (["-np", "2", "--ssh-port", "0", "x"], "is not a port between 1 and 65535"),
        (["-np", "2", "--min-np", "3", "x"], "the job would have 2 ranks"),
        (["-np", "2", "--store-replicas", "2", "x"], "expected 1, 3 or 5. A majority of the stores has to survive"),
        (["-np", "2", "--store-replicas", "3", "x"], "Add --min-np N, the smallest number of ranks"),
        (["-np", "2", "--blacklist-cooldown-range", "20", "10", "x"], "range is 20 10: expected two"),
        (["-np", "2", "--max-np", "1", "x"], "at least 1 and at most 1"),
        (["--min-np", "1", "x"], "the number of ranks is not given"),
        (["-np", "2", "--host-discovery-script", "/nowhere", "x"], "/nowhere cannot be run"),
        (["-np", "2", "--mpi-args=-v", "x"], "Add --launcher mpi"),
        (["-np", "2", "--mpi", "--mpi-args", "'", "x"], "unclosed quote"),
        (["-np", "2", "--jsrun", "x"], "start the program with jsrun itself"),
        (["-np", "2", "--config-file", "/nowhere.toml", "x"], "/nowhere.toml cannot be read"),
        (["-np", "2", "--secret-file", "/nowhere", "x"], "/nowhere"),
    ],
)
def test_what_cannot_work_is_refused_and_told(capsys, arguments, text):
    said = refused(capsys, *arguments)

    assert text in said and said.count("\n") == 1


def test_a_working_directory_that_was_removed_is_told(capsys, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert "the working directory has been removed" in refused(capsys, "-np", "2", "true")


def test_an_unknown_variable_is_told_once_before_anything_starts(rabitrun):
    job = rabitrun("-np", 2, "echo", "x", environ={"RABIT_LANS": "2"})

    assert (job.status, job.out) == (2, "")
    assert job.err.count("RABIT_LANS is unknown") == 1
    assert "did you mean RABIT_LANES?" in job.err


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (["no-such-command"], 127, "the command 'no-such-command' is not found on localhost"),
        (["tunne", "-o", "table.json"], 127, "rabitrun: did you mean the subcommand tune?"),
        (["./gone.py"], 127, "the command './gone.py' is not found"),
    ],
)
def test_a_command_that_is_missing(rabitrun, command, status, text):
    job = rabitrun("-np", 2, *command)

    assert job.status == status and text in job.err


@pytest.mark.parametrize(("name", "quote"), [("train.py", ""), ("a train.py", "'")])
def test_a_command_that_is_not_executable(rabitrun, tmp_path, name, quote):
    (tmp_path / name).write_text("print('x')")

    job = rabitrun("-np", 2, tmp_path / name)

    path = f"{quote}{tmp_path}/{name}{quote}"
    assert job.status == 126
    assert f"Start it as: python {path}, or run: chmod +x {path}\n" in job.err


def test_a_script_whose_interpreter_is_missing(rabitrun, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)

    job = rabitrun("-np", 2, script)

    assert job.status == 127 and "its first line (#!)" in job.err


def test_dry_run_shows_every_rank_and_starts_nothing(capsys, tmp_path):
    hosts = "localhost:1,node-b.invalid:2"

    status = cli.main(["-H", hosts, "--lanes", "3", "--dry-run", f"{tmp_path}/never"])

    out = capsys.readouterr().out.splitlines()
    assert status == 0
    assert out[0].startswith("3 ranks on 2 hosts")
    assert "variables: RABIT_LANES=3" in out
    assert any("'node-b.invalid' does not resolve" in line for line in out)
    assert "host localhost, without ssh:" in out
    assert any(line.startswith("host node-b.invalid, through: ssh -T") for line in out)
    assert sum(line.startswith("  RABIT_RANK=") for line in out) == 3
    assert f"RABIT_CROSS_RANK=1 RABIT_CROSS_SIZE=2 {tmp_path}/never" in "\n".join(out)


def test_dry_run_shows_where_stores_outlive_rabitrun(capsys):
    flags = ("--min-np", "1", "--store-replicas", "3", "--dry-run", "x")

    assert cli.main(["-H", "localhost:1,127.0.0.2:1", *flags]) == 0
    assert "stores: on localhost, localhost, localhost, ports chosen" in capsys.readouterr().out
    assert cli.main(["-H", "127.0.0.1:1,127.0.0.2:1,127.0.0.3:1", "--ssh-always", *flags]) == 0
    assert "stores: on 127.0.0.1, 127.0.0.2, 127.0.0.3, ports" in capsys.readouterr().out


def test_flags_reach_the_ranks_as_variables(rabitrun):
    job = rabitrun(
        "-np", 1, "--fusion-bytes", "1M", "--deterministic", "--stall-warning", "30",
        "--timeline-filename", "t.json", "--log-level", "TRACE", "sh", "-c", PRINT_SETTINGS,
        environ={"RABIT_LANES": "3"},
    )  # fmt: skip

    lines = {line[4:] for line in job.out.splitlines()}
    assert {
        "RABIT_FUSION_BYTES=1M",
        "RABIT_DETERMINISTIC=1",
        "RABIT_STALL_WARNING=30s",
        "RABIT_TIMELINE=t.json",
        "RABIT_LOG_LEVEL=debug",
        "RABIT_LANES=3",
        "RABIT_RANK=0",
        "RABIT_SIZE=1",
    } <= lines


def test_env_sets_and_passes_on(rabitrun):
    job = rabitrun(
        "-np", 1, "--env", "A=1=2", "--env", "B", "sh", "-c", "echo $A $B", environ={"B": "b c"}
    )

    assert job.out == "[0] 1=2 b c\n"


def test_the_arguments_of_the_command_are_its_own(rabitrun):
    job = rabitrun("-np", 1, "--", "echo", "-np", "7", "--help", "a  b")

    assert job.out == "[0] -np 7 --help a  b\n"


def test_the_place_of_an_outer_job_is_not_inherited(rabitrun):
    outer = {"RABIT_RANK": "5", "RABIT_SIZE": "9", "RABIT_HOST_KEY": "k", "RABIT_SECRET_FD": "3"}
    job = rabitrun("-np", 1, "sh", "-c", PRINT_SETTINGS, environ=outer)

    assert "RABIT_RANK=0" in job.out and "RABIT_SIZE=1" in job.out
    assert "HOST_KEY" not in job.out and "SECRET_FD" not in job.out


def test_threads_are_shared_among_the_ranks(rabitrun):
    cores = len(os.sched_getaffinity(0))
    job = rabitrun("-np", 2, "--verbose", "sh", "-c", "echo threads $OMP_NUM_THREADS")
    given = rabitrun(
        "-np", 1, "sh", "-c", "echo $OMP_NUM_THREADS", environ={"OMP_NUM_THREADS": "7"}
    )

    assert job.out.count(f"threads {max(1, cores // 2)}\n") == 2
    assert "OMP_NUM_THREADS is unset: ranks get cores divided by ranks" in job.err
    assert given.out == "[0] 7\n"


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path):
    path = tmp_path / "rabit.toml"
    path.write_text('lanes = 2\nfusion_bytes = "2M"\ntransport = "tcp"\ndeterministic = true\n')

    found, _ = tuning(
        "--config-file", str(path), "--lanes", "4",
        environ={"RABIT_FUSION_BYTES": "3M", "RABIT_LANES": "3"},
    )  # fmt: skip

    assert found == {
        "RABIT_LANES": "4",
        "RABIT_TRANSPORT": "tcp",
        "RABIT_DETERMINISTIC": "1",
    }


def test_the_file_of_horovod_is_understood(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "horovod.yaml"
    path.write_text(
        "controller: gloo\n"
        "params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 5\n  cache_capacity: 2048\n"
        "  hierarchical_allreduce: true\n"
        "timeline:\n  filename: /tmp/t.json\n  mark_cycles: true\n"
        "stall_check:\n  enabled: true\n  warning_time_seconds: 120\n"
        "library_options:\n  gloo_timeout_seconds: 45\n  num_nccl_streams: 2\n"
        "logging:\n  level: INFO\n"
    )

    found, notices = tuning("--config-file", str(path))

    assert found == {
        "RABIT_FUSION_BYTES": "32M",
        "RABIT_CACHE_CAPACITY": "2048",
        "RABIT_ALLREDUCE_ALGORITHM": "hierarchical",
        "RABIT_TIMELINE": "/tmp/t.json",
        "RABIT_TIMELINE_MARK_CYCLES": "1",
        "RABIT_STALL_WARNING": "120s",
        "RABIT_CONNECT_TIMEOUT": "45s",
        "RABIT_LOG_LEVEL": "info",
    }
    assert len(notices) == 1
    for name in ("controller", "params.cycle_time_ms", "library_options.num_nccl_streams"):
        assert name in notices[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lans = 2", "sets 'lans', which is unknown: did you mean lanes?"),
        ("lanes = 65", "lanes in"),
        ("[params]\nfusion_treshold_mb = 1", "did you mean fusion_threshold_mb?"),
        ("lanes = ", "not valid TOML"),
        ("rank = 1", "sets 'rank', which is unknown"),
    ],
)
def test_mistakes_in_the_file_are_told(tmp_path, text, message):
    path = tmp_path / "rabit.toml"
    path.write_text(text)

    with pytest.raises(InvalidArgument) as caught:
        tuning("--config-file", str(path))

    assert message in str(caught.value)


def test_flags_of_horovodrun_are_understood():
    found, notices = tuning(
        "--fusion-threshold-mb", "32", "--hierarchical-allreduce", "--no-stall-check",
        "--network-interface", "eth0", "--network-interface", "eth1", "--gloo",
        "--cycle-time-ms", "3", "--autotune", "--gloo-timeout-seconds", "9", "--tcp",
    )  # fmt: skip

    assert found == {
        "RABIT_FUSION_BYTES": "32M",
        "RABIT_ALLREDUCE_ALGORITHM": "hierarchical",
        "RABIT_STALL_WARNING": "0s",
        "RABIT_STALL_ABORT": "0s",
        "RABIT_NETWORK_INTERFACES": "eth0,eth1",
        "RABIT_CONNECT_TIMEOUT": "9s",
        "RABIT_AUTOTUNE": "1",
        "RABIT_TRANSPORT": "tcp",
    }
    assert len(notices) == 1 and "--cycle-time-ms (rabit wakes on work" in notices[0]


def test_older_flags_are_understood():
    assert tuning("--cross-barrier") == (
        {"RABIT_OVERLAP": "next-forward"},
        ["older flags: --cross-barrier is --overlap next-forward"],
    )
    assert tuning("--schedule", "auto")[0] == {"RABIT_OVERLAP": "auto"}
    assert tuning("--schedule", "fixed") == ({}, [])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["log", "ops.csv", "--cvs", "x"], "the flag --cvs is unknown. Did you mean --csv? See rabitrun log --help."),
        (["checkpoint", "verify"], "are required: DIR. See rabitrun checkpoint verify --help."),
        (["checkpoint", "shw", "x"], "invalid choice: 'shw'"),
        (["-np", "2", "bench", "--byts", "1K"], "the flag --byts is unknown. Did you mean --bytes?"),
    ],
)
def test_mistakes_in_subcommands_are_told_in_one_line(capsys, arguments, text):
    said = refused(capsys, *arguments)

    assert said.startswith("rabitrun: ") and text in said and said.count("\n") == 1


def test_a_script_names_the_hosts_and_bounds_choose_the_size(rabitrun, tmp_path):
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost\necho 127.0.0.1:1\n")
    script.chmod(0o755)
    flags = ["--host-discovery-script", script, "--slots", 3, "--min-np", 2, "--max-np", 4]

    # Those that end first leave room, for which nobody is to come.
    job = rabitrun(*flags, "sh", "-c", "echo $RABIT_SIZE; sleep 0.$RABIT_RANK")

    assert job.status == 0
    assert [line.split()[-1] for line in job.out.splitlines()] == ["4"] * 4
    assert job.err == ""


def test_flags_of_mpi_reach_mpiexec(rabitrun):
    pytest.importorskip("mpi4py")
    arguments = ["--mpi", "--mpi-args=-v --tag 'a b'", "--dry-run"]

    job = rabitrun("-np", 2, *arguments, "true")

    assert job.status == 0, job.err
    assert "mpiexec -v --tag 'a b' " in job.out


def test_a_variable_of_horovod_is_told_once(rabitrun):
    code = "import rabit; rabit.init()"
    job = rabitrun("-np", 2, sys.executable, "-c", code, environ={"HOROVOD_CYCLE_TIME": "3"})

    assert job.status == 0, job.err
    assert job.err.count("HOROVOD_CYCLE_TIME") == 1


def test_every_flag_of_horovodrun_is_known():
    known = {name for action in make_parser()._actions for name in action.option_strings}
    theirs = """-v --version -np --num-proc -cb --check-build --verbose --disable-cache
        --config-file --start-timeout --network-interfaces --network-interface --output-filename
        -p --ssh-port -i --ssh-identity-file --fusion-threshold-mb --cycle-time-ms
        --cache-capacity --hierarchical-allreduce --no-hierarchical-allreduce
        --hierarchical-allgather --no-hierarchical-allgather --torus-allreduce
        --no-torus-allreduce --autotune --no-autotune --autotune-log-file
        --autotune-warmup-samples --autotune-steps-per-sample --autotune-bayes-opt-max-samples
        --autotune-gaussian-process-noise --min-np --min-num-proc --max-np --max-num-proc
        --slots-per-host --elastic-timeout --reset-limit --blacklist-cooldown-range
        --host-discovery-script --timeline-filename --timeline-mark-cycles
        --no-timeline-mark-cycles --no-stall-check --stall-check
        --stall-check-warning-time-seconds --stall-check-shutdown-time-seconds
        --mpi-threads-disable --no-mpi-threads-disable --mpi-args --tcp --binding-args
        --num-nccl-streams --thread-affinity --gloo-timeout-seconds --log-level
        --log-with-timestamp --log-without-timestamp -prefix-timestamp
        --prefix-output-with-timestamp --log-hide-timestamp --no-log-hide-timestamp -H --hosts
        -hostfile --hostfile --gloo --mpi --jsrun"""

    assert set(theirs.split()) - known == set()


def test_host_lists():
    assert parse_hosts("a:2, b ,[fe80::2]:4,user@c:1") == [
        Host("a", 2),
        Host("b", 1),
        Host("fe80::2", 4),
        Host("user@c", 1),
    ]


def test_host_files(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "# cluster\nnode1 slots=4\n\nnode2:2  # MPICH\nnode3\n[::1] slots=3 max_slots=9\n"
    )

    assert parse_hostfile(path) == [
        Host("node1", 4),
        Host("node2", 2),
        Host("node3", 1),
        Host("::1", 3),
    ]


def test_a_node_file_of_a_scheduler_has_a_line_for_each_slot(tmp_path):
    path = tmp_path / "nodefile"
    path.write_text("node1\nnode1\nnode2\nnode1\nnode2\n")

    assert parse_hostfile(path) == [Host("node1", 3), Host("node2", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no host"),
        ("# nothing\n", "names no host"),
        ("a slots=0", "line 1: 'a slots=0' has '0' slots"),
        ("a\nb cores=2", "line 2: 'cores=2' is unknown"),
        ("a slots=2\na", "names the host 'a' twice. Give it once, with all its slots: a:3"),
        ("a\na:2\na", "names the host 'a' twice. Give it once, with all its slots: a:4"),
        ("a;b", "line 1: 'a;b' is not a host name"),
    ],
)
def test_mistakes_in_host_files_are_told(tmp_path, text, message):
    path = tmp_path / "hosts"
    path.write_text(text)

    with pytest.raises(InvalidArgument) as caught:
        parse_hostfile(path)

    assert message in str(caught.value)


def test_ranks_fill_the_hosts_in_order():
    plan = make_plan([Host("a", 2), Host("b", 1), Host("c", 4)], 5)

    places = [
        (str(each.host), p.rank, p.local_rank, p.local_size, p.cross_rank, p.cross_size)
        for each in plan.hosts
        for p in each.places
    ]
    assert places == [
        ("a", 0, 0, 2, 0, 3),
        ("a", 1, 1, 2, 0, 2),
        ("b", 2, 0, 1, 1, 3),
        ("c", 3, 0, 2, 2, 3),
        ("c", 4, 1, 2, 1, 2),
    ]


def test_hosts_that_are_not_needed_are_left_out():
    assert [str(each.host) for each in make_plan([Host("a", 2), Host("b", 2)], 2).hosts] == ["a"]


def test_what_belongs_to_one_host_stays_there():
    found = portable_environ(
        {"PATH": "/bin", "HOME": "/me", "SSH_AUTH_SOCK": "/s", "LR": "1", "RABIT_RANK": "1"}
    )

    assert found == {"PATH": "/bin", "LR": "1"}


def test_a_job_survives_its_text_form():
    job = HostJob(
        job="id", version="1", host="h", command=("a", "b"), directory="/", environ={"X": "é"},
        ranks=(RankJob(0, {"Y": "1"}),), grace_s=2.5, secret=b"\0\1", payload=b"\xff", stores=("h:1", "h:2", "h:3"),
    )  # fmt: skip

    assert HostJob.from_json(job.to_json()) == job
    assert "0001" not in repr(job)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff", b'{"job": 1}'])
def test_a_malformed_job_is_refused(text):
    with pytest.raises(InvalidArgument, match="the description of the job is malformed"):
        HostJob.from_json(text)


def test_check_build_lists_everything(rabitrun):
    text = rabitrun("--check-build").out
    job = rabitrun("--check-build-json")

    document = json.loads(job.out)
    names = {each["name"] for each in document["findings"]}
    assert {"native library", "torch", "mpi4py", "rabit_calls", "ssh", "torch tensors"} <= names
    for each in document["findings"]:
        assert each["is_available"] or each["detail"], each
        assert f"[{'X' if each['is_available'] else ' '}] {each['name']}" in text
    assert job.status == (0 if document["is_usable"] else 1)


def test_a_secret_file_is_private(tmp_path):
    path = tmp_path / "secret"
    command = [sys.executable, "-m", "rabit.launch.secret", str(path)]

    first, second = (
        subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        for _ in range(2)
    )

    assert first.returncode == 0 and path.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(path.read_text().strip())) == 32
    assert path.read_text().strip() not in first.stdout
    assert second.returncode == 1 and "cannot be made: File exists" in second.stderr


def test_a_given_secret_is_used(rabitrun, tmp_path):
    path = tmp_path / "secret"
    path.write_text("ab" * 32)
    path.chmod(0o600)
    code = "import os; print(os.pread(int(os.environ['RABIT_SECRET_FD']), 99, 0).decode())"

    job = rabitrun("-np", 2, "--secret-file", path, sys.executable, "-c", code)

    assert job.out.count("ab" * 32) == 2
    assert str(Path(path)) not in job.out


def test_more_ranks_than_open_files(tmp_path):
    command = [sys.executable, "-m", "rabit.launch", "-np", "40", "--collapse-output", "echo", "x"]
    limited = ["sh", "-c", f"ulimit -Sn 100; exec {' '.join(command)}"]
    hard = ["sh", "-c", f"ulimit -n 100; exec {' '.join(command)}"]

    soft_job, hard_job = (
        subprocess.run(each, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        for each in (limited, hard)
    )

    assert soft_job.returncode == 0, soft_job.stderr
    assert soft_job.stdout == "all ranks: x\n"
    assert hard_job.returncode == 1 and "the limit of the user is 100" in hard_job.stderr


def test_show_config_prints_value_source_and_meaning(tmp_path, capsys, monkeypatch):
    path = tmp_path / "rabit.toml"
    path.write_text("credit_bytes = '1M'\n")
    monkeypatch.setenv("RABIT_SCHEDULER", "fifo")

    status = cli.main(["--show-config", "--lanes", "3", "--config-file", str(path)])

    shown = capsys.readouterr().out
    assert status == 0
    assert "  lanes = 3  (--lanes)\n      Worker threads for each backend;" in shown
    assert f"  credit_bytes = 1M  (credit_bytes in {path})\n" in shown
    assert "  scheduler = fifo  (RABIT_SCHEDULER)\n" in shown
    assert "  fusion_bytes = 64M  (default)\n" in shown


def test_check_build_ticks_mpi_only_with_an_mpi_library(rabitrun, tmp_path):
    # mpi4py that finds no library, as after 'pip install mpi4py' alone.
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc: pass\n")
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    path = f"{tmp_path}{os.pathsep}{Path(rabit.__file__).parents[1]}"

    job = rabitrun("--check-build", environ={"PYTHONPATH": path})

    assert "[ ] mpi " in job.out
    assert "finds no MPI library (RuntimeError: cannot load MPI library)" in job.out


@pytest.mark.parametrize("flags", [("--strategy", "help"), ("--list-strategies",)])
def test_methods_are_listed(flags, capsys):
    assert cli.main([*flags]) == 0

    assert "  powersgd:rank=2,start=0,small=65536\n" in capsys.readouterr().out


def test_a_wrong_method_is_told_before_anything_starts(capsys, monkeypatch):
    by_flag = refused(capsys, "-np", "2", "--strategy", "powersdg", "no-such-program")
    monkeypatch.setenv("RABIT_STRATEGY", "powersgd:rnk=2")
    by_variable = refused(capsys, "-np", "2", "no-such-program")

    assert "there is no method 'powersdg'; did you mean 'powersgd'?" in by_flag
    assert "did you mean 'rank'?" in by_variable
