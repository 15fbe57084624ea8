"""Fingerprints of a file's content: a digest of its start and of the bytes before a position."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from tutti_connect.files import limits

_MARK_BYTES = 8


def fingerprint(descriptor: int, at: int) -> str:
    """Return the fingerprint of the first `at` bytes of an open file.

    Raises:
        OSError: the file cannot be read.
    """
    return _mark(lambda count, begin: os.pread(descriptor, count, begin), at)


def _mark(read: Callable[[int, int], bytes], at: int) -> str:
    """Return a digest of the first `WINDOW_BYTES` of a file and of those before position `at`, from `read(count, position)`."""
    if not at:
        return ""
    digest = hashlib.blake2b(digest_size=_MARK_BYTES)
    head = min(at, limits.WINDOW_BYTES)
    digest.update(read(head, 0))
    begin = max(head, at - limits.WINDOW_BYTES)
    digest.update(read(at - begin, begin))
    return digest.hexdigest()


class ReadContent:
    """The start and the most recent part of the bytes read from a file, from which fingerprints are computed.

    A fingerprint must describe the bytes that were read. A fingerprint of the file itself would also match a file that was
    truncated and rewritten after the read.
    """

    def __init__(self, descriptor: int, at: int) -> None:
        """Start at a position of a file.

        Raises:
            OSError: the file cannot be read.
        """
        self._descriptor = descriptor
        self._head = os.pread(descriptor, min(at, limits.WINDOW_BYTES), 0)
        self._start = max(0, at - limits.WINDOW_BYTES)
        self._recent = bytearray(os.pread(descriptor, at - self._start, self._start))
        self._end = at
        self._last_mark = at, _mark(self._bytes, at)

    def is_unchanged(self) -> bool:
        """True if the file still has the bytes that were read, so that the next block belongs to the same content.

        Raises:
            OSError: the file cannot be read.
        """
        return fingerprint(self._descriptor, self._end) == _mark(self._bytes, self._end)

    def add(self, block: bytes) -> None:
        """Add a block that was read."""
        self._head += block[: max(0, limits.WINDOW_BYTES - len(self._head))]
        self._recent += block
        self._end += len(block)
        if len(self._recent) > 2 * (limits.ROW_BYTES_MAX + limits.BLOCK_BYTES) + limits.WINDOW_BYTES:
            self._drop(self._end - limits.BLOCK_BYTES)  # needed inside a row above the size limit

    def advance_to(self, at: int) -> None:
        """Release bytes that fingerprints of positions from `at` on do not need; earlier positions are no longer valid."""
        self._last_mark = at, self.mark(at)
        self._drop(at)

    def mark(self, at: int) -> str:
        """Return the fingerprint of the bytes read up to `at`."""
        return self._last_mark[1] if at == self._last_mark[0] else _mark(self._bytes, at)

    def _drop(self, at: int) -> None:
        count = max(0, at - limits.WINDOW_BYTES - self._start)
        del self._recent[:count]
        self._start += count

    def _bytes(self, count: int, begin: int) -> bytes:
        return self._head[:count] if begin == 0 else bytes(self._recent[begin - self._start : begin - self._start + count])
