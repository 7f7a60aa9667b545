"""Files of state: what is written is read, failures leave the values before, folders of others are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rabit
from rabit.sharding import DiskTier


def read(tier, key, sizes):
    arrays = [np.empty(size, np.uint8) for size in sizes]
    tier.read(key, arrays).result()
    return arrays


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 2**20 + 1])
def test_what_is_written_is_read(tmp_path, size):
    tier = DiskTier(tmp_path / "rank0", "job")
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    for generation in range(3):
        written = tier.write("key", [values + np.uint8(generation), values[:1]])
        found = read(tier, "key", [size, 1])  # after the write that is under way
        written.result()
        assert (found[0] == values + np.uint8(generation)).all()
        assert found[1] == values[:1]
    assert tier.sizes("key") == [size, 1]
    tier.close()
    assert not (tmp_path / "rank0").exists()


def test_a_write_that_fails_leaves_the_values_before(tmp_path):
    tier = DiskTier(tmp_path / "rank0", "job")
    tier.write("key", [np.ones(100, np.uint8)]).result()
    tier.path("key", 0).mkdir()  # in the way of the next file

    with pytest.raises(OSError, match="directory"):
        tier.write("key", [np.zeros(100, np.uint8)]).result()

    assert tier.path("key", 1).read_bytes() == bytes([1] * 100)
    tier.close()


@pytest.mark.parametrize("change", ["bytes", "length"])
def test_other_bytes_than_were_written_are_found(tmp_path, change):
    tier = DiskTier(tmp_path / "rank0", "job")
    tier.write("key", [np.ones(100, np.uint8)]).result()
    path = tier.path("key", 1)
    path.write_bytes(bytes(100) if change == "bytes" else bytes([1] * 60))

    with pytest.raises(rabit.IntegrityError, match="other bytes than were written"):
        read(tier, "key", [100])
    tier.close()


def test_the_budget_counts_both_files(tmp_path):
    tier = DiskTier(tmp_path / "rank0", "job", budget=1000)
    tier.write("first", [np.zeros(400, np.uint8)]).result()
    with pytest.raises(rabit.ResourceExhausted, match=r"needs 202 bytes more in .* 800 of 1,000 are taken"):
        tier.write("second", [np.zeros(101, np.uint8)])
    tier.write("second", [np.zeros(100, np.uint8)]).result()
    tier.close()


def test_the_folder_of_another_job_is_refused(tmp_path):
    first = DiskTier(tmp_path / "rank0", "3f2a")
    with pytest.raises(rabit.InvalidArgument, match=r"belongs to job 3f2a .* and this is job 77b0"):
        DiskTier(tmp_path / "rank0", "77b0")
    assert json.loads((tmp_path / "rank0" / "owner.json").read_text())["job"] == "3f2a"
    first.close()
    (tmp_path / "rank1").mkdir()
    with pytest.raises(rabit.InvalidArgument, match=r"was not made for state on disk"):
        DiskTier(tmp_path / "rank1", "77b0")
