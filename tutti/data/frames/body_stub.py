"""Body stub: replaces a missing body with bytes that have the same length and CRC32C.

Each step of a CRC is reversible, so the last four bytes can be computed to give any wanted CRC (Stigge, Plötz, Müller and Redlich,
Reversing CRC, 2006).
"""

from __future__ import annotations

from tutti.data.frames.frame import crc32c

BYTES_MIN = 4
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_ONES = 0xFFFFFFFF


def _entry(index: int) -> int:
    for _ in range(8):
        index = index >> 1 ^ (_POLYNOMIAL if index & 1 else 0)
    return index


_TABLE = [_entry(index) for index in range(256)]
_BY_HIGH_BYTE = {entry >> 24: index for index, entry in enumerate(_TABLE)}


def stub_body(length: int, crc: int, before: int = 0) -> bytes:
    """Return `length` bytes (at least 4) that change a CRC32C from `before` to `crc`: zeros, then four computed bytes."""
    zeros = bytes(length - BYTES_MIN)
    state, wanted = crc32c(zeros, before) ^ _ONES, crc ^ _ONES
    indexes = []
    for _ in range(BYTES_MIN):
        index = _BY_HIGH_BYTE[wanted >> 24]
        indexes.append(index)
        wanted = (wanted ^ _TABLE[index]) << 8 & _ONES
    end = bytearray()
    for index in reversed(indexes):
        end.append((state ^ index) & 0xFF)
        state = state >> 8 ^ _TABLE[index]
    return zeros + bytes(end)
