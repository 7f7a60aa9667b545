"""The hosts of a job: the script that names them, and where they are."""

from __future__ import annotations

import os
import queue
import selectors
import signal
import sys
import threading

import pytest

from rabit import InvalidArgument
from rabit.launch import host_watch, resolution
from rabit.launch.cli import main
from rabit.launch.host_watch import HostWatch
from rabit.launch.hosts import Host, parse_hostfile, parse_hosts
from rabit.launch.options import first_hosts
from rabit.launch.options.first_hosts import HostScript
from rabit.launch.plan import make_plan
from rabit.launch.resolution import resolved


@pytest.fixture
def script(tmp_path, monkeypatch):
    """script(text, mode): a file in the working directory, by its name."""
    monkeypatch.chdir(tmp_path)

    def write(text, mode=0o755):
        path = tmp_path / "my hosts.sh"
        path.write_text(text)
        path.chmod(mode)
        return path.relative_to(tmp_path)

    return write


def test_a_script_that_does_not_end_is_told(script, monkeypatch):
    monkeypatch.setattr(first_hosts, "_SCRIPT_TIMEOUT_S", 0.1)
    hangs = script("#!/bin/sh\nexec sleep 60\n")

    with pytest.raises(InvalidArgument, match=r"my hosts.sh has not ended within 0.1 s. Run it by hand"):
        HostScript(hangs, None).hosts()


@pytest.mark.parametrize(
    ("text", "mode", "remedy"),
    [
        ("echo localhost\n", 0o755, r"Let its first line say what runs it, such as #!/bin/sh\."),
        ("#!/bin/sh\necho localhost\n", 0o644, r"Run: chmod \+x './my hosts.sh'"),
        ("#!/no/shell\necho localhost\n", 0o755, r"Correct the path, or that of the program in its first line\."),
    ],
    ids=["no first line", "not executable", "no such program"],
)
def test_a_script_that_cannot_run_is_told_with_the_remedy(script, text, mode, remedy):
    with pytest.raises(InvalidArgument, match=f"my hosts.sh cannot be run: .* {remedy}"):
        HostScript(script(text, mode), None).hosts()


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (r"b\377d", "byte 1 is 0xff, and names of hosts are UTF-8"),
        (r"a\000b", "is not a host name"),
        ("", "names no host"),
        (r"a\na:2\n", "names the host 'a' twice"),
        (r"a:\342\202\254", "slots: expected a number between 1"),
    ],
    ids=["not UTF-8", "a zero byte", "nothing", "twice", "no number"],
)
def test_what_is_no_list_of_hosts_is_an_error_in_words(script, printed, reason):
    with pytest.raises(InvalidArgument, match=reason):
        HostScript(script(f"#!/bin/sh\nprintf '{printed}'\n"), None).hosts()


def test_a_failing_script_may_complain_in_any_bytes(script):
    with pytest.raises(InvalidArgument, match=r"exited with status 3 and said: \\xff\. Run it by hand"):
        HostScript(script("#!/bin/sh\nprintf '\\377' >&2\nexit 3\n"), None).hosts()


def test_a_script_that_prints_without_end_is_ended(script):
    with pytest.raises(InvalidArgument, match="has printed more than 1 MiB"):
        HostScript(script("#!/bin/sh\nexec yes localhost\n"), None).hosts()


def test_the_mark_of_an_editor_before_the_first_host_is_skipped(script, tmp_path):
    printed = script("#!/bin/sh\nprintf '\\357\\273\\277a:2\\nb\\n'\n")
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfa:2\r\nb\r\n")

    assert HostScript(printed, None).hosts() == [Host("a", 2), Host("b", 1)]
    assert parse_hostfile(tmp_path / "hosts") == [Host("a", 2), Host("b", 1)]


# A child that outlives its script says so by the end of a pipe that it holds.
_HANGS = "#!/bin/sh\nexec 3>'{pipe}'\nsleep 60 &\necho runs >&3\nwait\n"


def test_a_script_that_takes_too_long_ends_with_its_children(script, tmp_path, monkeypatch):
    monkeypatch.setattr(first_hosts, "_SCRIPT_TIMEOUT_S", 0.5)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    looks = HostScript(script(_HANGS.format(pipe=tmp_path / "pipe")), None)

    with pytest.raises(InvalidArgument, match="has not ended"):
        looks.hosts()

    assert os.read(reader, 100) in (b"", b"runs\n")
    assert os.read(reader, 100) == b""  # the end, which comes when nobody holds it
    os.close(reader)


def test_closing_ends_a_script_that_runs_with_its_children(script, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    looks = HostScript(script(_HANGS.format(pipe=tmp_path / "pipe")), None)
    failures = []

    def look():
        with pytest.raises(InvalidArgument) as error:
            looks.hosts()
        failures.append(str(error.value))

    thread = threading.Thread(target=look)
    thread.start()
    with (tmp_path / "pipe").open() as pipe:
        assert pipe.readline() == "runs\n"
        looks.close()
        assert pipe.read() == ""
    thread.join()

    assert "exited with status -9" in failures[0]
    with pytest.raises(InvalidArgument, match="is not run any more"):
        looks.hosts()


def test_a_script_that_hangs_ends_with_rabitrun(start, tmp_path):
    """Also at the start, where rabitrun has no ranks yet."""
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "hosts.sh"
    path.write_text(_HANGS.format(pipe=tmp_path / "pipe"))
    path.chmod(0o755)
    job = start("-np", 1, "--min-np", 1, "--host-discovery-script", path, "true")

    with (tmp_path / "pipe").open() as pipe:
        assert pipe.readline() == "runs\n"
        job.send(signal.SIGTERM)
        assert pipe.read() == ""

    assert job.wait() == 128 + signal.SIGTERM
    job.assert_nothing_is_left()


class Watched:
    """A HostWatch over `looks`, functions that are called in turn; what it says, in order."""

    def __init__(self, looks):
        self.said = queue.SimpleQueue()
        self._looks = iter(looks)

    def __enter__(self):
        self._selector = selectors.DefaultSelector()
        self._watch = HostWatch(self._look, [], 0.001, self._selector, self.said.put, self.said.put)
        self._watch.__enter__()
        return self

    def __exit__(self, *error):
        self._watch.__exit__(*error)
        self._selector.close()

    def _look(self):
        return next(self._looks)()

    def next(self):
        while self.said.empty():
            for key, _ in self._selector.select(60):
                key.data()
        return self.said.get_nowait()


def test_a_watch_outlives_every_look_that_fails_and_says_each_failure_once():
    def fails(error):
        def look():
            raise error

        return look

    looks = [
        fails(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")),
        *(fails(InvalidArgument(f"at 10:00:0{second} nobody answers")) for second in range(5)),
        fails(OSError(5, "gone")),
        lambda: [Host("localhost", 2)],
        *(fails(InvalidArgument("at 10:00:09 nobody answers")) for _ in range(2)),
        lambda: [Host("localhost", 3)],
    ]

    with Watched(looks) as watched:
        said = [watched.next() for _ in range(6)]

    assert said == [
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: bad",
        "at 10:00:00 nobody answers",
        "OSError: [Errno 5] gone",
        [Host("localhost", 2, is_here=True)],
        "at 10:00:09 nobody answers",
        [Host("localhost", 3, is_here=True)],
    ]


@pytest.fixture
def resolver(monkeypatch):
    """Answers of getaddrinfo by name: a list of addresses, an error, or an event to wait for.  Its `asked` counts."""

    class Resolver(dict):
        def __init__(self):
            self.asked = []

    found = Resolver()

    def answer(name, port, **options):
        found.asked.append(name)
        answers = found.get(name, [name])
        if isinstance(answers, threading.Event):
            answers.wait()
            raise OSError("too late")
        if isinstance(answers, Exception):
            raise answers
        return [(0, 0, 0, "", (address, 0)) for address in answers]

    monkeypatch.setattr(resolution.socket, "getaddrinfo", answer)
    return found


def test_a_name_is_looked_up_once(resolver):
    resolver.update(a=["198.51.100.1", "198.51.100.2"], b=["198.51.100.3", "127.0.0.1"], c=OSError("unknown"))

    first = resolved([Host("a", 1), Host("me@b", 2), Host("c", 1)])
    then = resolved([Host("c", 4), Host("a", 3), Host("localhost", 1)], first)

    assert first == [
        Host("a", 1, False, "198.51.100.1"), Host("me@b", 2, True, "198.51.100.3"), Host("c", 1)
    ]  # fmt: skip
    assert first[2].problem == "unknown"
    assert then == [Host("c", 4), Host("a", 3, False, "198.51.100.1"), Host("localhost", 1, True)]
    assert sorted(resolver.asked) == ["a", "b", "c", "c"]


def test_a_name_that_only_ssh_knows_is_not_looked_up_at_every_look(resolver, monkeypatch):
    resolver.update(alias=OSError("unknown"))
    looks = [*[lambda: [Host("alias", 1)]] * 20, lambda: [Host("localhost", 2)]]

    with Watched(looks) as watched:
        said = [watched.next(), watched.next()]

    assert said == [[Host("alias", 1)], [Host("localhost", 2, is_here=True)]]
    assert resolver.asked == ["alias"]

    monkeypatch.setattr(host_watch, "_AGAIN_S", 0.0)
    with Watched(looks) as watched:
        watched.next()
        watched.next()
    assert len(resolver.asked) == 21  # as names of new machines appear a while after the machines


def test_a_name_without_an_answer_does_not_hold_up_the_others(resolver):
    silence = threading.Event()
    names = [f"silent{number}" for number in range(3)]
    resolver.update(dict.fromkeys(names, silence), z=["198.51.100.1"])

    found = resolved([Host(name, 1) for name in [*names, "z"]], limit_s=0.2)
    silence.set()

    assert [host.address for host in found] == ["", "", "", "198.51.100.1"]
    assert {host.problem for host in found} == {"the resolver has not answered within 0.2 s", ""}


def test_a_job_asks_for_each_name_once(resolver, monkeypatch, capfd):
    hosts = [f"node{number}" for number in range(40)]
    resolver.update({name: ["198.51.100.9"] for name in hosts})

    assert main(["-H", ",".join(f"{name}:1" for name in hosts), "--dry-run", "true"]) == 0

    assert sorted(resolver.asked) == sorted([*hosts, "198.51.100.9"])


def test_a_comma_after_the_last_host_is_nothing():
    assert parse_hosts("a:2,b,") == parse_hosts(" a:2 , b , ") == [Host("a", 2), Host("b", 1)]
    for text in (",a", "a,,b", ",", "a,,"):
        with pytest.raises(InvalidArgument):
            parse_hosts(text)


def test_the_work_of_a_plan_grows_with_its_ranks():
    """Counted in calls, since a time says little: a plan of 4,000 hosts took 19 s."""
    steps = 0

    def count(frame, event, argument):
        nonlocal steps
        steps += event == "call"

    found = []
    for hosts in (50, 200):
        steps = 0
        sys.setprofile(count)
        try:
            plan = make_plan([Host(f"h{number}", 8) for number in range(hosts)], None)
        finally:
            sys.setprofile(None)
        found.append(steps / hosts)
        last = plan.hosts[-1].places[-1]
        assert (last.rank, last.cross_rank, last.cross_size) == (8 * hosts - 1, hosts - 1, hosts)

    assert found[1] < 1.5 * found[0]
