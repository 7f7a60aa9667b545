"""Generations that somebody else has put into the folder: what they say is checked, whatever their checksums."""

from __future__ import annotations

import copy
import json
import random

import numpy as np
import pytest
from support.thread_peers import run_threads

import rabit
from rabit.checkpoint import Checkpoint, CheckpointDamaged, CheckpointFailed
from rabit.checkpoint.folder import Folder
from rabit.checkpoint.manifest import _text, sha256_of


def saved(folder, steps=(1, 2), size=2):
    def body(peers):
        with Checkpoint(folder, peers=peers) as checkpoint:
            for step in steps:
                state = {"w": np.arange(40.0) + step, "pair": (1, {2: "x"}), "bytes": b"abc", "far": float("inf")}
                checkpoint.save(state, step=step, local={"rank": np.full(3, peers.rank)})

    assert run_threads(size, body) == [None] * size


def read(folder, number=2):
    return json.loads((folder / f"generation-{number:08d}" / "manifest.json").read_text())


def write(folder, document, number=2):
    """With the checksum of what it says now."""
    rest = {key: value for key, value in document.items() if key != "sha256"}
    text = _text({"sha256": sha256_of(_text(rest).encode()), **rest})
    (folder / f"generation-{number:08d}" / "manifest.json").write_text(text)


def restored(folder, size=2):
    return run_threads(size, lambda peers: Checkpoint(folder, peers=peers).restore())


def first_piece(document):
    return document["tensors"]["w"]["pieces"][0]


STRANGE = {
    "a file above": lambda it: it["shards"][0].update(file="../secret"),
    "an absolute file": lambda it: it["shards"][0].update(file="/etc/passwd"),
    "no file": lambda it: it["shards"][0].update(file=""),
    "another shard": lambda it: first_piece(it).update(shard=7),
    "a shard before the first": lambda it: first_piece(it).update(shard=-1),
    "absurd elements": lambda it: (it["tensors"]["w"].update(shape=[1 << 60]), first_piece(it).update(count=1 << 60)),
    "negative elements": lambda it: it["tensors"]["w"].update(shape=[-40]),
    "other elements": lambda it: it["tensors"]["w"].update(shape=[41]),
    "an unknown type": lambda it: it["tensors"]["w"].update(dtype="F7"),
    "a list of types": lambda it: it["tensors"]["w"].update(dtype=["F64"]),
    "no pieces": lambda it: it["tensors"]["w"].update(pieces=[]),
    "an unknown field": lambda it: it["shards"][0].update(more=1),
    "tensors without names": lambda it: it.update(tensors=[]),
    "ranks without states": lambda it: it.update(local=[]),
    "other ranks": lambda it: it.update(size=3),
    "no format": lambda it: it.pop("format"),
    "a state of unknown tensors": lambda it: it["state"]["w"].update(path="v"),
    "a state without values": lambda it: it["state"]["pair"].pop("items"),
    "a number that is none": lambda it: it["state"]["far"].update(value="far"),
}  # fmt: skip


@pytest.mark.parametrize("what", STRANGE)
def test_it_is_damage_on_all_ranks_and_the_generation_before_is_taken(tmp_path, what):
    (tmp_path / "secret").write_bytes(b"of somebody else")
    saved(tmp_path / "checkpoints")
    document = read(tmp_path / "checkpoints")
    STRANGE[what](document)
    write(tmp_path / "checkpoints", document)

    found = restored(tmp_path / "checkpoints")

    for rank_found in found:
        assert rank_found.step == 1 and np.array_equal(rank_found.state["w"], np.arange(40.0) + 1)
        (text,) = rank_found.skipped
        assert "generation 2 is left out" in text


def test_the_error_names_the_file_that_lies_outside(tmp_path):
    saved(tmp_path, steps=(1,), size=1)
    document = read(tmp_path, 1)
    document["shards"][0]["file"] = "../../etc/passwd"
    write(tmp_path, document, 1)

    (error,) = restored(tmp_path, 1)

    assert isinstance(error, CheckpointDamaged)
    assert "it names the file '../../etc/passwd', outside of its folder" in str(error)
    assert "outside of its folder" in Folder(tmp_path).problems(1)[0]


def places(document, path=()):
    """Every path of a value in it."""
    yield path
    pairs = enumerate(document) if isinstance(document, list) else ()
    for key, value in document.items() if isinstance(document, dict) else pairs:
        yield from places(value, (*path, key))


def test_no_change_of_a_manifest_leads_to_an_error_of_python(tmp_path):
    saved(tmp_path, size=1)
    whole = read(tmp_path)
    chance = random.Random(7)
    paths = [path for path in places(whole) if path and path[0] != "sha256"]
    values = [None, -1, 1 << 62, 1.5, "", "x", "../x", [], {}, [[]], {"$": "tensor"}, {"$": "dict", "items": [[[], 1]]}]

    for _ in range(400):
        document = copy.deepcopy(whole)
        *above, key = chance.choice(paths)
        at = document
        for step in above:
            at = at[step]
        at[key] = chance.choice(values)
        write(tmp_path, document)
        (found,) = restored(tmp_path, 1)
        assert not isinstance(found, BaseException) or isinstance(found, rabit.RabitError), (above, key, at[key])
        Folder(tmp_path).problems(2)


def test_folders_of_other_names_are_not_generations(tmp_path):
    saved(tmp_path, size=1)
    (tmp_path / "generation-000000000009").mkdir()
    (tmp_path / "generation-٠٠٠٠٠٠٠٩").mkdir()

    assert Folder(tmp_path).numbers() == [1, 2]


@pytest.mark.parametrize("shape", [[1.0, 8], [-1, -8]])
def test_a_header_whose_sizes_are_not_counts_is_damage(tmp_path, shape):
    saved(tmp_path, size=1)
    path = tmp_path / "generation-00000002" / "shard-00000-of-00001.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    head["w"]["shape"] = shape
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    document = read(tmp_path)
    document["shards"][0].update(
        bytes=path.stat().st_size, header_sha256=sha256_of(len(text).to_bytes(8, "little") + text)
    )
    write(tmp_path, document)

    (found,) = restored(tmp_path, 1)

    assert found.step == 1 and "cannot be used" in found.skipped[0]


def test_what_one_rank_cannot_take_ends_on_all_ranks(tmp_path):
    def save(peers):
        with Checkpoint(tmp_path, peers=peers, allow_pickle=True) as checkpoint:
            own = random.Random(3) if peers.rank == 1 else None
            checkpoint.save({"a": np.ones(3)}, step=1, local=own)

    assert run_threads(3, save) == [None] * 3

    first, second, third = restored(tmp_path, 3)

    assert isinstance(second, rabit.InvalidArgument) and "pickles" in str(second)
    for error in (first, third):
        assert isinstance(error, CheckpointFailed) and error.rank == 1
        assert "rank 1 could not restore generation 1: InvalidArgument" in str(error)


def test_a_rank_without_memory_ends_the_restore_of_all(tmp_path):
    class Full(rabit.checkpoint.NumpyAdapter):
        def value(self, stored):
            raise MemoryError("no room for a tensor")

    def body(peers):
        adapters = [Full()] if peers.rank == 0 else [rabit.checkpoint.NumpyAdapter()]
        return Checkpoint(tmp_path, peers=peers, adapters=adapters).restore()

    saved(tmp_path)

    first, second = run_threads(2, body)

    assert isinstance(first, MemoryError)
    assert isinstance(second, CheckpointFailed)
    assert "rank 0 could not restore generation 2: MemoryError: no room for a tensor" in str(second)
