"""A file system whose answers take their time: python slow_files.py FOLDER SECONDS OPERATION (read, fsync).

It has one file, "data", of 1 GiB.  A read or an fsync takes SECONDS; inf: it is never answered.  Its end, by any
signal, ends every call that waits for it with an error.  Speaks the kernel's FUSE protocol 7.31; needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS = 1, 2, 3, 4, 14, 15, 16, 17
_RELEASE, _FSYNC, _FLUSH, _INIT, _OPENDIR, _RELEASEDIR, _ACCESS, _INTERRUPT = (
    18,
    20,
    25,
    26,
    27,
    29,
    34,
    36,
)
_FILE_BYTES = 1 << 30


def _attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o777 if node == 1 else stat.S_IFREG | 0o666
    size = 0 if node == 1 else _FILE_BYTES
    return _ATTR.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _answer(operation: int, node: int, body: bytes) -> bytes | int:
    """The rest of an answer, or the number of an error."""
    if operation == _INIT:
        major, _, ahead, _ = struct.unpack_from("<IIII", body)
        return struct.pack(
            "<IIIIHHIIHHI7I", major, 31, ahead, 0, 12, 9, 1 << 16, 1, 0, 0, 0, *[0] * 7
        )
    if operation == _LOOKUP:
        if body.rstrip(b"\0") != b"data":
            return errno.ENOENT
        return struct.pack("<4Q2I", 2, 0, 9, 9, 0, 0) + _attributes(2)
    if operation in (_GETATTR, _SETATTR):
        return struct.pack("<QII", 9, 0, 0) + _attributes(node)
    if operation in (_OPEN, _OPENDIR):
        return struct.pack("<QII", 7, 0, 0)
    if operation == _READ:
        return bytes(struct.unpack_from("<QQI", body)[2])
    if operation == _WRITE:
        return struct.pack("<II", struct.unpack_from("<QQI", body)[2], 0)
    if operation in (_RELEASE, _RELEASEDIR, _FSYNC, _FLUSH, _ACCESS):
        return b""
    if operation == _STATFS:
        return struct.pack("<5QIII", 1 << 20, 1 << 19, 1 << 19, 9, 9, 4096, 255, 4096) + bytes(28)
    return errno.ENOSYS


def main() -> None:
    folder, seconds, slow = (
        sys.argv[1],
        float(sys.argv[2]),
        {"read": _READ, "fsync": _FSYNC}[sys.argv[3]],
    )
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slow", folder.encode(), b"fuse.slow", 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    while True:
        try:
            request = os.read(device, 1 << 18)
        except InterruptedError:
            continue
        except OSError:
            return  # It is unmounted.
        _, operation, unique, node, *_ = _IN.unpack_from(request)
        if operation in (_FORGET, _INTERRUPT):
            continue
        if operation == slow:
            if seconds == float("inf"):
                continue
            time.sleep(seconds)
        found = _answer(operation, node, request[_IN.size :])
        error, body = (-found, b"") if isinstance(found, int) else (0, found)
        with contextlib.suppress(OSError):
            os.write(device, _OUT.pack(_OUT.size + len(body), error, unique) + body)


@contextlib.contextmanager
def slow_files(folder: Path, seconds: float, operation: str) -> Iterator[Path]:
    """Its file, while the block runs."""
    folder.mkdir()
    server = subprocess.Popen([sys.executable, __file__, str(folder), str(seconds), operation])
    try:
        deadline = time.monotonic() + 10
        while not os.path.ismount(folder):
            assert time.monotonic() < deadline and server.poll() is None, "FUSE does not mount"
            time.sleep(0.01)
        yield folder / "data"
    finally:
        server.kill()
        server.wait()
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


if __name__ == "__main__":
    main()
