"""The seeds of the fuzz targets: the frozen messages of the tests, as files."""

from __future__ import annotations

import re
import struct
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1]


def frozen(pattern: str) -> list[bytes]:
    """The messages of files of hexadecimal lines, of whichever version; words before the digits are labels."""
    lines = "\n".join(path.read_text() for path in sorted(NATIVE.glob(pattern)))
    return [bytes.fromhex(digits) for digits in re.findall(r"\b(?:[0-9a-f]{2}){4,}\b", lines)]


def text(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def store_frames() -> list[bytes]:
    """Requests of every operation and responses; a byte in front says which of the two it is."""
    key, value = text(b"1/address/0"), text(b"127.0.0.1:4000")
    version, wait_ms = struct.pack("<Q", 3), struct.pack("<I", 500)
    arguments = {1: value, 2: version + wait_ms, 3: version + value, 4: value}
    requests = [struct.pack("<BB", 2, each) + key + rest for each, rest in arguments.items()]
    found = struct.pack("<BBBQ", 2, 0, 1, 3) + value
    refused = struct.pack("<BBBQ", 2, 5, 0, 0) + text(b"not set before the deadline")
    return [b"\0" + each for each in requests] + [b"\1" + found, b"\1" + refused]


def settings() -> list[bytes]:
    options = [
        "rank=1\nsize=4\nstore=127.0.0.1:4000\nsecret=" + "0" * 64 + "\ntransport=tcp\n",
        "partition_bytes=4194304\nfusion_bytes=0\nscheduler=fifo\ndeterministic=true\n",
        "allreduce_algorithm=ring:1M,tree\nlink_model=fixed\nlanes=2\nlanes_max=4\n",
        "stall_warning_ms=10000\nlog_level=debug\nbackend=builtin\nspin_us=-1\n",
    ]
    return [each.encode() for each in options]


def coded_chunks() -> list[bytes]:
    """Encodings of zeros, of each codec that servers add up: 70 elements in blocks of 64."""
    # A block of minmax8 is its least and its largest value and a byte for each element.
    specs = {
        b"minmax8:block=64": 2 * 8 + 70,
        b"fp8:block=64": 2 * 4 + 70,
        b"levels:bits=4,block=64,levels=uniform,norm=max,phases=2": 2 * 4 + 35,
        b"natural": 70 + 9,
    }
    run = struct.pack("<QQI", 5, 0, 70)
    return [text(spec) + struct.pack("<I", 1) + run + bytes(room) for spec, room in specs.items()]


def write(folder: Path) -> None:
    """Writes folder/fuzz_control/seed0 and so on, one file a message."""
    seeds = {
        "fuzz_control": frozen("control/testdata/messages_v*.txt"),
        "fuzz_frame": frozen("transport/tcp/testdata/frame_v*.txt"),
        "fuzz_handshake": frozen("rendezvous/testdata/handshake_v*.txt"),
        "fuzz_store": store_frames(),
        "fuzz_settings": settings(),
        "fuzz_encodings": coded_chunks(),
        "fuzz_pushes": frozen("backend/ps/testdata/pushes_v*.txt"),
    }
    for target, messages in seeds.items():
        if not messages:
            raise ValueError(f"no seeds for {target}: its testdata has another form than expected")
        (folder / target).mkdir(parents=True, exist_ok=True)
        for number, message in enumerate(messages):
            (folder / target / f"seed{number}").write_bytes(message)
