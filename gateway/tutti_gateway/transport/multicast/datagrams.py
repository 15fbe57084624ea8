"""Datagrams of multicast messages: fragmentation, seals, reassembly and pacing.

A datagram, little-endian:

```
 0 magic b"TUTM"   4 version u8   5 kind u8   6 fragment u16   8 group u64   16 process (8 bytes)   24 number u64
32 fragments u16  34 zero u16    36 size u32   40 payload      then the seal
```

`group` is a hash of the group's name. `process` is the sender's run, as in the sender's introduction over the mesh. `number` counts
the sender's messages from 1 without gaps, so receivers can count losses. `size` is the size of the whole message, which has the
fragments 0 to `fragments` - 1; all fragments but the last have the same length. Without a key, the seal is the CRC32C of all bytes
before the seal (4 bytes). With a key, the seal is the keyed BLAKE2b of these bytes (RFC 7693, 16 bytes), which authenticates the
sender. Datagrams are not encrypted.
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
# Computed with the larger of the two seals, so that a message has the same fragments with either seal.
OVERHEAD_BYTES = HEADER_BYTES + _MAC_BYTES
_PAYLOAD_BYTES_MIN = limits.MULTICAST_DATAGRAM_BYTES_MIN - OVERHEAD_BYTES  # bounds the number of fragments of a message


def group_hash(group: str) -> int:
    """Return the hash that distinguishes groups on the same multicast address."""
    return int.from_bytes(hashlib.blake2b(group.encode(), digest_size=8, person=b"tutti.group").digest(), "little")


def compute_seal(data: Buffer, key: bytes) -> bytes:
    """Return the seal of `data`, all other bytes of a datagram. With an empty key, the seal is a checksum."""
    if key:
        return hashlib.blake2b(data, key=key, digest_size=_MAC_BYTES).digest()
    return _CRC.pack(google_crc32c.value(bytes(data)))


class Fragmenter:
    """Splits the messages of one sender into datagrams."""

    def __init__(self, group: str, process: bytes, key: bytes, datagram_bytes: int) -> None:
        """Create datagrams of at most `datagram_bytes`, sealed with `key`. With an empty key, the seals are checksums."""
        self._group, self._process, self._key = group_hash(group), process, key
        self._payload_bytes_max = datagram_bytes - OVERHEAD_BYTES
        self.number = 0

    def fragment(self, kind: int, payload: bytes) -> list[bytes]:
        """Return the datagrams of one message, in order."""
        if kind == DATA:  # a beacon repeats the number of the last message, so that receivers detect the loss of that message
            self.number += 1
        count = max(1, -(-len(payload) // self._payload_bytes_max))
        view = memoryview(payload)
        datagrams = []
        for index in range(count):
            header = _HEADER.pack(MAGIC, VERSION, kind, index, self._group, self._process, self.number, count, 0, len(payload))
            data = b"".join((header, view[index * self._payload_bytes_max : (index + 1) * self._payload_bytes_max]))
            datagrams.append(data + compute_seal(data, self._key))
        return datagrams


class Datagram(NamedTuple):
    """Header of a received datagram; its seal is not verified yet."""

    kind: int
    fragment: int
    fragments: int
    process: bytes
    number: int
    size: int


def parse(data: Buffer, group: int) -> Datagram | None:
    """Return the header of a datagram; None if the datagram is invalid, or belongs to another group or version."""
    # The CRC is the shorter seal, and only the sender's introduction shows which seal the datagram has.
    if len(data) < HEADER_BYTES + _CRC.size:
        return None
    magic, version, kind, fragment, of_group, process, number, fragments, _, size = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or of_group != group or kind not in (BEACON, DATA):
        return None
    # The header determines how much memory the message gets, and is not authenticated yet, so its values are limited here.
    if fragment >= fragments or size > limits.MULTICAST_PAYLOAD_BYTES_MAX or fragments > 1 + size // _PAYLOAD_BYTES_MIN:
        return None
    return Datagram(kind, fragment, fragments, process, number, size)


def verified_payload(data: Buffer, key: bytes) -> memoryview | None:
    """Return the payload of a datagram if its seal is correct, else None."""
    view = memoryview(data)
    seal = _MAC_BYTES if key else _CRC.size
    if len(data) < HEADER_BYTES + seal or compute_seal(view[:-seal], key) != view[-seal:]:
        return None
    return view[HEADER_BYTES:-seal]


class _Fragments:
    """The received fragments of one message."""

    __slots__ = ("bytes", "fragments", "missing", "since_us", "size")

    def __init__(self, datagram: Datagram, now_us: int) -> None:
        self.fragments: list[memoryview | None] = [None] * datagram.fragments
        self.missing = datagram.fragments
        self.size = datagram.size
        self.bytes = 0
        self.since_us = now_us


class Reassembly:
    """Reassembles the messages of one sender, within limits of bytes, messages and age. Above a limit, the oldest message is lost.

    Attributes:
        lost: number of messages that the sender has sent, and that are neither complete here nor being assembled.
    """

    def __init__(self) -> None:
        self._partial: OrderedDict[int, _Fragments] = OrderedDict()
        self._bytes = 0
        self._first = 0  # number of the first message since this gateway began to listen; 0 until it arrives
        self._highest = 0
        self._completed = 0
        self._done: set[int] = set()  # numbers of complete messages in the last MULTICAST_WINDOW, to detect duplicates

    @property
    def lost(self) -> int:
        """Number of messages since the first one that are neither complete nor being assembled."""
        return max(0, self._highest - self._first + 1 - self._completed - len(self._partial)) if self._first else 0

    def add(self, datagram: Datagram, payload: memoryview, now_us: int) -> bytes | memoryview | None:
        """Add a fragment with a verified seal. Return the message if it is now complete."""
        number = datagram.number
        if not self._first:
            self._first = self._highest = number
        # Ignore a duplicate, and a message so old that it may be a duplicate.
        # Also ignore messages below `_first`, which were sent before this gateway listened.
        if number in self._done or number <= self._highest - limits.MULTICAST_WINDOW or number < self._first:
            return None
        self._advance(number)
        if datagram.fragments == 1:
            return self._complete(number, payload) if len(payload) == datagram.size else None
        partial = self._partial.get(number)
        if partial is None:
            partial = self._partial[number] = _Fragments(datagram, now_us)
            self._evict(now_us)
        elif len(partial.fragments) != datagram.fragments or partial.size != datagram.size:  # contradicts its first fragment
            return None
        # A network may deliver a datagram twice, and a second copy must not count as a missing fragment.
        if partial.fragments[datagram.fragment] is not None or partial.bytes + len(payload) > partial.size:
            return None
        partial.fragments[datagram.fragment] = payload
        partial.missing -= 1
        partial.bytes += len(payload)
        self._bytes += len(payload)
        self._evict(now_us)
        if partial.missing or number not in self._partial:  # `_evict` may have dropped this message
            return None
        self._discard(number)
        if partial.bytes != partial.size:
            return None
        return self._complete(number, b"".join(part for part in partial.fragments if part is not None))

    def update_highest(self, number: int) -> None:
        """Register the number of the sender's last message, which its beacons contain, so that a loss of that message is
        detected.
        """
        if not self._first and number:
            self._first = number + 1  # nothing was received before this beacon, so only later messages can count as lost
            self._highest = number
        self._advance(number)

    def _advance(self, number: int) -> None:
        if number > self._highest:
            self._highest = number
            if len(self._done) > 2 * limits.MULTICAST_WINDOW:  # rarely true, so that the rebuilding costs little per message
                self._done = {one for one in self._done if one > number - limits.MULTICAST_WINDOW}

    def _complete(self, number: int, message: bytes | memoryview) -> bytes | memoryview:
        self._done.add(number)
        self._completed += 1
        return message

    def _evict(self, now_us: int) -> None:
        while self._partial and self._exceeds_limits(now_us):
            self._discard(next(iter(self._partial)))

    def _exceeds_limits(self, now_us: int) -> bool:
        oldest = next(iter(self._partial.values()))
        return (
            len(self._partial) > limits.MULTICAST_ASSEMBLY_MESSAGES_MAX
            or self._bytes > limits.MULTICAST_ASSEMBLY_BYTES_MAX
            or now_us - oldest.since_us > limits.MULTICAST_ASSEMBLY_US_MAX
        )

    def _discard(self, number: int) -> None:
        self._bytes -= self._partial.pop(number).bytes


class TokenBucket:
    """Token bucket that limits the bytes sent per second."""

    def __init__(self, bytes_a_second: int, burst_bytes: int, now_us: int) -> None:
        self._rate, self._burst = bytes_a_second, burst_bytes
        self._tokens = float(burst_bytes)
        self._updated_us = now_us

    def may_send(self, now_us: int) -> bool:
        """True if a further datagram may be sent.

        A datagram may overdraw the bucket. Otherwise, a datagram larger than the burst could never be sent.
        """
        self._tokens = min(float(self._burst), self._tokens + (now_us - self._updated_us) * self._rate / 1_000_000)
        self._updated_us = now_us
        return self._tokens > 0

    def spend(self, size: int) -> None:
        """Remove tokens for bytes that were sent."""
        self._tokens -= size

    def wait_us(self) -> int:
        """Return the time until the next datagram may be sent, us; 0 if it may be sent now."""
        return 0 if self._tokens > 0 else int(-self._tokens * 1_000_000 / self._rate) + 1


def split_runs(sizes: list[int], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, end) of frames with these sizes, each of at most `bytes_max` bytes or one larger frame."""
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and total + size > bytes_max:
            yield first, index
            first, total = index, 0
        total += size
    if sizes:
        yield first, len(sizes)
