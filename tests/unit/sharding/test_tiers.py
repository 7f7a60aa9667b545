"""Files of state: what is written is read, failures leave the values before, folders of others are refused."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest

import rabit
from rabit.sharding import DiskTier


def filled(tier, count, value):
    values = tier.buffer(count)
    values[:] = value
    return values


def read(tier, key, count):
    values = tier.buffer(count)
    tier.read(key, values).result()
    return values[:count]


@pytest.fixture(params=["past the page cache", "through it"])
def is_direct(request, monkeypatch):
    if request.param == "through it":
        monkeypatch.setattr("rabit.sharding.tiers._skips_page_cache", lambda folder: False)
    return request.param != "through it"


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 4096, 2**20 + 1])
def test_what_is_written_is_read(tmp_path, size, is_direct):
    tier = DiskTier(tmp_path / "rank0", "job")
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    for generation in range(3):
        buffer = tier.buffer(size)
        buffer[:size] = values + np.uint8(generation)
        written = tier.write("key", buffer)
        found = read(tier, "key", size)  # after the write that is under way
        written.result()
        assert (found == values + np.uint8(generation)).all()
    assert tier.size("key") == -(-size // 4096) * 4096
    tier.close()
    assert not (tmp_path / "rank0").exists()


def test_a_file_system_without_it_is_found(tmp_path, monkeypatch):
    assert DiskTier(tmp_path / "rank0", "job").is_direct in (True, False)

    def refuses(path, flags, mode=0o777):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, mode)

    opened = os.open
    monkeypatch.setattr(os, "open", refuses)
    tier = DiskTier(tmp_path / "rank1", "job")
    assert not tier.is_direct
    tier.write("key", filled(tier, 100, 7)).result()
    assert (read(tier, "key", 100) == 7).all()


def address_of(values):
    return values.__array_interface__["data"][0]


def test_memory_is_used_again_when_nothing_refers_to_it(tmp_path):
    tier = DiskTier(tmp_path / "rank0", "job")
    first = tier.buffer(5000)
    address, other = address_of(first), address_of(tier.buffer(5000))
    del first

    assert address % 4096 == 0
    assert other != address
    assert {address_of(values) for values in (tier.buffer(5000), tier.buffer(5000))} == {address, other}


def test_a_write_that_fails_leaves_the_values_before(tmp_path):
    tier = DiskTier(tmp_path / "rank0", "job")
    tier.write("key", filled(tier, 100, 1)).result()
    tier.path("key", 0).mkdir()  # in the way of the next file

    with pytest.raises(OSError, match="directory"):
        tier.write("key", filled(tier, 100, 0)).result()

    assert tier.path("key", 1).read_bytes()[:100] == bytes([1] * 100)
    tier.close()


def swapped(values):
    return values[4096:] + values[:4096]


@pytest.mark.parametrize(
    "change",
    [lambda values: bytes(len(values)), lambda values: values[:-1], lambda values: values[:-1] + b"\0", swapped],
    ids=["zeros", "length", "a byte", "sectors"],
)
def test_other_bytes_than_were_written_are_found(tmp_path, change):
    tier = DiskTier(tmp_path / "rank0", "job")
    values = filled(tier, 8192, 1)
    values[:4096] = 2
    tier.write("key", values).result()
    path = tier.path("key", 1)
    path.write_bytes(change(path.read_bytes()))

    with pytest.raises(rabit.IntegrityError, match="differs from what was written"):
        read(tier, "key", 8192)
    tier.close()


def test_the_budget_counts_both_files(tmp_path):
    tier = DiskTier(tmp_path / "rank0", "job", budget=20_000)
    tier.write("first", filled(tier, 4000, 0)).result()
    with pytest.raises(rabit.ResourceExhausted, match=r"needs 16,384 bytes more in .* 8,192 of 20,000 are taken"):
        tier.write("second", filled(tier, 5000, 0))
    tier.write("second", filled(tier, 100, 0)).result()
    tier.close()


def test_the_folder_of_another_job_is_refused(tmp_path):
    first = DiskTier(tmp_path / "rank0", "3f2a")
    with pytest.raises(rabit.InvalidArgument, match=r"belongs to job 3f2a .* and this is job 77b0"):
        DiskTier(tmp_path / "rank0", "77b0")
    assert json.loads((tmp_path / "rank0" / "owner.json").read_text())["job"] == "3f2a"
    first.close()
    (tmp_path / "rank1").mkdir()
    with pytest.raises(rabit.InvalidArgument, match=r"was not made for values on disk"):
        DiskTier(tmp_path / "rank1", "77b0")
