"""Ranks that the tests have forked start, run and end as those that a launcher starts itself."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

SHOW = """
import os, sys
import torch
print(__name__, sys.argv[1:], os.environ["SHOWN"], os.getcwd(), os.sched_getaffinity(0))
print(open(int(os.environ["OPENED"])).read(), sys.stdin.read(), file=sys.stderr)
"""


def start(rank_server, folder: Path, script: str, *arguments: str, **given):
    path = folder / "script.py"
    path.write_text(script)
    given.setdefault("env", dict(os.environ))
    return subprocess.Popen(
        [*rank_server.command, str(path), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **given,
    )


def test_a_rank_has_all_that_its_client_was_given(rank_server, tmp_path):
    (tmp_path / "opened").write_text("from a file,")
    with (tmp_path / "opened").open() as opened:
        rank = start(
            rank_server,
            tmp_path,
            SHOW,
            "-x",
            "1",
            env={"SHOWN": "yes", "OPENED": str(opened.fileno())},
            stdin=subprocess.PIPE,
            pass_fds=[opened.fileno()],
        )
        output, errors = rank.communicate("from the input", timeout=60)

    assert rank.returncode == 0
    assert output == f"__main__ ['-x', '1'] yes {tmp_path} {os.sched_getaffinity(0)}\n"
    # Libraries may add what they think of the end of a process.
    assert errors.startswith("from a file, from the input\n")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("os._exit(3)", 3),
        ("raise ValueError('this')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_a_client_ends_as_its_rank_ends(rank_server, tmp_path, end, status):
    script = f"import atexit, os, signal, sys\natexit.register(print, 'at exit')\n{end}"
    rank = start(rank_server, tmp_path, script)

    output, errors = rank.communicate(timeout=60)

    assert rank.returncode == status
    assert output == ("at exit\n" if status in (0, 1, 7) else "")
    assert ("ValueError: this" in errors) == ("ValueError" in end)


def test_a_signal_reaches_the_rank(rank_server, tmp_path):
    script = "import signal\nprint('waits', flush=True)\nprint(signal.sigwait([signal.SIGTERM]))"
    script = f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n{script}"
    rank = start(rank_server, tmp_path, script)
    assert rank.stdout.readline() == "waits\n"

    rank.send_signal(signal.SIGTERM)

    assert rank.communicate(timeout=60)[0] == f"{signal.SIGTERM!s}\n"
    assert rank.returncode == 0


def test_a_rank_ends_with_its_client(rank_server, tmp_path):
    rank = start(rank_server, tmp_path, "import signal\nprint('waits', flush=True)\nsignal.pause()")
    assert rank.stdout.readline() == "waits\n"

    rank.kill()

    assert rank.communicate(timeout=60)[0] == ""  # the rank held the other end open until it ended
