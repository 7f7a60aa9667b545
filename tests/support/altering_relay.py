"""A wire between namespaces that alters bytes so that TCP does not notice.

    python altering_relay.py FOLDER RATE HEADER_SHARE SEED DEVICE=ADDRESS DEVICE=ADDRESS ...

Packets that a host sends into its TUN device go to the device of the host that they are for.  With probability RATE one
bit of a frame is flipped, of its header with probability HEADER_SHARE, of its payload otherwise, and the checksum of
the packet is made to fit.  Of a connection no second frame is altered until the first one was sent again, or a
connection was made in its place: so each is one that the ranks have to find.  It is done while there is a file `on` in
FOLDER; `altered` says how often it was, and the file `end` ends it.  Copies of frames that have passed are left alone:
a rank that has the frame drops them unread.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

# native/transport/tcp/frame.h and native/rendezvous/handshake.h
HEADER_BYTES, MAGIC = 64, b"RBTF"
DIALLER_STARTS_AT, ANSWER_STARTS_AT = 72 + 32, 88
NUMBERED = (2, 5)
TYPES = {1: "hello", 2: "data", 3: "ack", 4: "nack", 5: "goodbye", 6: "leave"}
PACKET_MAX = 65_535
SYN, FIN, RST, ACK = 2, 1, 4, 16


@dataclass
class Connection:
    """What is altered in it: (direction, sequence) of a frame that comes again; (): what breaks it; None: nothing."""

    awaits: tuple[object, ...] | None = None


@dataclass
class Direction:
    """One direction of a connection: where its frames begin, and which bits are flipped."""

    connection: Connection
    name: object
    next: int  # of the stream: the byte that was not seen yet
    left: int  # bytes until a header begins
    newest: int = -1  # sequence of the newest frame
    header: bytearray = field(default_factory=bytearray)
    flips: dict[int, int] = field(default_factory=dict)  # byte of the stream -> bits


class Altering:
    """Decides what is altered, and alters packets."""

    def __init__(self, rate: float, header_share: float, seed: int) -> None:
        self._dice = random.Random(seed)
        self._rate = rate
        self._header_share = header_share
        self._directions: dict[tuple[bytes, bytes], Direction] = {}
        self.is_on = False
        self.altered: Counter[str] = Counter()
        self.frames = 0

    def take(self, packet: bytearray) -> bool:
        """Alters an IPv4 packet in place.  False: it is not to be sent on now; TCP sends it again."""
        at = (packet[0] & 15) * 4
        if packet[9] != 6:
            return True
        flags = packet[at + 13]
        key = (bytes(packet[12:16] + packet[at : at + 2]), bytes(packet[16:20] + packet[at + 2 : at + 4]))
        sequence = int.from_bytes(packet[at + 4 : at + 8], "big")
        if flags & SYN:
            self._begin(key, sequence + 1, is_answer=bool(flags & ACK))
            return True
        direction = self._directions.get(key)
        payload_at = at + (packet[at + 12] >> 4) * 4
        size = len(packet) - payload_at
        if direction is None or size == 0:
            return True
        return self._take(direction, packet, at, payload_at, sequence)

    def _begin(self, key: tuple[bytes, bytes], first: int, is_answer: bool) -> None:
        other = self._directions.get(key[::-1])
        connection = other.connection if is_answer and other is not None else Connection()
        starts_at = ANSWER_STARTS_AT if is_answer else DIALLER_STARTS_AT
        self._directions[key] = Direction(connection, key, first & 0xFFFFFFFF, starts_at)

    def _take(self, direction: Direction, packet: bytearray, at: int, payload_at: int, sequence: int) -> bool:
        ahead = (sequence - direction.next) & 0xFFFFFFFF
        if 0 < ahead < 1 << 31:
            return False  # what lies before it is lost, and where frames begin not known
        is_new_from = payload_at + ((direction.next - sequence) & 0xFFFFFFFF)
        if is_new_from < len(packet):
            self._follow(direction, packet, is_new_from)
        for place in [*direction.flips]:
            offset = (place - sequence) & 0xFFFFFFFF
            if offset < len(packet) - payload_at:
                self._flip(packet, at, payload_at + offset, direction.flips[place])
        return True

    def _follow(self, direction: Direction, packet: bytearray, begin: int) -> None:
        end = len(packet)
        while begin < end:
            if direction.left > 0:
                step = min(direction.left, end - begin)
                direction.left -= step
            else:
                step = min(HEADER_BYTES - len(direction.header), end - begin)
                direction.header += packet[begin : begin + step]
                if len(direction.header) == HEADER_BYTES:
                    self._on_header(direction, direction.next + step, step)
                    direction.header.clear()
            begin += step
            direction.next = (direction.next + step) & 0xFFFFFFFF

    def _on_header(self, direction: Direction, behind: int, fresh: int) -> None:
        """behind: the byte after the header; fresh: of its last bytes, those that are not on their way yet."""
        magic, _, kind, _, _, sequence = struct.unpack_from("<4sBBBBQ", direction.header)
        assert magic == MAGIC, f"where a frame should begin there is {bytes(direction.header)!r}"
        payload = struct.unpack_from("<I", direction.header, 48)[0]
        direction.left = payload
        self.frames += 1
        is_copy = kind in NUMBERED and sequence <= direction.newest
        if kind in NUMBERED:
            direction.newest = max(direction.newest, sequence)
        waits = direction.connection.awaits
        if waits is not None:
            if waits == (direction.name, sequence) and kind in NUMBERED:
                direction.connection.awaits = None  # and this copy passes
            return
        if not self.is_on or is_copy or self._dice.random() >= self._rate:
            return
        is_header = self._dice.random() < self._header_share
        if payload == 0 and not is_header:
            return  # a connection on which no greeting gets through says rightly that its peer is lost
        if is_header:
            place, what = behind - 1 - self._dice.randrange(fresh), "header"
            direction.connection.awaits = ()
        else:
            place, what = behind + self._dice.randrange(payload), "payload"
            direction.connection.awaits = (direction.name, sequence)
        direction.flips = {place & 0xFFFFFFFF: 1 << self._dice.randrange(8)}
        self.altered[f"{what} of {TYPES[kind]}"] += 1

    @staticmethod
    def _flip(packet: bytearray, tcp_at: int, place: int, bits: int) -> None:
        begin = place - (place - tcp_at) % 2
        # The checksum counts a zero behind an odd end.
        before = int.from_bytes(packet[begin : begin + 2].ljust(2, b"\0"), "big")
        packet[place] ^= bits
        after = int.from_bytes(packet[begin : begin + 2].ljust(2, b"\0"), "big")
        # RFC 1624: of the sum only this word changes.
        total = 0xFFFF - int.from_bytes(packet[tcp_at + 16 : tcp_at + 18], "big") + 0xFFFF - before + after
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        packet[tcp_at + 16 : tcp_at + 18] = (0xFFFF - total).to_bytes(2, "big")


def open_tun(device: str) -> int:
    """A TUN device of this name, which is there as long as the descriptor is open."""
    tun_set_iff, tun, no_info = 0x400454CA, 0x0001, 0x1000
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, tun_set_iff, struct.pack("16sH22x", device.encode(), tun | no_info))
    return descriptor


class Wire:
    """The devices of the hosts, and what is done to packets between them."""

    def __init__(self, devices: list[str], altering: Altering) -> None:
        self._altering = altering
        self._by_address: dict[bytes, int] = {}
        for each in devices:
            device, address = each.split("=")
            self._by_address[bytes(map(int, address.split(".")))] = open_tun(device)

    def serve(self, limit_s: float) -> None:
        """Passes on what comes within this time."""
        until = time.monotonic() + limit_s
        while (left := until - time.monotonic()) > 0:
            for descriptor in select.select([*self._by_address.values()], [], [], left)[0]:
                self._pass_on(descriptor)

    def _pass_on(self, descriptor: int) -> None:
        while True:
            try:
                packet = bytearray(os.read(descriptor, PACKET_MAX))
            except BlockingIOError:
                return
            target = self._by_address.get(bytes(packet[16:20])) if packet[0] >> 4 == 4 else None
            if target is not None and self._altering.take(packet):
                os.write(target, packet)


def main() -> None:
    folder, rate, share, seed = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    altering = Altering(rate, share, seed)
    wire = Wire(sys.argv[5:], altering)
    (folder / "wired").touch()
    while not (folder / "end").exists():
        altering.is_on = (folder / "on").exists()
        wire.serve(0.1)
        (folder / "altered.new").write_text(json.dumps([altering.is_on, altering.frames, altering.altered]))
        (folder / "altered.new").rename(folder / "altered")


if __name__ == "__main__":
    main()
