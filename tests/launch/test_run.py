"""rabit.run: a function as the program of every rank."""

from __future__ import annotations

import inspect
import linecache
import multiprocessing
import os
import signal
import sys
import threading

import pytest

from rabit.errors import InvalidArgument
from rabit.launch.run import RunFailed, run


def place(*names):
    return [os.environ[name] for name in names]


def test_results_come_back_by_rank():
    found = run(place, ("RABIT_RANK", "RABIT_SIZE"), num_proc=3)

    assert found == [["0", "3"], ["1", "3"], ["2", "3"]]


def test_a_function_without_a_module_is_sent():
    offset = 10

    found = run(lambda *, scale: (int(os.environ["RABIT_RANK"]) + offset) * scale,
                kwargs={"scale": 2}, num_proc=2)  # fmt: skip

    assert found == [20, 22]


def test_large_results_arrive_whole():
    found = run(lambda: bytes(5_000_000) + os.environ["RABIT_RANK"].encode(), num_proc=2)

    assert [each[-1:] for each in found] == [b"0", b"1"]
    assert {len(each) for each in found} == {5_000_001}


def test_objects_of_a_class_without_a_module_come_back():
    """Like those of a class of __main__, which is another module in a rank."""

    class Found:
        def __init__(self, rank):
            self.rank = rank

    found = run(lambda: Found(os.environ["RABIT_RANK"]), num_proc=2)

    assert [type(each) for each in found] == [Found, Found]
    assert [each.rank for each in found] == ["0", "1"]


def test_a_value_that_cannot_be_returned_is_told_with_its_rank(capfd):
    with pytest.raises(RunFailed, match=r"cannot return the value .* on rank 0, of type lock"):
        run(threading.Lock, num_proc=1)
    capfd.readouterr()


def test_an_exception_in_a_rank_is_reported(capfd):
    def fail():
        if os.environ["RABIT_RANK"] == "1":
            raise ValueError("the reason")
        import time

        time.sleep(600)

    with pytest.raises(RunFailed) as caught:
        run(fail, num_proc=2)

    assert caught.value.status == 1
    assert "rank 1 of 2 (host localhost) exited with status 1" in str(caught.value)
    assert "ValueError: the reason" in str(caught.value)
    capfd.readouterr()


def test_the_line_of_a_cell_that_fails_is_shown_and_the_error_once_for_each_reader(capfd):
    cell = "def train():\n    import rabit\n    rabit.init()\n    raise ValueError('sample 7 is bad')\n"
    linecache.cache["<cell 3>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 3>")
    module = {"__name__": "a_notebook"}
    exec(compile(cell, "<cell 3>", "exec"), module)

    with pytest.raises(RunFailed) as caught:
        run(module["train"], num_proc=1)

    line = "raise ValueError('sample 7 is bad')"
    assert f"At <cell 3>:4, in train:\n    | {line}" in str(caught.value)
    printed = capfd.readouterr().err
    assert line in printed
    assert [text.count("ValueError: sample 7 is bad") for text in (str(caught.value), printed)] == [1, 1]


def test_an_interrupt_of_the_job_is_one_of_the_caller(capfd):
    def interrupt(caller):
        os.kill(caller, signal.SIGINT)
        signal.pause()

    with pytest.raises(KeyboardInterrupt):
        run(interrupt, (os.getpid(),), num_proc=2)

    assert "SIGINT: stopping all ranks" in capfd.readouterr().err


def test_a_rank_that_leaves_without_a_result_is_told():
    with pytest.raises(RunFailed, match="gave no result"):
        run(sys.exit, (0,), num_proc=1)


def test_variables_and_output(capfd, tmp_path):
    found = run(print, ("hello",), num_proc=2, env={"A": "1"}, output_filename=tmp_path)

    assert found == [None, None]
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] hello", "[1] hello"]
    assert (tmp_path / "rank.1" / "stdout").read_text() == "hello\n"


def test_the_servers_of_a_job_around_it_are_not_waited_for(monkeypatch):
    monkeypatch.setenv("RABIT_SERVERS", "2")

    assert run(place, ("RABIT_SERVERS",), num_proc=2) == [["0"], ["0"]]


def dispositions():
    import signal

    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return [len(blocked), int(signal.getsignal(signal.SIGCHLD))]


def run_in_a_fork(function):
    """No Pool: it ends its workers with SIGTERM, which the test blocks."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(run(function, num_proc=2)), daemon=True)
    process.start()
    theirs.close()
    found = mine.recv()
    process.join()
    return found


@pytest.mark.parametrize("is_forked", [False, True], ids=["here", "multiprocessing"])
def test_ranks_inherit_no_strange_signals_of_a_program(is_forked):
    """As of one that has no use for the ends of its children, or starts threads with signals blocked."""
    earlier = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
    try:
        found = run_in_a_fork(dispositions) if is_forked else run(dispositions, num_proc=2)
        after = signal.getsignal(signal.SIGCHLD), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGCHLD, earlier)

    assert found == [[0, 0], [0, 0]]
    # multiprocessing itself changes the mask of its caller.
    assert is_forked or after == (signal.SIG_IGN, {signal.SIGTERM, signal.SIGUSR1})


def test_arguments_are_checked():
    with pytest.raises(InvalidArgument, match="Give one of them"):
        run(place, hosts="a", hostfile="b")
    with pytest.raises(InvalidArgument, match="-np is 0"):
        run(place, num_proc=0)

    with pytest.raises(InvalidArgument, match="num_proc='2': the number of ranks is an integer"):
        run(place, num_proc="2")
    with pytest.raises(InvalidArgument, match="func=3, which cannot be called"):
        run(3)

    for name, value in {"": "", "A=B": "", "A B": "", "A": "\0", "B": 1, 2: ""}.items():
        with pytest.raises(InvalidArgument, match=rf"run\(\) got env with {name!r}, which cannot be set: "):
            run(place, env={name: value})

    lock = threading.Lock()
    with pytest.raises(InvalidArgument, match=r"cannot send the function .* inside the function"):
        run(lambda: lock)


def test_takes_the_arguments_of_horovod_run_in_its_order():
    names = (
        "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts "
        "hostfile host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache "
        "output_filename verbose use_gloo use_mpi mpi_args network_interface network_interfaces "
        "executable np min_np max_np"
    )
    parameters = inspect.signature(run).parameters.values()
    positional = [each for each in parameters if each.kind is not each.KEYWORD_ONLY]

    assert [each.name for each in positional] == names.split()
    assert {each.default for each in positional[3:]} == {None}


def test_elastic_and_mpi_arguments_say_what_to_do_instead():
    with pytest.raises(InvalidArgument, match=r"min_np=1: jobs of run\(\) have a fixed number of ranks"):
        run(place, min_np=1)
    with pytest.raises(InvalidArgument, match="rabitrun --launcher mpi"):
        run(place, use_mpi=True)
    with pytest.raises(InvalidArgument, match="both num_proc and np"):
        run(place, num_proc=1, np=1)


def test_older_names_and_those_without_effect_are_taken():
    found = run(place, ("RABIT_SIZE",), np=2, use_gloo=True, use_mpi=False, disable_cache=True)

    assert len(found) == 2
