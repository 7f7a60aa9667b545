"""What the kernel knows of the TCP links of processes: asked once for all sockets of this network (man 7 sock_diag)."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Link", "links_of"]

# One link: "local" and "peer" addresses, and numbers of struct tcp_info (linux/tcp.h).
Link = dict[str, "int | str"]
_SOCK_DIAG = 4
_BY_FAMILY, _DONE, _ERROR = 20, 3, 2
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ESTABLISHED = 1 << 1
_INFO = 2
_HEADER = struct.Struct("<IHHII")
_REQUEST = struct.Struct("<BBBBI48x")
_MESSAGE = struct.Struct("<BBBBHH16s16s12xIIIII")
# Names, and where they are in struct tcp_info; times there are microseconds or, of the last packets, milliseconds.
_BYTES = {"retries": 2, "backoff": 4}
_WORDS = {
    "unacked": 24, "last_sent_ms": 44, "last_ack_ms": 56, "last_received_ms": 52, "rtt_us": 68, "retransmitted": 100,
    "segments": 136, "min_rtt_us": 148,
}  # fmt: skip
_LONGS = {"acked_bytes": 120, "received_bytes": 128, "delivery_rate": 160, "busy_us": 168}


def links_of(pids: Iterable[int]) -> dict[int, list[Link]]:
    """By process its established TCP connections to other hosts; {} where the kernel does not say."""
    owners: dict[int, int] = {}
    for pid in pids:
        for inode in _sockets(pid):
            owners[inode] = pid
    found: dict[int, list[Link]] = {}
    if not owners:
        return found
    with contextlib.suppress(OSError):
        for family in (socket.AF_INET, socket.AF_INET6):
            for inode, link in _dump(family):
                if inode in owners and link["local"] != link["peer"]:
                    found.setdefault(owners[inode], []).append(link)
    return found


def _sockets(pid: int) -> list[int]:
    inodes = []
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = str(descriptor.readlink())
                if name.startswith("socket:["):
                    inodes.append(int(name[8:-1]))
    return inodes


def _dump(family: int) -> list[tuple[int, Link]]:
    """Sockets by their inode."""
    found: list[tuple[int, Link]] = []
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG
    ) as link:
        link.settimeout(1.0)
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED)
        link.sendall(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body)
        while True:
            data = link.recv(1 << 16)
            at = 0
            while at + _HEADER.size <= len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind in (_DONE, _ERROR):
                    return found
                found.append(_socket(data[at + _HEADER.size : at + length]))
                at += (length + 3) & ~3


def _socket(message: bytes) -> tuple[int, Link]:
    family, _, _, _, local_port, peer_port, local, peer, _, _, _, _, inode = _MESSAGE.unpack_from(
        message
    )
    size = 4 if family == socket.AF_INET else 16
    link: Link = {
        "local": socket.inet_ntop(family, local[:size]),
        "peer": socket.inet_ntop(family, peer[:size]),
        "local_port": socket.ntohs(local_port),
        "peer_port": socket.ntohs(peer_port),
    }
    at = _MESSAGE.size
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("<HH", message, at)
        if kind == _INFO:
            info = message[at + 4 : at + length]
            link.update({name: info[place] for name, place in _BYTES.items()})
            link.update(_numbers(info, _WORDS, "<I"))
            link.update(_numbers(info, _LONGS, "<Q"))
        at += max(4, (length + 3) & ~3)
    return inode, link


def _numbers(info: bytes, places: dict[str, int], kind: str) -> dict[str, int]:
    """An older kernel's structure is shorter: what is missing is left out."""
    size = struct.calcsize(kind)
    return {
        name: struct.unpack_from(kind, info, place)[0]
        for name, place in places.items()
        if place + size <= len(info)
    }
