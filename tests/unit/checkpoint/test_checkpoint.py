"""Saving and restoring, on ranks that are threads and files that are real."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest
from support.thread_peers import run_threads

import rabit
from rabit.checkpoint import Checkpoint, CheckpointDamaged, CheckpointFailed, Part
from rabit.checkpoint.leaves import Leaf, NumpyAdapter
from rabit.checkpoint.manifest import Manifest, sha256_of


def make_state(step: int) -> dict:
    chance = np.random.default_rng(step)
    return {
        "weights": {"a": chance.normal(size=(300, 7)).astype(np.float32), "b": chance.normal(size=5)},
        "big": chance.integers(0, 1 << 60, 400_000),
        "empty": np.zeros((0, 4), np.float16),
        "scalar": np.float32(step + 0.25),
        "zero_dimensions": np.array(step),
        "optimizer": {"state": {0: {"step": step}, 1: {"step": step}}, "lr": 0.1},
        "odd": (1, [None, True, "text"], float("inf"), b"\0bytes", Counter({3: 2}), {"$": 1}),
    }


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    elif isinstance(one, (np.ndarray, np.generic)):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    else:
        assert one == other


def saved(folder, size, steps=(1,), keep=3, local=None):
    def body(peers):
        with Checkpoint(folder, keep, peers=peers) as checkpoint:
            for step in steps:
                own = {"rank": peers.rank, "rng": np.full(9, peers.rank)} if local is None else local
                checkpoint.save(make_state(step), step=step, local=own)

    assert run_threads(size, body) == [None] * size


def restored(folder, size):
    return run_threads(size, lambda peers: Checkpoint(folder, peers=peers).restore())


@pytest.mark.parametrize("now", [1, 2, 3, 5])
@pytest.mark.parametrize("before", [1, 2, 4])
def test_any_number_of_ranks_gets_what_another_number_saved(tmp_path, before, now):
    saved(tmp_path, before, steps=(7,))

    found = restored(tmp_path, now)

    for rank, each in enumerate(found):
        assert (each.step, each.size, each.skipped) == (7, before, ())
        assert_equal(each.state, make_state(7))
        if rank < before:
            assert_equal(each.local, {"rank": rank, "rng": np.full(9, rank)})
        else:
            assert each.local is None
        assert each.local_of(before - 1)["rank"] == before - 1


def test_nothing_is_found_where_nothing_was_saved(tmp_path):
    assert restored(tmp_path / "none", 2) == [None, None]


def test_ranks_write_about_the_same(tmp_path):
    saved(tmp_path, 4)

    sizes = [each.stat().st_size for each in tmp_path.glob("generation-*/shard-*")]

    assert len(sizes) == 4
    assert max(sizes) - min(sizes) < 2 * (64 << 10) + 4096
    assert sum(sizes) < 1.02 * (400_000 * 8 + 300 * 7 * 4) + 4 * 4096


def test_only_the_newest_stay(tmp_path):
    saved(tmp_path, 2, steps=(1, 2, 3, 4, 5), keep=2)

    assert sorted(path.name for path in tmp_path.glob("generation-*")) == [
        "generation-00000004",
        "generation-00000005",
    ]
    assert [each.step for each in restored(tmp_path, 2)] == [5, 5]


def test_a_snapshot_does_not_change_with_the_arrays(tmp_path):
    def body(peers):
        array = np.arange(1000.0)
        with Checkpoint(tmp_path, peers=peers) as checkpoint:
            checkpoint.save({"x": array}, step=0)
            array += 1
        return checkpoint.restore().state["x"]

    for found in run_threads(2, body):
        assert_equal(found, np.arange(1000.0))


@pytest.mark.parametrize("now", [1, 2, 4])
def test_divided_tensors_are_divided_anew(tmp_path, now):
    whole = np.arange(70, dtype=np.float32).reshape(10, 7)

    def save(peers):
        first, last = [(0, 3), (3, 4), (4, 10)][peers.rank]
        with Checkpoint(tmp_path, peers=peers) as checkpoint:
            checkpoint.save({"moments": Part(whole[first:last], first, 10)}, step=3)

    assert run_threads(3, save) == [None] * 3
    found = [each.state["moments"] for each in restored(tmp_path, now)]

    assert [each.length for each in found] == [10] * now
    assert_equal(np.concatenate([each.value for each in found]), whole)
    ends = np.cumsum([len(each.value) for each in found]).tolist()
    assert [each.start for each in found] == [0, *ends[:-1]]


def test_parts_with_a_gap_are_refused_on_all_ranks(tmp_path):
    def save(peers):
        with Checkpoint(tmp_path, peers=peers) as checkpoint:
            checkpoint.save({"m": Part(np.ones(2), 3 * peers.rank, 5)}, step=3)

    for error in run_threads(2, save):
        assert isinstance(error, rabit.InvalidArgument)
        assert "the Part of rank 1 begins at element 3, and those before it end at 2" in str(error)


def test_ranks_that_save_different_values_are_told_where(tmp_path):
    def save(peers):
        with Checkpoint(tmp_path, peers=peers) as checkpoint:
            checkpoint.save({"x": np.ones(3), "loss": [0.5, float(peers.rank)]}, step=1)

    for error in run_threads(3, save):
        assert isinstance(error, rabit.Mismatch) and error.rank == 1
        assert "'/state/loss/1' is 0.0 and 1.0" in str(error)


def test_ranks_that_save_different_shapes_are_told_where(tmp_path):
    def save(peers):
        with Checkpoint(tmp_path, peers=peers) as checkpoint:
            checkpoint.save({"x": np.ones(3 + peers.rank // 2)}, step=1)

    for error in run_threads(3, save):
        assert isinstance(error, rabit.Mismatch) and error.rank == 2
        assert "'/tensors/x/1/0' is 3 and 4" in str(error)


def test_an_object_is_refused_with_its_path(tmp_path):
    def save(peers):
        Checkpoint(tmp_path, peers=peers).save({"a": [{"b": object()}]}, step=1)

    (error,) = run_threads(1, save)

    assert isinstance(error, rabit.InvalidArgument)
    assert "an object of builtins.object at 'a/0/b'" in str(error)
    assert "allow_pickle=True" in str(error)


class Adapter(NumpyAdapter):
    """Of arrays, and of `...`, a tensor that cannot be copied."""

    def leaf(self, value, path):
        return Leaf("F32", (3,), self.name, self.read) if value is ... else super().leaf(value, path)

    def read(self, *_):
        raise MemoryError("no room for a copy")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"state": {"a": object()}}, "InvalidArgument: the state has an object of builtins.object"),
        ({"step": -1}, "InvalidArgument: checkpoint: step is -1"),
        ({"local": [object()]}, "InvalidArgument: the state has an object"),
        ({"local": {"x": ...}}, "MemoryError: no room for a copy"),
    ],
)
def test_a_rank_that_cannot_save_is_named_to_all_and_the_next_save_is_right(tmp_path, bad, text):
    def body(peers):
        checkpoint = Checkpoint(tmp_path, peers=peers, adapters=[Adapter()])
        good = {"state": {"a": np.ones(1000)}, "step": 1}
        heard = []
        try:
            checkpoint.save(**{**good, **(bad if peers.rank == 1 else {})})
        except Exception as error:
            heard.append(type(error).__name__)
        with pytest.raises(CheckpointFailed, match=f"rank 1 did not save: {text}") as raised:
            checkpoint.save(**good)
        assert raised.value.rank == 1
        checkpoint.save(**good)
        checkpoint.close()
        return heard, checkpoint.restore().generation

    (none, one), (some, other), (empty, third) = run_threads(3, body)

    assert (none, empty) == ([], []) and some == [text.partition(":")[0]]
    assert one == other == third == 1


def test_a_rank_that_fails_before_it_writes_ends_the_save_of_all(tmp_path, monkeypatch):
    def full(data):
        if bytes(data) == np.full(3, 77, np.int64).tobytes():
            raise MemoryError("no room for a checksum")
        return sha256_of(data)

    def body(peers):
        checkpoint = Checkpoint(tmp_path, peers=peers)
        checkpoint.save({"a": np.ones(3)}, step=1, local=np.full(3, 77 if peers.rank else 1))
        with pytest.raises(CheckpointFailed, match=r"rank 1 could not write: .*no room for a checksum"):
            checkpoint.close()
        checkpoint.save({"a": np.ones(3)}, step=2)
        return checkpoint.wait()

    monkeypatch.setattr("rabit.checkpoint.commit.sha256_of", full)

    one, other = run_threads(2, body)

    assert one == other
    assert isinstance(one, int)


def test_what_no_rank_can_save_is_raised_once(tmp_path):
    def body(peers):
        checkpoint = Checkpoint(tmp_path, peers=peers)
        with pytest.raises(rabit.InvalidArgument):
            checkpoint.save({"a": object()}, step=1)
        checkpoint.save({"a": 1}, step=1)
        checkpoint.close()

    assert run_threads(2, body) == [None] * 2


def test_a_tensor_of_torch_is_refused_with_the_class_that_takes_it(tmp_path):
    torch = pytest.importorskip("torch")

    def save(peers):
        class Own(torch.Tensor):
            """Tensors of other packages, and parameters that an optimizer watches."""

        own = torch.ones(1).as_subclass(Own)
        weights = {"a": torch.ones(1), "b": torch.nn.Parameter(torch.ones(1)), "c": own}
        for key, value in weights.items():
            with pytest.raises(rabit.InvalidArgument, match=f"at '{key}'.*rabit_torch.Checkpoint"):
                Checkpoint(tmp_path, peers=peers).save({key: value}, step=1)

    assert run_threads(1, save) == [None]


def test_pickles_are_loaded_only_where_both_sides_allow_them(tmp_path):
    def save(peers):
        with Checkpoint(tmp_path, allow_pickle=True, peers=peers) as checkpoint:
            checkpoint.save({"random": random.Random(3)}, step=1)

    def load(peers):
        return Checkpoint(tmp_path, allow_pickle=True, peers=peers).restore()

    assert run_threads(1, save) == [None]
    (refused,) = restored(tmp_path, 1)
    (found,) = run_threads(1, load)

    assert isinstance(refused, rabit.InvalidArgument) and "pickles" in str(refused)
    assert found.state["random"].random() == random.Random(3).random()


def test_two_tensors_of_one_path_stay_apart(tmp_path):
    state = {"a/b": np.ones(2), "a": {"b": np.zeros(2)}, "local": {"x": np.full(2, 5)}}

    def save(peers):
        with Checkpoint(tmp_path, peers=peers) as checkpoint:
            checkpoint.save(state, step=1, local={"x": np.full(2, 7), "part": Part(np.ones(2), 1, 4)})

    assert run_threads(1, save) == [None]
    (found,) = restored(tmp_path, 1)

    assert_equal(found.state, state)
    assert_equal(found.local["x"], np.full(2, 7))
    assert_equal(found.local["part"].value, np.ones(2))


def test_a_generation_that_was_not_finished_does_not_count(tmp_path, capsys):
    saved(tmp_path, 2, steps=(1, 2))
    (tmp_path / "generation-00000002" / "manifest.json").unlink()

    found = restored(tmp_path, 2)

    assert [each.step for each in found] == [1, 1]
    assert found[1].skipped == ("generation 2 was not finished",)
    assert capsys.readouterr().err == "rabit: checkpoint: generation 2 was not finished\n"


def test_a_damaged_generation_is_named_and_the_one_before_taken(tmp_path, capsys):
    saved(tmp_path, 2, steps=(1, 2))
    path = tmp_path / "generation-00000002" / "shard-00001-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    found = restored(tmp_path, 2)

    assert [each.step for each in found] == [1, 1]
    assert f"generation 2 is left out, as rank 1 found: {path} is damaged" in capsys.readouterr().err


def test_no_whole_generation_is_an_error(tmp_path):
    saved(tmp_path, 2)
    next(tmp_path.glob("generation-*/shard-*")).unlink()

    for error in restored(tmp_path, 2):
        assert isinstance(error, CheckpointDamaged)
        assert "no generation" in str(error) and "it is missing" in str(error)


def test_the_manifest_is_json_that_others_can_read(tmp_path):
    saved(tmp_path, 2, steps=(9,))

    document = json.loads((tmp_path / "generation-00000001" / "manifest.json").read_text())

    assert (document["step"], document["size"], document["format"]) == (9, 2, 1)
    assert document["tensors"]["weights/a"]["shape"] == [300, 7]
    assert document["state"]["optimizer"]["lr"] == 0.1


def test_the_manifest_comes_back_from_its_text(tmp_path):
    saved(tmp_path, 2, steps=(9,))
    text = (tmp_path / "generation-00000001" / "manifest.json").read_text()

    assert Manifest.from_text(text).to_text() == text


def test_files_are_those_of_the_safetensors_library(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    saved(tmp_path, 1, steps=(4,))

    found = library.load_file(next(tmp_path.glob("generation-*/shard-*")))

    assert_equal(found["weights/a"], make_state(4)["weights"]["a"])
    assert_equal(found["local/rng"], np.zeros(9, np.int64))


@pytest.mark.parametrize("arguments", [{"keep": 0}, {"every": 0}, {"on_error": "ignore"}])
def test_arguments_out_of_range_are_refused(tmp_path, arguments):
    ((name, value),) = arguments.items()

    (error,) = run_threads(1, lambda peers: Checkpoint(tmp_path, peers=peers, **arguments))

    assert isinstance(error, rabit.InvalidArgument) and f"Checkpoint({name}={value!r})" in str(error)


@pytest.mark.parametrize("step", [-1, 1.5, "3", True])
def test_a_step_that_cannot_be_is_refused(tmp_path, step):
    (error,) = run_threads(1, lambda peers: Checkpoint(tmp_path, peers=peers).save({}, step=step))

    assert isinstance(error, rabit.InvalidArgument) and f"step is {step!r}" in str(error)


def test_a_step_of_numpy_is_an_integer(tmp_path):
    def save(peers):
        with Checkpoint(tmp_path, peers=peers) as checkpoint:
            checkpoint.save({}, step=np.int64(3))
        return checkpoint.restore().step

    assert run_threads(1, save) == [3]


def test_what_would_be_lost_of_an_array_is_refused(tmp_path):
    masked = np.ma.masked_array([1, 2], [False, True])

    (error,) = run_threads(
        1, lambda peers: Checkpoint(tmp_path, peers=peers).save({"m": masked}, step=1)
    )

    assert isinstance(error, rabit.Unsupported) and "masked array at 'm'" in str(error)


def test_without_a_folder_the_error_says_where_one_comes_from():
    (error,) = run_threads(1, lambda peers: Checkpoint(peers=peers))

    assert isinstance(error, rabit.InvalidArgument) and "rabitrun --checkpoint DIR" in str(error)


def test_one_is_due_after_every_so_many_steps(tmp_path):
    (checkpoint,) = run_threads(1, lambda peers: Checkpoint(tmp_path, every=3, peers=peers))

    assert [step for step in range(10) if checkpoint.is_due(step)] == [3, 6, 9]
