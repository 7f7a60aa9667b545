"""Samples that are made once on a host; Bagua's tests of its cache, faults, forks and threads."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

import rabit.data.cache_file
from rabit import InvalidArgument, Unsupported
from rabit.data import CachedDataset, CacheLoader, CacheStatistics


class Squares:
    """102 samples; `made` are those that were made by this process."""

    def __init__(self):
        self.made = []

    def __len__(self):
        return 102

    def __getitem__(self, index):
        self.made.append(index)
        return np.full(3, index**2), {"label": index}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def test_each_sample_is_made_once_and_two_names_share_a_folder(folder):
    one, other = Squares(), Squares()
    cached = CachedDataset(one, folder, name="one")

    for _ in range(2):
        found = [cached[index] for index in range(len(cached))]

    assert one.made == list(range(102))
    assert all((array == i**2).all() and rest == {"label": i} for i, (array, rest) in enumerate(found))
    assert cached.cache.num_keys() == 102
    again = CachedDataset(other, folder, name="other")
    assert again[5][1] == {"label": 5} and other.made == [5]
    assert [again[index] for index in range(102)] and again.cache.num_keys() == 204
    assert cached.cache.statistics() == CacheStatistics(hits=102, misses=102)


def test_nothing_is_left_beside_the_file(folder):
    for name in ("one", "other"):
        CachedDataset(Squares(), folder, name=name)

    assert not list(folder.glob("*.new"))


def test_another_job_finds_what_was_written(folder):
    for _ in range(2):
        source = Squares()
        cached = CachedDataset(source, folder, name="one", writer_buffer_size=7)
        assert [cached[index][1]["label"] for index in range(30)] == list(range(30))
        del cached  # Which writes what was waiting.

    assert source.made == []


def test_keys_may_be_texts_and_do_not_mix_with_numbers(folder):
    cache = CacheLoader(folder, name="files")

    assert [cache.get(key, lambda key: (key,)) for key in ("a", "1", 1)] == [("a",), ("1",), (1,)]
    cache.flush()
    assert [cache.get(key, None) for key in ("a", "1", 1)] == [("a",), ("1",), (1,)]


def test_a_full_cache_keeps_what_it_has_and_makes_the_rest_each_time(folder):
    cache = CacheLoader(folder, name="large", capacity_bytes=4500, writer_buffer_size=1)
    made = []

    def load(key):
        made.append(key)
        return bytes(1000)

    for _ in range(2):
        for key in range(6):
            assert cache.get(key, load) == bytes(1000)

    assert made == [0, 1, 2, 3, 4, 5, 4, 5]
    assert cache.num_keys() == 4
    assert cache.statistics() == CacheStatistics(hits=4, misses=8, left_out=4)


def test_samples_of_other_processes_count_against_the_capacity(folder):
    first, second = (
        CacheLoader(folder, name="large", capacity_bytes=2500, writer_buffer_size=1) for _ in range(2)
    )
    first.get(0, lambda key: bytes(1000))
    first.get(1, lambda key: bytes(1000))
    second.get(2, lambda key: bytes(1000))

    assert second.statistics().left_out == 1
    assert second.get(1, None) == bytes(1000)


def test_what_two_have_made_is_kept_once(folder):
    first, second = (CacheLoader(folder, name="same", capacity_bytes=1100) for _ in range(2))
    for each in (first, second):
        each.get("x", lambda key: bytes(500))
    for each in (first, second):
        each.flush()
        each.get("y", lambda key: bytes(500))  # Fits if "x" counts once.
        each.flush()

    assert first.num_keys() == 2
    assert second.statistics().left_out == 0


def in_other_process(cached, first):
    assert [cached[0][1], cached[first][1]] == [{"label": 0}, {"label": first}]


def test_workers_share_what_they_make_and_write_it_when_they_end(folder):
    source = Squares()
    cached = CachedDataset(source, folder, name="shared")
    assert cached[0] and cached[1]  # There is a connection that a worker must not use.
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=in_other_process, args=(cached, 10 + i)) for i in range(2)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)

    assert [each.exitcode for each in workers] == [0, 0]
    cached.cache.flush()
    assert [cached[i][1]["label"] for i in (0, 1, 10, 11)] == [0, 1, 10, 11]
    assert source.made == [0, 1]
    assert cached.cache.num_keys() == 4


def test_threads_have_a_connection_each(folder):
    source = Squares()
    cached = CachedDataset(source, folder, name="threads", writer_buffer_size=1)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append([cached[i][1]["label"] for i in range(20)]))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)

    assert found == [list(range(20))] * 4
    assert cached.cache.num_keys() == 20


def test_a_thread_that_ends_writes_what_it_has_made_and_closes_its_connection(folder):
    cache = CacheLoader(folder, name="threads")
    for key in range(3):
        thread = threading.Thread(target=cache.get, args=(key, str))
        thread.start()
        thread.join(60)

    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert sum(str(folder) in each for each in opened) == 0
    assert cache.num_keys() == 3


def test_a_cache_goes_into_a_pickle_without_its_connection(folder):
    cache = CacheLoader(folder, name="pickled", writer_buffer_size=1)
    cache.get(1, lambda key: "sample")

    assert pickle.loads(pickle.dumps(cache)).get(1, None) == "sample"


def test_a_writer_that_holds_the_file_costs_samples_and_not_the_job(folder, monkeypatch):
    monkeypatch.setattr(rabit.data.cache_file, "WAIT_SECONDS", 0.01)
    cache = CacheLoader(folder, name="busy", writer_buffer_size=2)
    cache.get(1, str)
    other = sqlite3.connect(folder / "samples.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.warns(RuntimeWarning, match=r"locked\); 2 samples of 'busy' are made again"):
        assert cache.get(2, str) == "2"

    other.execute("ROLLBACK")
    other.close()
    assert cache.statistics().left_out == 2
    assert [cache.get(key, str) for key in (1, 2)] == ["1", "2"]
    assert cache.num_keys() == 2


def damage_sample(path):
    with sqlite3.connect(path) as file:
        file.execute("UPDATE samples SET data = x'00'")
    file.close()


def damage_file(path):
    path.write_bytes(b"no database at all, but as long as one may be" * 100)


def change_format(path):
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 9")
    file.close()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_sample, "sample 1 of 'some' has another check sum"),
        (damage_file, "file is not a database"),
        (change_format, "its format is 9, and 1 is known here"),
    ],
)
def test_damage_is_told(folder, damage, says):
    cache = CacheLoader(folder, name="some", writer_buffer_size=1)
    cache.get(1, str)
    del cache
    damage(folder / "samples.sqlite")

    with pytest.raises(InvalidArgument, match=rf"samples.sqlite cannot be used: {says}.* Delete it"):
        CacheLoader(folder, name="some").get(1, str)


def test_a_file_that_cannot_be_opened_is_told(folder):
    (folder / "samples.sqlite").mkdir(parents=True)

    with pytest.raises(InvalidArgument, match="cannot be read: unable to open database file") as told:
        CacheLoader(folder, name="squares")

    assert "name another folder" in str(told.value)


def test_a_folder_where_others_may_write_is_refused(folder):
    folder.mkdir()
    folder.chmod(0o775)

    with pytest.raises(InvalidArgument, match=r"with mode 775: others than user \d+ may write to it"):
        CacheLoader(folder, name="some")


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    with pytest.raises(InvalidArgument, match="others than user 12345 may write to it"):
        CacheLoader(folder, name="some")


def test_what_is_made_is_for_this_user_alone(folder):
    before = os.umask(0)
    try:
        cache = CacheLoader(folder, name="some", writer_buffer_size=1)
        cache.get(1, str)
    finally:
        os.umask(before)

    assert folder.stat().st_mode & 0o077 == 0
    assert {each.name for each in folder.iterdir()} >= {"samples.sqlite"}
    assert [each.stat().st_mode & 0o077 for each in folder.iterdir()] == [0] * len(list(folder.iterdir()))


def test_sizes_that_make_no_sense_are_refused(folder):
    with pytest.raises(InvalidArgument, match="capacity_bytes is 0 and writer_buffer_size 20"):
        CacheLoader(folder, name="some", capacity_bytes=0)


def test_a_python_without_sqlite_is_told_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sqlite3", None)

    with pytest.raises(Unsupported, match=r"no module sqlite3.*Install the package of your system"):
        CacheLoader(folder, name="some")
