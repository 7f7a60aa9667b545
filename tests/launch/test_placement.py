"""Which rank a process is, from the marks of every launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rabit import Config
from rabit.errors import InvalidArgument, TimedOut
from rabit.rendezvous import meeting_file, other_launchers, placement
from rabit.rendezvous.discovery import Discovery, discover
from rabit.rendezvous.environments import expand_host_list, expand_task_counts
from rabit.rendezvous.other_launchers import publish

SECRET = bytes(range(32))


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch, tmp_path):
    """Each test is a process that serves nothing yet and has its own directory for meetings."""
    monkeypatch.setattr(other_launchers, "_served", {})
    monkeypatch.setattr(meeting_file, "_private_directory", lambda: tmp_path)


@pytest.fixture
def secret_file(tmp_path):
    path = tmp_path / "secret"
    path.write_text(SECRET.hex() + "\n")
    path.chmod(0o600)
    return path


def rabitrun(**changes):
    environ = {
        "RABIT_RANK": "3",
        "RABIT_SIZE": "4",
        "RABIT_LOCAL_RANK": "1",
        "RABIT_LOCAL_SIZE": "2",
        "RABIT_CROSS_RANK": "1",
        "RABIT_CROSS_SIZE": "2",
        "RABIT_STORE_ADDRESS": "127.0.0.1:4711",
    }
    return {**environ, **changes}


def torchrun(rank=0, size=2, local_rank=None, local_size=None, **changes):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank if local_rank is None else local_rank),
        "LOCAL_WORLD_SIZE": str(size if local_size is None else local_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "a-run",
        **changes,
    }


def slurm(**changes):
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "2",
        "SLURM_NTASKS": "3",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NODELIST": "localhost,node[07-08]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
        "SLURM_LAUNCH_NODE_IPADDR": "203.0.113.9",
        **changes,
    }


def numbers(placement):
    return (
        placement.rank,
        placement.size,
        placement.local_rank,
        placement.local_size,
        placement.cross_rank,
        placement.cross_size,
    )


def test_no_launcher_is_a_job_of_one_rank():
    placement = discover({})

    assert numbers(placement) == (0, 1, 0, 1, 0, 1)
    assert placement.secret is None and not placement.serves_store
    assert placement.launcher == "none"


def test_rabitrun_tells_everything(secret_file):
    placement = discover(rabitrun(RABIT_SECRET_FILE=str(secret_file)))

    assert numbers(placement) == (3, 4, 1, 2, 1, 2)
    assert placement.secret == SECRET
    assert placement.store_address == "127.0.0.1:4711"
    assert placement.bind_address == "127.0.0.1"
    assert placement.launcher == "rabitrun" and not placement.serves_store


def test_the_secret_comes_through_a_pipe_and_init_may_come_twice():
    placement._drain_pipe.cache_clear()
    read_end, write_end = os.pipe()
    os.write(write_end, SECRET.hex().encode())
    os.close(write_end)

    first = discover(rabitrun(RABIT_SECRET_FD=str(read_end)))
    second = discover(rabitrun(RABIT_SECRET_FD=str(read_end)))

    os.close(read_end)
    placement._drain_pipe.cache_clear()
    assert first.secret == second.secret == SECRET


def test_the_secret_comes_through_a_memory_file_and_is_not_inherited():
    descriptor = os.memfd_create("secret", 0)
    os.write(descriptor, SECRET.hex().encode())
    os.set_inheritable(descriptor, True)

    placement = discover(rabitrun(RABIT_SECRET_FD=str(descriptor)))

    assert placement.secret == SECRET
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_the_secret_is_not_in_the_text_of_a_placement(secret_file):
    placement = discover(rabitrun(RABIT_SECRET_FILE=str(secret_file)))

    assert SECRET.hex() not in repr(placement) and str(SECRET) not in repr(placement)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"RABIT_RANK": "4"}, "RABIT_RANK=4, RABIT_SIZE=4"),
        ({"RABIT_RANK": "-1"}, "RABIT_RANK is '-1'"),
        ({"RABIT_RANK": "one"}, "RABIT_RANK is 'one'"),
        ({"RABIT_SIZE": "99999999999999999999"}, "RABIT_SIZE is"),
        ({"RABIT_SIZE": ""}, "RABIT_SIZE is not set"),
        ({"RABIT_LOCAL_RANK": "2"}, "RABIT_LOCAL_RANK=2, RABIT_LOCAL_SIZE=2"),
        ({"RABIT_LOCAL_SIZE": "5"}, "RABIT_LOCAL_SIZE=5"),
        ({"RABIT_CROSS_RANK": "2"}, "RABIT_CROSS_RANK=2, RABIT_CROSS_SIZE=2"),
        ({"RABIT_STORE_ADDRESS": ""}, "RABIT_STORE_ADDRESS is not set"),
        ({"RABIT_STORE_ADDRESS": "host"}, "RABIT_STORE_ADDRESS is 'host'"),
        ({"RABIT_STORE_ADDRESS": "::1:90"}, "expected host:port or [v6]:port"),
        ({"RABIT_STORE_ADDRESS": "h:70000"}, "RABIT_STORE_ADDRESS is 'h:70000'"),
        ({"RABIT_SECRET_FILE": "/nowhere"}, "does not exist"),
        ({"RABIT_SECRET_FILE": ""}, "has no secret"),
        ({"RABIT_SECRET_FD": "250"}, "RABIT_SECRET_FD is 250, which is not open"),
        ({"RABIT_SECRET_FD": "x"}, "RABIT_SECRET_FD is 'x'"),
    ],
)
def test_contradictions_name_the_variables(secret_file, changes, text):
    environ = (
        rabitrun(RABIT_SECRET_FILE=str(secret_file), **changes)
        if not {"RABIT_SECRET_FILE"} & set(changes)
        else rabitrun(**changes)
    )

    with pytest.raises(InvalidArgument) as caught:
        discover(environ)

    assert text in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_file_that_others_may_read_is_refused(secret_file, mode):
    secret_file.chmod(mode)

    with pytest.raises(InvalidArgument, match="chmod 600"):
        discover(rabitrun(RABIT_SECRET_FILE=str(secret_file)))


def test_a_secret_file_behind_a_link_is_refused(secret_file, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(secret_file)

    with pytest.raises(InvalidArgument, match="not a symbolic link"):
        discover(rabitrun(RABIT_SECRET_FILE=str(link)))


@pytest.mark.parametrize("content", ["", "abc", "zz" * 32, "00" * 31, "00" * 33])
def test_a_malformed_secret_is_refused_and_not_shown(secret_file, content):
    secret_file.write_text(content)

    with pytest.raises(InvalidArgument, match="64 hexadecimal digits") as caught:
        discover(rabitrun(RABIT_SECRET_FILE=str(secret_file)))
    assert not content or content not in str(caught.value)


def test_torchrun_on_one_host_meets_in_a_private_file():
    rank_0 = discover(torchrun(rank=0))
    assert rank_0.serves_store and rank_0.store_address == "127.0.0.1:0"
    published = publish(rank_0, 4711)

    rank_1 = discover(torchrun(rank=1), timeout=5)

    assert rank_1.store_address == published.store_address == "127.0.0.1:4711"
    assert rank_1.secret == rank_0.secret and len(rank_1.secret) == 32
    assert rank_1.bind_address == "127.0.0.1"
    assert numbers(rank_1) == (1, 2, 1, 2, 0, 1)
    assert Path(rank_0.meeting_file).stat().st_mode & 0o777 == 0o600


def test_rank_1_waits_for_rank_0():
    found = []
    waiter = threading.Thread(target=lambda: found.append(discover(torchrun(rank=1), timeout=20)))
    waiter.start()
    publish(discover(torchrun(rank=0)), 4711)
    waiter.join(20)

    assert found[0].store_address == "127.0.0.1:4711"


def test_rank_1_gives_up_when_rank_0_does_not_come():
    with pytest.raises(TimedOut, match=r"rank 1 waited 0\.05 s for rank 0"):
        discover(torchrun(rank=1), timeout=0.05)


def test_a_second_init_of_rank_0_keeps_the_store():
    first = publish(discover(torchrun(rank=0)), 4711)

    second = discover(torchrun(rank=0))

    assert not second.serves_store
    assert second.secret == first.secret and second.store_address == first.store_address


def test_the_file_of_a_dead_job_counts_as_absent(tmp_path):
    # pid 1 lives, but did not start at this time.
    path = Path(discover(torchrun(rank=0)).meeting_file)
    path.write_text(json.dumps({"pid": 1, "started": "0", "store": "h:1", "secret": "00" * 32}))
    path.chmod(0o600)

    with pytest.raises(TimedOut):
        discover(torchrun(rank=1), timeout=0.05)

    publish(discover(torchrun(rank=0, TORCHELASTIC_RUN_ID="another")), 1)
    assert not path.exists()


def test_jobs_at_the_same_time_do_not_meet():
    publish(discover(torchrun(rank=0)), 4711)

    with pytest.raises(TimedOut):
        discover(torchrun(rank=1, MASTER_PORT="29501"), timeout=0.05)


def test_the_meeting_file_goes_with_its_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from rabit.rendezvous import meeting_file as m;"
        "m.write_meeting(Path(sys.argv[1]), m.Meeting('127.0.0.1:1', b'x' * 32));"
        "assert Path(sys.argv[1]).exists()"
    )
    path = tmp_path / "job.json"

    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)

    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_private_is_refused(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(meeting_file.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(meeting_file.os, "access", lambda *_: False)
    (tmp_path / f"rabit-{os.getuid()}").mkdir(mode=0o755)

    with pytest.raises(InvalidArgument, match="mode 0700"):
        discover(torchrun(rank=0))


def test_torchrun_on_several_hosts_needs_a_secret():
    environ = torchrun(rank=2, size=4, local_rank=0, local_size=2)

    with pytest.raises(InvalidArgument, match="set RABIT_SECRET_FILE"):
        discover(environ)


def test_torchrun_on_several_hosts_agrees_on_a_port(secret_file):
    def environ(rank):
        return torchrun(
            rank=rank,
            size=4,
            local_rank=rank % 2,
            local_size=2,
            RABIT_SECRET_FILE=str(secret_file),
            RABIT_BIND_ADDRESS="127.0.0.1" if rank else "10.1.1.1",
        )

    rank_0, rank_3 = discover(environ(0)), discover(environ(3))

    assert rank_0.serves_store and not rank_3.serves_store
    port = int(rank_0.store_address.rpartition(":")[2])
    assert rank_3.store_address == f"127.0.0.1:{port}" and 20_000 <= port < 30_000
    assert rank_0.store_address == f"10.1.1.1:{port}"
    assert numbers(rank_3) == (3, 4, 1, 2, 1, 2)


def test_world_size_without_rank_is_not_torchrun():
    assert discover({"WORLD_SIZE": "8", "MASTER_ADDR": "x"}).size == 1


def test_torchrun_variables_set_by_hand_need_the_local_ones():
    with pytest.raises(InvalidArgument, match="LOCAL_RANK is not set"):
        discover({"RANK": "1", "WORLD_SIZE": "2"})


def test_open_mpi_on_one_host():
    def environ(rank):
        return {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": "prterun-host-99@1",
        }

    publish(discover(environ(0)), 99)
    placement = discover(environ(1), timeout=5)

    assert numbers(placement) == (1, 2, 1, 2, 0, 1)
    assert placement.launcher == "mpirun (Open MPI)"


def test_open_mpi_on_several_hosts_needs_an_address(secret_file):
    environ = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "RABIT_SECRET_FILE": str(secret_file),
    }
    with pytest.raises(InvalidArgument, match="Set RABIT_STORE_ADDRESS"):
        discover(environ)

    # What the user says is where rank 0 listens: several "hosts" of one machine, as when a layout is tried out.
    first = {**environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    served = discover({**first, "RABIT_STORE_ADDRESS": "127.0.0.1:4000"})
    assert (served.store_address, served.serves_store) == ("127.0.0.1:4000", True)
    assert served.bind_address == "127.0.0.1"

    placement = discover({**environ, "RABIT_STORE_ADDRESS": "[::1]:4000"})
    assert placement.store_address == "[::1]:4000"
    assert numbers(placement) == (3, 4, 1, 2, 1, 2)


def test_mpich_on_one_host():
    def environ(rank):
        return {
            "PMI_RANK": str(rank),
            "PMI_SIZE": "3",
            "MPI_LOCALRANKID": str(rank),
            "MPI_LOCALNRANKS": "3",
        }

    publish(discover(environ(0)), 99)
    placement = discover(environ(2), timeout=5)

    assert numbers(placement) == (2, 3, 2, 3, 0, 1)


def test_slurm_finds_rank_0_in_the_node_list_not_at_the_login_node(secret_file):
    placement = discover(slurm(RABIT_SECRET_FILE=str(secret_file)))

    assert numbers(placement) == (2, 3, 0, 1, 1, 2)
    assert placement.store_address.startswith("localhost:")
    assert placement.launcher == "srun (Slurm)"


def test_a_node_name_that_is_not_known_here_is_told_with_where_it_comes_from(secret_file):
    nodes = slurm(SLURM_STEP_NODELIST="node[07-08].invalid", RABIT_SECRET_FILE=str(secret_file))

    with pytest.raises(InvalidArgument, match=r"srun \(Slurm\) says that rank 0 runs on 'node07.invalid'") as caught:
        discover(nodes)

    assert "Set RABIT_STORE_ADDRESS" in str(caught.value)


def test_slurm_counts_only_hosts_that_have_the_local_rank(secret_file):
    placement = discover(
        slurm(
            SLURM_PROCID="1",
            SLURM_LOCALID="1",
            SLURM_NODEID="0",
            RABIT_SECRET_FILE=str(secret_file),
        )
    )

    assert numbers(placement) == (1, 3, 1, 2, 0, 1)


def test_a_batch_script_outside_a_step_is_a_job_of_one_rank():
    environ = slurm()
    del environ["SLURM_STEP_ID"]

    assert discover(environ).size == 1


def test_slurm_variables_that_contradict_are_named():
    with pytest.raises(InvalidArgument, match="SLURM_NODEID=2, SLURM_STEP_TASKS_PER_NODE='2,1'"):
        discover(slurm(SLURM_NODEID="2"))


def test_torchrun_inside_slurm_wins_over_slurm():
    placement = discover({**slurm(), **torchrun(rank=0)})

    assert placement.launcher == "torchrun"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11,20],x", ["n08", "n09", "n10", "n11", "n20", "x"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
    ],
)
def test_host_lists_expand_without_scontrol(text, hosts):
    assert expand_host_list(text, "SLURM_STEP_NODELIST") == hosts


@pytest.mark.parametrize(
    "text", ["n[1", "n1]", "n[a-b]", "n[3-1]", "n[1-999999999]", "a;rm b", "$x"]
)
def test_malformed_host_lists_are_refused(text):
    with pytest.raises(InvalidArgument, match="SLURM_STEP_NODELIST"):
        expand_host_list(text, "SLURM_STEP_NODELIST")


def test_task_counts_expand():
    assert expand_task_counts("2(x3),1", "X") == [2, 2, 2, 1]
    with pytest.raises(InvalidArgument, match="X is '2x3'"):
        expand_task_counts("2x3", "X")


def test_the_host_key_can_be_overridden():
    assert discover({"RABIT_HOST_KEY": "rack1"}).host_key == "rack1"
    assert os.uname().nodename in discover({}).host_key


@pytest.mark.parametrize("source", ["code", "file"])
def test_what_the_settings_say_of_places_is_not_dropped(secret_file, tmp_path, source):
    wanted = {
        "bind_address": "127.0.0.9",
        "host_key": "rack7",
        "secret_file": str(secret_file),
    }
    if source == "code":
        config = Config(**wanted)
    else:
        path = tmp_path / "rabit.toml"
        path.write_text("".join(f'{name} = "{text}"\n' for name, text in wanted.items()))
        config = Config.from_environ({"RABIT_CONFIG_FILE": str(path)})

    placed = Discovery().place(config, rabitrun(), None)

    assert (placed.bind_address, placed.host_key) == ("127.0.0.9", "rack7")
    assert placed.secret == SECRET
    assert (placed.rank, placed.store_address) == (3, "127.0.0.1:4711")


def test_the_interfaces_of_the_settings_choose_the_address(secret_file):
    config = Config(network_interfaces="lo", secret_file=str(secret_file))
    marks = rabitrun(RABIT_STORE_ADDRESS="192.0.2.7:4711")

    placed = Discovery().place(config, marks, None)

    assert placed.bind_address == "127.0.0.1"
