"""Route tables that somebody else has written: rank 0 reads alone, so that whatever they say is refused in words."""

from __future__ import annotations

import json

import pytest

from rabit import Config, InvalidArgument
from rabit.tuning.route_table import digest, read_table, seal, topology_of

CONFIG = Config(rank=0, size=2, store_address="127.0.0.1:1")
CONTENTS = {"rules": "allreduce:*:builtin/ring", "tunables": {"partition_bytes": 1 << 20, "lanes": 2}}


def written(path, topology=None, **changes):
    document = seal(topology_of(CONFIG), {**CONTENTS, **changes})
    if topology is not None:
        document = {key: value for key, value in document.items() if key != "hash"}
        document["topology"] = topology
        document["hash"] = digest(document)
    path.write_text(json.dumps(document))
    return path


def test_what_was_written_comes_back(tmp_path):
    assert read_table(written(tmp_path / "table"), CONFIG) == (CONTENTS["rules"], CONTENTS["tunables"])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"topology": []}, "do not fit together"),
        ({"topology": "here"}, "do not fit together"),
        ({"rules": None}, "its rules are not text"),
        ({"tunables": ["lanes"]}, "do not fit together"),
        ({"tunables": {"lanes": "many"}}, "its tunable 'lanes' is 'many'"),
        ({"tunables": {"lanes": 0}}, "its tunable 'lanes' is 0"),
        ({"tunables": {"partition_bytes": 1 << 60}}, "its tunable 'partition_bytes' is"),
        ({"tunables": {"overlap": "backward"}}, "its tunable 'overlap'"),
        ({"tunables": {"timeout": 1}}, "its tunable 'timeout' is 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path, changes, text):
    with pytest.raises(InvalidArgument, match="cannot be used") as refused:
        read_table(written(tmp_path / "table", **changes), CONFIG)

    assert text in str(refused.value)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff", b"{}", b"[]", b'{"version": 1' + b"1" * 5000 + b"}"])
def test_what_is_no_table_is_refused(tmp_path, text):
    path = tmp_path / "table"
    path.write_bytes(text)

    with pytest.raises(InvalidArgument, match="cannot be used"):
        read_table(path, CONFIG)


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_table(tmp_path / ("x" * 5000), CONFIG)
