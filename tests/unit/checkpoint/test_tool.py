"""rabitrun checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
from support.thread_peers import run_threads

from rabit.checkpoint import Checkpoint
from rabit.checkpoint.safetensors import parse_header
from rabit.launch.cli import main
from rabit.printable import printable_lines


@pytest.fixture
def folder(tmp_path):
    def save(peers):
        with Checkpoint(tmp_path, peers=peers) as checkpoint:
            for step in (10, 20):
                state = {"model": {"a": np.arange(6.0).reshape(2, 3), "b": np.full(4, step)}, "lr": 0.5}
                checkpoint.save(state, step=step, local={"seed": np.uint8([peers.rank])})

    assert run_threads(2, save) == [None, None]
    return tmp_path


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)


def test_ls_lists_generations(folder, capsys):
    (folder / "generation-00000003").mkdir()

    assert main(["checkpoint", "ls", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert [line.split()[:3] for line in lines[1:3]] == [["1", "10", "2"], ["2", "20", "2"]]
    assert lines[3].split() == ["3", "not", "finished"]


def test_ls_goes_on_after_a_manifest_that_cannot_be_read(folder, capsys):
    manifest = folder / "generation-00000001" / "manifest.json"
    manifest.unlink()
    manifest.mkdir()

    assert main(["checkpoint", "ls", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert "Is a directory" in lines[1] and lines[2].split()[:3] == ["2", "20", "2"]


def test_no_name_in_a_checkpoint_steers_the_terminal(tmp_path, capsys):
    def save(peers):
        with Checkpoint(tmp_path, peers=peers) as checkpoint:
            checkpoint.save({"w\x1b[2J\nforged\x9b": np.ones(2), "text": "\x1b[2J"}, step=1)

    assert run_threads(1, save) == [None]
    assert main(["checkpoint", "show", str(tmp_path)]) == 0

    text = capsys.readouterr().out
    assert r"w\x1b[2J\nforged\x9b" in text and "equal on all ranks: 1 tensor\n" in text
    assert text == printable_lines(text)


def test_verify_finds_what_is_damaged(folder, capsys):
    assert main(["checkpoint", "verify", str(folder)]) == 0
    damage(folder / "generation-00000001" / "shard-00001-of-00002.safetensors")

    assert main(["checkpoint", "verify", str(folder)]) == 1
    assert main(["checkpoint", "verify", str(folder), "-g", "2"]) == 0
    text = capsys.readouterr().out
    assert "generation 1: damaged" in text and "shard-00001" in text
    assert text.endswith("generation 2: whole\n")


def test_show_tells_tensors_and_values(folder, capsys):
    assert main(["checkpoint", "show", str(folder), "-g", "1"]) == 0
    text = capsys.readouterr().out

    assert "generation 1, step 10, saved by 2 ranks" in text
    assert "model/a" in text and "2x3" in text and '"lr": 0.5' in text and "of rank 1" in text


def test_consolidate_writes_one_file(folder, tmp_path, capsys):
    output = tmp_path / "model.safetensors"

    assert main(["checkpoint", "consolidate", str(folder), "-o", str(output), "--only", "model/"]) == 0

    data = output.read_bytes()
    head = data[: 8 + int.from_bytes(data[:8], "little")]
    a, b = parse_header(head, len(data))
    assert (a.name, a.dtype, a.shape, b.name) == ("a", "F64", (2, 3), "b")
    assert np.frombuffer(data, np.float64, 6, a.start).tolist() == list(range(6))
    assert np.frombuffer(data, np.int64, 4, b.start).tolist() == [20] * 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", "/nowhere"], "there is no folder /nowhere"),
        (["show", "{}", "-g", "7"], "no generation 7; finished are: 1, 2"),
        (["show", "{}", "-g", "20"], "'rabitrun checkpoint ls' has their steps"),
        (["consolidate", "{}", "-o", "x", "--only", "z"], "no tensor whose path begins with 'z'"),
        (["consolidate", "{}", "-o", "/nowhere/x"], "/nowhere/x cannot be written: No such file or directory. Give"),
        (["consolidate", "{}", "-o", "{}"], "cannot be written: Is a directory. Give another file to -o"),
    ],
)
def test_what_is_not_there_is_refused(folder, capsys, arguments, text):
    assert main(["checkpoint", *(each.format(folder) for each in arguments)]) == 2

    assert text in capsys.readouterr().err


def test_consolidate_leaves_nothing_half_written(folder, tmp_path, capsys):
    (folder / "generation-00000002" / "shard-00001-of-00002.safetensors").unlink()
    output = tmp_path / "model.safetensors"

    assert main(["checkpoint", "consolidate", str(folder), "-o", str(output)]) == 1

    assert "shard-00001-of-00002.safetensors" in (said := capsys.readouterr().err)
    assert "is damaged: it is missing" in said and "Traceback" not in said
    assert not output.exists() and not list(tmp_path.glob("*.partial"))
