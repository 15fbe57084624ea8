"""Messages as datagrams: cut into fragments that fit the network, sealed, and put together again.

A datagram, little-endian:

```
 0 magic b"TUTM"   4 version u8   5 kind u8   6 fragment u16   8 group u64   16 process (8 bytes)   24 number u64
32 fragments u16  34 zero u16    36 size u32   40 payload      then the seal
```

`group` is a hash of the group's name; `process` is the sender's run, as it introduced itself over the mesh: who has not done that
is not heard. `number` counts the sender's messages from 1 without a gap, so that a receiver knows what it lost. `size` is that of
the whole message, of which this is fragment 0 to `fragments` - 1; all but the last are of one length. The seal is CRC32C (4 bytes)
over all before it, or with a key 16 bytes of keyed BLAKE2b (RFC 7693), so that nobody else can speak for the sender; what is sealed
is not hidden.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from tutti.data.frames.frame import Buffer
from tutti_gateway.core import limits

MAGIC = b"TUTM"
VERSION = 1
BEACON, DATA = 1, 2
PROCESS_BYTES = 8
PROCESS_AT = slice(16, 16 + PROCESS_BYTES)
_HEADER = struct.Struct("<4sBBHQ8sQHHI")
_CRC = struct.Struct("<I")
_MAC_BYTES = 16
HEADER_BYTES = _HEADER.size
OVERHEAD_BYTES = HEADER_BYTES + _MAC_BYTES
_ROOM_MIN = limits.MULTICAST_DATAGRAM_BYTES_MIN - OVERHEAD_BYTES


def group_hash(group: str) -> int:
    """What tells datagrams of groups apart that share an address."""
    return int.from_bytes(hashlib.blake2b(group.encode(), digest_size=8, person=b"tutti.group").digest(), "little")


def seal_of(data: Buffer, key: bytes) -> bytes:
    """What stands behind a datagram's other bytes."""
    if key:
        return hashlib.blake2b(data, key=key, digest_size=_MAC_BYTES).digest()
    return _CRC.pack(google_crc32c.value(bytes(data)))


class Cutter:
    """Makes datagrams of one sender's messages."""

    def __init__(self, group: str, process: bytes, key: bytes, datagram_bytes: int) -> None:
        """`key` is empty where datagrams are only checked for damage; `datagram_bytes` is the most that one has."""
        self._group, self._process, self._key = group_hash(group), process, key
        self._room = datagram_bytes - OVERHEAD_BYTES
        self.number = 0

    def cut(self, kind: int, payload: bytes) -> list[bytes]:
        """The datagrams of one message, in order."""
        if kind == DATA:
            self.number += 1
        count = max(1, -(-len(payload) // self._room))
        view = memoryview(payload)
        out = []
        for place in range(count):
            header = _HEADER.pack(MAGIC, VERSION, kind, place, self._group, self._process, self.number, count, 0, len(payload))
            data = b"".join((header, view[place * self._room : (place + 1) * self._room]))
            out.append(data + seal_of(data, self._key))
        return out


class Datagram(NamedTuple):
    """One that was received, not yet known to be whole."""

    kind: int
    fragment: int
    fragments: int
    process: bytes
    number: int
    size: int


def parse(data: Buffer, group: int) -> Datagram | None:
    """What the header says; None for anything that is not of this group and version."""
    if len(data) < HEADER_BYTES + _CRC.size:
        return None
    magic, version, kind, fragment, of_group, process, number, fragments, _, size = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or of_group != group or kind not in (BEACON, DATA):
        return None
    if fragment >= fragments or size > limits.MULTICAST_PAYLOAD_BYTES_MAX or fragments > 1 + size // _ROOM_MIN:
        return None
    return Datagram(kind, fragment, fragments, process, number, size)


def opened(data: Buffer, key: bytes) -> memoryview | None:
    """The payload of a datagram whose seal is right; None otherwise."""
    view = memoryview(data)
    seal = _MAC_BYTES if key else _CRC.size
    if len(data) < HEADER_BYTES + seal or seal_of(view[:-seal], key) != view[-seal:]:
        return None
    return view[HEADER_BYTES:-seal]


class _Parts:
    """A message of which not all fragments are here."""

    __slots__ = ("bytes", "fragments", "missing", "since_us", "size")

    def __init__(self, datagram: Datagram, now_us: int) -> None:
        self.fragments: list[memoryview | None] = [None] * datagram.fragments
        self.missing = datagram.fragments
        self.size = datagram.size
        self.bytes = 0
        self.since_us = now_us


class Assembly:
    """Puts the messages of one sender together. What it holds is bounded in bytes, messages and age; over a bound the oldest goes,
    which is a loss as any other.

    Attributes:
        lost: messages that were sent and are not, and will not be, here.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[int, _Parts] = OrderedDict()
        self._bytes = 0
        self._first = 0  # number of the first message that was heard of
        self._highest = 0
        self._whole = 0
        self._done: set[int] = set()  # of the last MULTICAST_WINDOW numbers

    @property
    def lost(self) -> int:
        """Counts what can no more come: numbers behind the window that never were whole, and those given up."""
        return max(0, self._highest - self._first + 1 - self._whole - len(self._open)) if self._first else 0

    def take(self, datagram: Datagram, payload: memoryview, now_us: int) -> bytes | memoryview | None:
        """One fragment, its seal checked; the message if that made it whole."""
        number = datagram.number
        if not self._first:
            self._first = self._highest = number
        if number in self._done or number <= self._highest - limits.MULTICAST_WINDOW or number < self._first:
            return None
        self._seen(number)
        if datagram.fragments == 1:
            return self._complete(number, payload) if len(payload) == datagram.size else None
        parts = self._open.get(number)
        if parts is None:
            parts = self._open[number] = _Parts(datagram, now_us)
            self._make_room(now_us)
        elif len(parts.fragments) != datagram.fragments or parts.size != datagram.size:
            return None
        if parts.fragments[datagram.fragment] is not None or parts.bytes + len(payload) > parts.size:
            return None
        parts.fragments[datagram.fragment] = payload
        parts.missing -= 1
        parts.bytes += len(payload)
        self._bytes += len(payload)
        self._make_room(now_us)
        if parts.missing or number not in self._open:
            return None
        self._forget(number)
        if parts.bytes != parts.size:
            return None
        return self._complete(number, b"".join(part for part in parts.fragments if part is not None))

    def heard(self, number: int) -> None:
        """The sender says that it sent so many: a lost last one shows."""
        if not self._first and number:
            self._first = number + 1
            self._highest = number
        self._seen(number)

    def _seen(self, number: int) -> None:
        if number > self._highest:
            self._highest = number
            if len(self._done) > 2 * limits.MULTICAST_WINDOW:
                self._done = {one for one in self._done if one > number - limits.MULTICAST_WINDOW}

    def _complete(self, number: int, message: bytes | memoryview) -> bytes | memoryview:
        self._done.add(number)
        self._whole += 1
        return message

    def _make_room(self, now_us: int) -> None:
        while self._open and self._over(now_us):
            self._forget(next(iter(self._open)))

    def _over(self, now_us: int) -> bool:
        oldest = next(iter(self._open.values()))
        return (
            len(self._open) > limits.MULTICAST_ASSEMBLY_MESSAGES_MAX
            or self._bytes > limits.MULTICAST_ASSEMBLY_BYTES_MAX
            or now_us - oldest.since_us > limits.MULTICAST_ASSEMBLY_US_MAX
        )

    def _forget(self, number: int) -> None:
        self._bytes -= self._open.pop(number).bytes


class Pace:
    """A token bucket: how many bytes may leave now."""

    def __init__(self, bytes_a_second: int, burst_bytes: int, now_us: int) -> None:
        self._rate, self._burst = bytes_a_second, burst_bytes
        self._tokens = float(burst_bytes)
        self._at_us = now_us

    def room(self, now_us: int) -> bool:
        """Whether one more datagram may leave. It may overdraw what there is, so that the largest passes whatever the burst is."""
        self._tokens = min(float(self._burst), self._tokens + (now_us - self._at_us) * self._rate / 1_000_000)
        self._at_us = now_us
        return self._tokens > 0

    def spend(self, size: int) -> None:
        """So many bytes left."""
        self._tokens -= size

    def wait_us(self) -> int:
        """How long until there is room, 0 if there is."""
        return 0 if self._tokens > 0 else int(-self._tokens * 1_000_000 / self._rate) + 1


def cut_runs(sizes: list[int], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, end) of frames of these sizes that make up to `bytes_max` each, one frame at least."""
    first = total = 0
    for place, size in enumerate(sizes):
        if place > first and total + size > bytes_max:
            yield first, place
            first, total = place, 0
        total += size
    if sizes:
        yield first, len(sizes)
