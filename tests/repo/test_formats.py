"""The pages about the ABI and the wire formats name what the source has, with its values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
REFERENCE = ROOT / "docs" / "reference"
HEADER = (NATIVE / "include" / "rabit_abi.h").read_text()

ENUMS = {
    "ControlType": "control/agreement_wire.h",
    "FrameType": "transport/tcp/frame.h",
    "StoreOp": "rendezvous/store_wire.h",
    "SlotKind": "transport/shm/inbox.h",
}
VERSIONS = {
    "kHandshakeVersion": "rendezvous/handshake.h",
    "kStoreWireVersion": "rendezvous/store_wire.h",
    "kFrameVersion": "transport/tcp/frame.h",
    "kVersion": "transport/shm/handshake.cc",
    "kControlVersion": "control/agreement_wire.h",
    "kPsWireVersion": "backend/ps/ps_wire.h",
}


def members_in_source(name: str) -> dict[str, int]:
    text = (NATIVE / ENUMS[name]).read_text()
    body = re.search(rf"enum class {name} : \w+ \{{(.*?)\}}", text, re.S)
    assert body, f"{ENUMS[name]} has no {name}"
    return {key: int(value) for key, value in re.findall(r"\b(k\w+) = (\d+)", body[1])}


def members_on_page(name: str) -> dict[str, int]:
    page = (REFERENCE / "wire_formats.md").read_text()
    table = page.partition(f"| `{name}` |")[2].partition("\n\n")[0]
    return {key: int(value) for key, value in re.findall(r"^\| `(k\w+)` \| (\d+) \|", table, re.M)}


@pytest.mark.parametrize("name", ENUMS)
def test_every_kind_of_message_is_on_the_page(name):
    assert len(members_in_source(name)) >= 3
    assert members_on_page(name) == members_in_source(name)


@pytest.mark.parametrize("name", VERSIONS)
def test_the_versions_are_those_of_the_source(name):
    page = (REFERENCE / "wire_formats.md").read_text()
    source = (NATIVE / VERSIONS[name]).read_text()
    version = re.search(rf"\b{name} = (\d+);", source)

    assert version and f"`{name}` {version[1]} |" in page


def test_every_version_in_the_source_is_on_the_page():
    found = set()
    for path in {*NATIVE.rglob("*.h")} - {*NATIVE.glob("python/*")}:  # That is DLPack's.
        found |= set(re.findall(r"constexpr uint\w+ (k\w*Version) =", path.read_text()))

    assert found == set(VERSIONS) - {"kVersion"}


def test_every_exported_function_is_on_the_page_of_the_abi():
    declared = set(re.findall(r"RABIT_API [\w* ]+?\b(rabit_\w+)\(", HEADER))
    page = (REFERENCE / "abi.md").read_text()
    rows = page.partition("| function |")[2].partition("\n\n")[0]
    documented = set(re.findall(r"`(rabit_\w+)`", rows))

    assert len(declared) > 20
    assert documented == declared


def test_every_constant_is_on_the_page_of_the_abi():
    page = (REFERENCE / "abi.md").read_text()
    for name, body in re.findall(r"typedef enum (\w+) \{(.*?)\}", HEADER, re.S):
        row = re.search(rf"^\| `{name}` \| (.*) \|$", page, re.M)
        members = re.findall(r"\b(RABIT_\w+) =", body)

        assert row, f"{name} has no row"
        assert re.findall(r"RABIT_\w+", row[1]) == members
