"""However a job ends, the status is the cause's and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# No fork between the line and the sleep: a shell forgets a Ctrl-C that arrives within one.
SLEEPER = "echo ready; exec sleep 600"
# A grandchild in a session of its own, which no process group reaches.
DAEMON = "setsid sleep 600 & echo ready; exec sleep 600"
STUBBORN = "trap '' TERM INT HUP QUIT; echo ready; while :; do sleep 1; done"


@pytest.mark.parametrize("status", [1, 3, 77, 255])
def test_the_status_is_that_of_the_rank_that_failed(rabitrun, status):
    job = rabitrun("-np", 2, "sh", "-c", f"[ $RABIT_RANK = 0 ] || exit {status}; sleep 600")

    assert job.status == status
    assert f"rank 1 of 2 (host localhost) exited with status {status}" in job.err
    assert f"exits with status {status}" in job.err
    job.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["SEGV", "KILL", "ABRT", "BUS", "FPE", "TERM", "INT"])
def test_a_signal_gives_128_and_its_number(rabitrun, name):
    number = signal.Signals[f"SIG{name}"]

    job = rabitrun("-np", 2, "sh", "-c", f"[ $RABIT_RANK = 1 ] || kill -{name} $$; sleep 600")

    assert job.status == 128 + number
    assert f"rank 0 of 2 (host localhost) was killed by SIG{name} (signal {number:d})" in job.err


def test_a_guard_that_somebody_has_stopped_holds_nobody_up(rabitrun, monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal\nfrom pathlib import Path\n"
        "children = Path(f'/proc/{os.getppid()}/task/{os.getppid()}/children').read_text().split()\n"
        "guards = [each for each in children if 'guard.py' in Path(f'/proc/{each}/cmdline').read_text()]\n"
        "os.kill(int(guards[0]), signal.SIGSTOP)\nprint('stopped', len(guards))\n"
    )

    job = rabitrun("-np", 1, sys.executable, script)

    assert job.status == 0 and "stopped 1" in job.out, job.err
    job.assert_nothing_is_left()


def test_all_ranks_well_is_status_0_and_no_report(rabitrun):
    job = rabitrun("-np", 3, "true")

    assert (job.status, job.out, job.err) == (0, "", "")


def test_a_rank_that_ends_well_does_not_stop_the_others(rabitrun):
    job = rabitrun("-np", 2, "sh", "-c", "[ $RABIT_RANK = 0 ] || { sleep 0.5; echo later; }")

    assert job.status == 0 and job.out == "[1] later\n"


def test_the_report_shows_the_last_20_lines_of_the_culprit_alone(rabitrun):
    script = (
        "[ $RABIT_RANK = 1 ] && { sleep 600; }; "
        "for i in $(seq 30); do echo line $i; done; echo 'the reason' >&2; exit 5"
    )
    job = rabitrun("-np", 2, "sh", "-c", script)

    block = job.err[job.err.index("rabitrun: rank 0") :]
    assert job.status == 5
    assert "Its last 20 lines:" in block
    assert "    | line 30\n" in block and "    | line 11\n" not in block
    assert "    | the reason\n" in block
    assert "Then rabitrun stopped 1 other rank." in block


def test_a_rank_that_only_misses_another_is_not_the_cause(rabitrun):
    # Rank 0 complains first; rank 1, which it misses, is seen to have failed a moment later.
    script = (
        "if [ $RABIT_RANK = 0 ]; then echo 'rabit.PeerLost: rank 1 has died' >&2; exit 1; "
        "elif [ $RABIT_RANK = 1 ]; then sleep 0.3; echo 'out of luck' >&2; kill -9 $$; fi; "
        "sleep 600"
    )
    job = rabitrun("-np", 3, "sh", "-c", script)

    assert job.status == 137
    assert "rabitrun: rank 1 of 3 (host localhost) was killed by SIGKILL" in job.err
    assert "    | out of luck" in job.err
    assert "1 other rank failed as a consequence or later." in job.err


def test_a_missed_rank_that_had_ended_well_is_mentioned(rabitrun):
    script = "[ $RABIT_RANK = 0 ] && exit 0; sleep 0.3; echo 'PeerLost: rank 0 is gone' >&2; exit 1"
    job = rabitrun("-np", 2, "sh", "-c", script)

    assert job.status == 1
    assert "Rank 0, which it misses, had ended before with status 0" in job.err


def test_grandchildren_end_with_the_failed_rank(rabitrun):
    job = rabitrun("-np", 2, "sh", "-c", "sleep 600 & [ $RABIT_RANK = 0 ] || exit 4; sleep 600")

    assert job.status == 4
    job.assert_nothing_is_left()


def test_what_a_rank_leaves_running_ends_with_the_job(rabitrun):
    job = rabitrun("-np", 2, "sh", "-c", "sleep 600 & setsid sleep 600 & exit 0")

    assert job.status == 0
    job.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
@pytest.mark.parametrize("script", [SLEEPER, DAEMON])
def test_a_signal_to_rabitrun_ends_everything(start, name, script):
    # A grace time that is longer than a test may take: whoever waits for its end is late.
    job = start("-np", 2, "--grace-time", "600s", "sh", "-c", script)
    job.wait_for_line("ready", 2)

    job.send(signal.Signals[name])

    assert job.wait() == 128 + signal.Signals[name]
    assert f"rabitrun: {name}: stopping all ranks" in job.err
    job.assert_nothing_is_left()


def test_ranks_may_end_well_on_a_signal(start):
    script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    job = start("-np", 2, "sh", "-c", script)
    job.wait_for_line("ready", 2)

    job.send(signal.SIGTERM)

    assert job.wait() == 0
    assert job.out.count("saved") == 2


def test_ranks_that_ignore_the_signal_are_killed_after_the_grace_time(start):
    job = start("-np", 2, "--grace-time", "500ms", "sh", "-c", STUBBORN)
    job.wait_for_line("ready", 2)
    began = time.monotonic()

    job.send(signal.SIGTERM)

    assert job.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - began > 0.4
    job.assert_nothing_is_left()


def test_ctrl_c_ends_ranks_that_wait_in_init_without_killing_them(start):
    # A rank that still imports would show the traceback of the import as well.
    code = (
        "import os, sys, threading, time, traceback, rabit\n"
        "main = threading.get_ident()\n"
        "def look():\n"
        "    names = ''\n"
        "    while 'in interruptible' not in names:\n"
        "        time.sleep(0.01)\n"
        "        names = ''.join(traceback.format_stack(sys._current_frames()[main]))\n"
        "    print('up', flush=True)\n"
        "if os.environ['RABIT_RANK'] == '1':\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
        "threading.Thread(target=look, daemon=True).start()\n"
        "rabit.init()"
    )
    job = start("-np", 3, "--grace-time", "600", "--connect-timeout", "1h", sys.executable, "-c", code)
    job.wait_for_line("up", 3)

    job.send(signal.SIGINT)

    assert job.wait() == 128 + signal.SIGINT  # Else after the grace time, which is longer than a test.
    assert job.err.count("Traceback") == job.err.count("] KeyboardInterrupt") <= 3, job.err
    job.assert_nothing_is_left()


def test_a_second_ctrl_c_kills_at_once(start):
    job = start("-np", 2, "--grace-time", "600s", "sh", "-c", STUBBORN)
    job.wait_for_line("ready", 2)

    job.send(signal.SIGINT)
    while b"stopping all ranks" not in job.process.stderr.readline():
        pass
    job.send(signal.SIGINT)

    assert job.wait() == 128 + signal.SIGINT  # Else after the grace time, which is longer than a test.
    job.assert_nothing_is_left()


def test_a_stopped_rank_ends_too(start):
    job = start("-np", 1, "sh", "-c", "echo ready; kill -STOP $$; sleep 600")
    job.wait_for_line("ready")

    job.send(signal.SIGTERM)

    assert job.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_user_signals_reach_the_ranks_and_end_nothing(start, name):
    script = f"trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.1; done"
    job = start("-np", 2, "sh", "-c", script)
    job.wait_for_line("ready", 2)

    job.send(signal.Signals[f"SIG{name}"])

    assert job.wait() == 0
    assert job.out.count(f"got {name}") == 2


@pytest.mark.parametrize("script", [SLEEPER, DAEMON, STUBBORN])
def test_killing_rabitrun_leaves_nothing(start, script):
    job = start("-np", 2, "sh", "-c", script)
    job.wait_for_line("ready", 2)

    job.send(signal.SIGKILL)

    job.process.wait()
    job.assert_nothing_is_left()


def test_closing_the_terminal_leaves_nothing(start):
    import pty

    controller, terminal = pty.openpty()
    job = start("-np", 2, "sh", "-c", SLEEPER, stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = b""
    while seen.count(b"ready") < 2:
        seen += os.read(controller, 4096)

    os.close(controller)  # The kernel sends SIGHUP only to a session that owns the terminal.
    job.send(signal.SIGHUP)

    job.wait()
    job.assert_nothing_is_left()


def test_nobody_reading_the_output_ends_the_job(start):
    job = start("-np", 2, "sh", "-c", "while :; do echo line; sleep 0.05; done")
    job.wait_for_line("line")

    job.process.stdout.close()

    assert job.process.wait(30) == 128 + signal.SIGPIPE
    assert b"nobody reads the output" in job.process.stderr.read()
    job.process.stderr.close()
    job.assert_nothing_is_left()


def test_ctrl_c_before_a_rank_runs_is_told_in_one_line(monkeypatch, capsys):
    from rabit.launch import cli

    def interrupted(parsed):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_main", interrupted)

    assert cli.main(["-np", "1", "true"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "rabitrun: interrupted.\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("rabit.launch", ["--show-config"]),
        ("rabit.launch", ["--help"]),
        ("rabit.launch", ["-np", "1", "--dry-run", "true"]),
        ("rabit.launch", ["checkpoint", "--help"]),
        ("rabit.launch", ["log", "--help"]),
        ("rabit.checkpoint.tool", ["--help"]),
        ("rabit.diagnostics.log_command", ["--help"]),
    ],
)
def test_a_reader_that_has_gone_is_no_error_of_a_command_without_ranks(tmp_path, program, words):
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", program, *words],
        stdout=write_end, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60, check=False,
    )  # fmt: skip
    os.close(write_end)

    assert done.stderr == ""
    # What argparse writes itself, it writes as well as it can.
    assert done.returncode in (128 + signal.SIGPIPE, *([0] if "--help" in words else []))


def test_a_full_disk_behind_a_command_without_ranks_is_told(tmp_path):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rabit.launch", "--show-config"],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60, check=False,
        )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr == "rabitrun: the output cannot be written: No space left on device. Make room.\n"


def test_ctrl_c_while_rabitrun_loads_is_told_in_one_line(monkeypatch, capsys):
    from rabit.launch import __main__ as entry

    class Interrupted:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "rabit.launch.cli", Interrupted())
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert entry.main() == 128 + signal.SIGINT
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)

    assert capsys.readouterr().err == "rabitrun: interrupted.\n"


def test_a_full_disk_behind_standard_output_costs_the_lines_and_not_the_job(start, tmp_path):
    code = f"import pathlib; print('x' * 100, flush=True); pathlib.Path({str(tmp_path)!r}, 'done').touch()"
    with Path("/dev/full").open("wb") as full:
        job = start("-np", 1, sys.executable, "-c", code, stdout=full)

        assert job.wait() == 0, job.err

    assert (tmp_path / "done").exists()
    assert "rabitrun: standard output cannot be written: No space left on device. The job continues" in job.err
    assert "bytes of standard output were lost" in job.err


# What whoever starts rabitrun may have done before, and what a rank must not inherit of it.
_STRANGE = {
    "signals that are blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "SIGCHLD that is ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "nohup": "signal.signal(signal.SIGHUP, signal.SIG_IGN)",
    "in the background": "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGQUIT)]",
}
_DISPOSITIONS = """
import signal, sys
text = open("/proc/self/status").read()
blocked = int(text.partition("SigBlk:")[2].split()[0], 16)
print("blocked", blocked, "child", int(signal.getsignal(signal.SIGCHLD)), flush=True)
signal.pause()
"""


@pytest.fixture(params=_STRANGE.values(), ids=_STRANGE)
def strange_start(request, start, tmp_path):
    """Starts rabitrun as `start` does, from a process whose signals are not as usual."""
    folder = tmp_path / "site"
    folder.mkdir()
    # Before rabitrun itself runs, in its own process: as if exec had passed it on.
    (folder / "strange.py").write_text(
        "import os, signal, sys\n"
        f"{request.param}\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'rabit.launch', *sys.argv[1:]])\n"
    )
    return lambda *arguments: start(*arguments, program=[folder / "strange.py"])


def test_a_rank_inherits_no_strange_signals_and_ends_as_usual(strange_start):
    job = strange_start("-np", 2, sys.executable, "-c", _DISPOSITIONS)
    seen = job.wait_for_line("blocked", 2)

    job.send(signal.SIGTERM)

    assert job.wait() == 128 + signal.SIGTERM, job.err
    assert seen.count("blocked 0 child 0") == 2, seen
    job.assert_nothing_is_left()


def test_the_status_of_a_rank_is_known_however_rabitrun_was_started(strange_start):
    job = strange_start("-np", 2, "sh", "-c", "exit 7")

    assert job.wait() == 7
    assert "exited with status 7" in job.err


def test_closed_standard_streams_are_no_obstacle(rabitrun, tmp_path):
    code = "import os,sys; os.closerange(0, 3); os.execv(sys.argv[1], sys.argv[1:])"
    from subprocess import run

    status = run(
        [sys.executable, "-c", code, sys.executable, "-m", "rabit.launch", "-np", "2",
         "--output-filename", str(tmp_path), "sh", "-c", "echo hello"],
        cwd=tmp_path, timeout=60, check=False,
    ).returncode  # fmt: skip

    assert status == 0
    assert (tmp_path / "rank.1" / "stdout").read_text() == "hello\n"


def test_the_secret_is_in_no_command_line_and_no_environment(start):
    code = (
        "import os, sys, time; d = int(os.environ['RABIT_SECRET_FD'])\n"
        "print('secret', os.pread(d, 200, 0).decode(), flush=True); time.sleep(600)"
    )
    job = start("-np", 2, sys.executable, "-c", code)
    text = job.wait_for_line("secret", 2)
    secrets = {line.split()[-1] for line in text.splitlines()}

    places = [each for each in Path("/proc").iterdir() if each.name.isdigit()]
    leaks = []
    for place in places:
        for name in ("cmdline", "environ"):
            try:
                content = (place / name).read_bytes()
            except OSError:
                continue
            leaks += [f"{place}/{name}" for each in secrets if each.encode() in content]

    assert len(secrets) == 1 and len(secrets.pop()) == 64
    assert leaks == []
