"""rabitrun shows the failure that came first, whichever process ends first."""

from __future__ import annotations

import json
import sys

import pytest
from faults.first_causes import HEADLINES, SCRIPT

from rabit.launch.report import choose_culprit, job_status
from rabit.launch.roster import Roster
from rabit.printable import printable, printable_lines


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def assert_is_blamed(job, who, size, how):
    status, headline = HEADLINES[how]
    assert f"rabitrun: rank {who} of {size} (host localhost) {headline}" in job.err, job.err
    assert job.status == status, job.err


@pytest.mark.parametrize("how", HEADLINES)
@pytest.mark.parametrize("size", [2, 5])
def test_the_rank_that_failed_first_is_shown(rabitrun, script, how, size):
    who = size - 1 if how in ("raise", "return") else 0

    job = rabitrun("-np", size, sys.executable, script, how, who)

    assert_is_blamed(job, who, size, how)


def test_the_users_line_and_one_traceback_are_shown(rabitrun, script):
    job = rabitrun("-np", 3, sys.executable, script, "raise", 1)

    assert_is_blamed(job, 1, 3, "raise")
    line = 1 + SCRIPT[: SCRIPT.index("raise ValueError")].count("\n")
    assert f"At {script}:{line}, in step:" in job.err
    assert '    | raise ValueError("sample 7 is bad")' in job.err
    assert job.err.count("Traceback (most recent call last)") == 1
    assert "[1] ValueError: sample 7 is bad" in job.err
    # The survivors say in one line with whom they end, and why that rank ended.
    for rank in (0, 2):
        assert f"[{rank}] rabit: rank {rank} ends with rank 1: PeerLost: " in job.err
    assert job.err.count("rank 1 is ending after ValueError: sample 7 is bad") == 2
    assert "at shutdown" not in job.err


def test_an_exception_that_has_no_text_is_shown_by_its_type(rabitrun, tmp_path):
    script = tmp_path / "mute.py"
    script.write_text(
        "import rabit\nrabit.init()\nclass Mute(Exception):\n    def __str__(self):\n        raise ValueError\n"
        "if rabit.rank() == 1:\n    raise Mute\nrabit.barrier()\n"
    )

    job = rabitrun("-np", 2, sys.executable, script)

    assert "rabitrun: rank 1 of 2 (host localhost) raised Mute: <exception str() failed>" in job.err
    assert "diagnostics/ending.py" not in job.err


def test_what_no_terminal_can_show_is_shown_as_its_code(rabitrun, tmp_path):
    script = tmp_path / "odd.py"
    script.write_text(
        "import os, rabit\nrabit.init()\nif rabit.rank() == 1:\n"
        "    raise ValueError(os.fsdecode(b'no \\xff.png'))\nrabit.barrier()\n"
    )

    job = rabitrun("-np", 2, sys.executable, script)

    assert job.status == 1
    assert "rabitrun: rank 1 of 2 (host localhost) raised ValueError: no \\udcff.png" in job.err
    assert "rank 1 is ending after ValueError: no \\udcff.png" in job.err


def test_a_rank_that_exits_does_not_seem_to_blame_those_it_left(rabitrun, tmp_path):
    script = tmp_path / "leave.py"
    script.write_text(
        "import sys, rabit\nrabit.init()\nif rabit.rank() == 1:\n    sys.exit(3)\nrabit.barrier()\n"
    )

    job = rabitrun("-np", 2, sys.executable, script)

    assert job.status == 3
    _, _, report = job.err.partition("rabitrun: rank 1 of 2 (host localhost) exited with status 3")
    assert report and "rank 0 stopped without waiting" not in report, job.err


def test_ranks_that_are_busy_when_another_fails_have_their_say(rabitrun, script):
    """They notice 0.3 s after its end: time enough for the launcher to have stopped them."""
    job = rabitrun("-np", 3, sys.executable, script, "SIGKILL", 1, "busy", 2, 0)

    assert_is_blamed(job, 1, 3, "SIGKILL")
    for rank in (0, 2):
        assert f"[{rank}] rabit: rank {rank} ends with rank 1: PeerLost: " in job.err


@pytest.mark.parametrize("is_first", [True, False])
def test_a_rank_that_ends_without_init_ends_the_job_at_once(rabitrun, tmp_path, is_first):
    (tmp_path / "train.py").write_text(
        "import os, sys, time, pathlib\n"
        "mark = pathlib.Path('mark')\n"
        "has_to_wait = (os.environ['RABIT_RANK'] == '1') != (sys.argv[1] == 'True')\n"
        "while has_to_wait and not mark.exists(): time.sleep(0.01)\n"
        "mark.touch()\n"
        "if os.environ['RABIT_RANK'] == '1': sys.exit(0)\n"
        "import rabit; rabit.init()\n"
    )

    job = rabitrun("-np", 3, "--connect-timeout", "1h", sys.executable, tmp_path / "train.py", is_first, cwd=tmp_path)

    assert job.status == 1, job.err
    assert "rabitrun: rank 1 of 3 (host localhost) ended without an error and without rabit.init() or" in job.err
    assert "in which rank 0 waits" in job.err or "in which rank 2 waits" in job.err
    assert "Let every rank call it" in job.err and "Traceback" not in job.err


def test_a_rank_that_leaves_early_is_not_sent_to_look_at_the_others(rabitrun):
    code = (
        "import numpy as np, rabit, sys\nrabit.init()\n"
        "for step in range(5):\n"
        "    if step == 3 and rabit.rank() == 1: sys.exit(3)\n"
        "    rabit.allreduce(np.ones(3), name='x')"
    )

    job = rabitrun("-np", 3, sys.executable, "-c", code)

    assert job.status == 3 and "rank 1 of 3 (host localhost) exited with status 3" in job.err, job.err
    assert "ended first" not in job.err


def test_a_rank_that_leaves_early_may_take_its_time(rabitrun):
    """The others have ended with errors long before it has its own status."""
    code = (
        "import atexit, time; atexit.register(time.sleep, 2.5)\n"  # After the handlers of rabit.
        "import numpy as np, rabit, sys\nrabit.init()\n"
        "if rabit.rank() == 1: sys.exit(3)\n"
        "atexit.unregister(time.sleep)\n"
        "rabit.allreduce(np.ones(3), name='x')"
    )

    job = rabitrun("-np", 3, sys.executable, "-c", code)

    assert job.status == 3 and "rank 1 of 3 (host localhost) exited with status 3" in job.err, job.err


def test_a_rank_that_does_not_come_is_told_in_whole_sentences(rabitrun):
    code = "import os, time, rabit\nif os.environ['RABIT_RANK'] == '1': time.sleep(60)\nrabit.init()"

    job = rabitrun("-np", 2, "--connect-timeout", "1s", sys.executable, "-c", code)

    assert job.status == 1 and "rank 1 has not appeared" in job.err, job.err
    assert "not every rank has started, or called init(). Look at why it did not start" in job.err


def test_a_setting_that_is_wrong_on_one_rank_is_told_in_one_line(rabitrun, tmp_path):
    code = (
        "import os, rabit\nif os.environ['RABIT_RANK'] == '1': os.environ['RABIT_NETWORK_INTERFACE'] = 'x'\n"
        "rabit.init()"
    )

    job = rabitrun("-np", 2, sys.executable, "-c", code)

    assert job.status == 1, job.err
    assert "rabitrun: rank 1 of 2 (host localhost) raised InvalidArgument: the environment variable" in job.err
    assert "frames inside rabit]" in job.err or "frame inside rabit]" in job.err


def test_a_rank_without_init_is_nothing_special_where_nobody_waits(rabitrun):
    code = "import os\nif os.environ['RABIT_RANK'] == '1': import time; time.sleep(0.3)"

    job = rabitrun("-np", 2, sys.executable, "-c", code)

    assert job.status == 0 and not job.err


def test_the_frames_of_the_library_are_folded(rabitrun, script):
    code = "import rabit; rabit.init(); rabit.allreduce('text', name='x')"
    job = rabitrun("-np", 1, sys.executable, "-c", code)

    assert job.status == 1
    assert "frames inside rabit]" in job.err
    assert "rabit/ops" not in job.err and "rabit/_ops" not in job.err
    assert "in <module>" in job.err


def test_a_hook_of_the_users_own_is_called_and_the_cause_is_known(rabitrun, script):
    text = SCRIPT.replace(
        "rabit.init()\n",
        "rabit.init()\nsys.excepthook = lambda kind, *_: print('my hook', kind.__name__)\n",
        1,
    )
    script.write_text(text)

    job = rabitrun("-np", 3, sys.executable, script, "raise", 2)

    assert "[2] my hook ValueError" in job.out
    assert_is_blamed(job, 2, 3, "raise")


def test_an_error_that_replaces_the_loss_is_a_consequence(rabitrun, script):
    job = rabitrun("-np", 3, sys.executable, script, "exit", 1, "hide", 2, 0)

    assert_is_blamed(job, 1, 3, "exit")


def test_a_program_that_fails_after_another_did_well_is_judged_by_itself(rabitrun, script):
    both = (
        f"{sys.executable} {script} raise 0 || exec {sys.executable} -c 'import sys; sys.exit(9)'"
    )
    job = rabitrun("-np", 1, "sh", "-c", both)

    assert job.status == 9


# The choice itself, from what arrives.


def failures(*events):
    """(rank, event, value) in the order of their arrival -> what the launcher knows at the end."""
    return roster_of(*events).failures()


def roster():
    return Roster(dict.fromkeys(range(8), "h"), 8, lambda rank: [])


def roster_of(*events):
    found = roster()
    for at_s, (rank, event, value) in enumerate(events):
        if event == "stop":
            found.stopping(at_s)
        elif event in ("exit", "stopped"):
            found.ended(rank, value, value, at_s, was_stopped=event == "stopped")
        else:
            found.hear(rank, telling(event, value), at_s)
    return found


def telling(event, lost):
    import json

    texts = {"type": "E", "message": "m", "place": "", "code": "", "traceback": ""}
    return json.dumps({"event": event, "lost": lost, **texts}).encode() + b"\n"


@pytest.mark.parametrize(
    ("events", "culprit", "status"),
    [
        # The rank that raised ends last, stopped by the launcher.
        ([(1, "raised", -1), (0, "raised", 1), (0, "exit", 1), (1, "stopped", -15)], 1, 1),
        # What it told comes from another host after the others have ended.
        ([(0, "raised", 1), (0, "exit", 1), (1, "raised", -1), (1, "exit", 1)], 1, 1),
        # ... and even after the launcher began to stop the ranks.
        (
            [(0, "raised", 1), (0, "exit", 1), (9, "stop", 0), (1, "raised", -1), (1, "exit", 1)],
            1,
            1,
        ),
        # An exception in the handler of the launcher's own signal is no cause.
        (
            [(0, "raised", -1), (0, "exit", 1), (9, "stop", 0), (1, "raised", -1), (1, "exit", 7)],
            0,
            1,
        ),
        # It left early, and everyone else misses it.
        ([(1, "leaving", -1), (0, "raised", 1), (0, "exit", 5), (1, "exit", 0)], 1, 5),
        ([(1, "leaving", -1), (0, "raised", 1), (0, "exit", 5), (1, "stopped", -15)], 1, 5),
        # It caught the loss of another rank and ended by itself.
        ([(2, "leaving", 1), (2, "exit", 3), (1, "exit", -9)], 1, 137),
        # Two fail by themselves: the first.
        ([(2, "raised", -1), (1, "raised", -1), (1, "exit", 1), (2, "exit", 1)], 2, 1),
    ],
)
def test_the_choice(events, culprit, status):
    known = failures(*events)
    found = choose_culprit(known)

    assert found is not None and found.rank == culprit
    assert job_status(found, known) == status


@pytest.mark.parametrize(
    ("events", "rank", "awaited"),
    [
        ([(0, "raised", 1), (0, "exit", 1)], 0, {1}),
        # It blames one that has ended because of another, which is about to end.
        ([(1, "leaving", -1), (0, "raised", 1), (0, "exit", 1), (2, "raised", 0), (2, "exit", 1)], 2, {1}),
        ([(1, "leaving", -1), (0, "raised", 1), (2, "raised", 0), (2, "exit", 1)], 2, {1}),
        # The cause has ended.
        ([(1, "exit", 3)], 1, set()),
        ([(1, "exit", 3), (0, "raised", 1), (0, "exit", 1)], 0, set()),
        # They blame each other.
        ([(0, "raised", 2), (0, "exit", 1), (2, "raised", 0), (2, "exit", 1)], 2, set()),
    ],
)
def test_who_is_awaited_is_at_the_end_of_the_chain(events, rank, awaited):
    assert roster_of(*events).awaited(rank) == awaited


def test_tellings_come_in_pieces_and_strange_ones_hide_nothing():
    tellings = roster()
    line = telling("raised", -1)

    tellings.hear(0, line[:10], 1.0)
    assert tellings[0].told is None
    tellings.hear(0, line[10:], 2.0)
    assert tellings[0].told.raised == "E" and tellings[0].told.at_s == 2.0
    tellings.hear(0, b"not for you\n", 3.0)
    assert tellings[0].told.raised == "E"


# Control characters of seven and eight bits, a title and a cleared screen, a line that is not rabitrun's, and a mark
# that turns the direction of writing.
EVIL = "w\x1b]0;PWNED\x07\x1b[2J\nrabitrun: rank 9 of 9 says all is well\r\x9b31m\u202e"
EVIL_PROGRAM = """
import json, sys
import numpy as np
import rabit

evil = json.loads(sys.argv[2])
rabit.init()
if sys.argv[1] == "mismatch":
    rabit.allreduce(np.ones(3 + rabit.rank()), name=evil)
if sys.argv[1] == "exception" and rabit.rank() == 1:
    raise ValueError(evil)
if sys.argv[1] == "stall" and rabit.rank() == 1:
    rabit.broadcast(1, name="not the same")
rabit.allreduce(np.ones(3), name=evil)
rabit.allreduce(np.ones(1000), name=evil)
"""


@pytest.mark.parametrize("end", ["mismatch", "exception", "stall", "none"])
def test_no_name_and_no_exception_steers_the_terminal(rabitrun, tmp_path, end):
    script = tmp_path / "train.py"
    script.write_text(EVIL_PROGRAM)
    files = ["--comm-log", tmp_path / "ops.csv", "--timeline", tmp_path / "timeline.json", "--summary"]
    limits = ["--stall-warning", "200ms", "--stall-abort", "1s"] if end == "stall" else []

    job = rabitrun("-np", 2, *files, *limits, sys.executable, script, end, json.dumps(EVIL), cwd=tmp_path)

    assert (job.status == 0) == (end == "none"), job.err
    assert r"w\x1b]0;PWNED\x07\x1b[2J" in job.err
    for line in (job.out + job.err).splitlines():
        assert line == printable(line), line
        assert line.startswith(("[0] ", "[1] ", "rabitrun: rank 1", "rabitrun: rank 0", "  ")), line
    written = [path.read_text() for path in tmp_path.glob("*.csv*")] + [
        path.read_text() for path in tmp_path.glob("timeline*")
    ]
    assert len(written) >= 3
    for text in written:
        assert text == printable_lines(text)
        assert "\nrabitrun" not in text
